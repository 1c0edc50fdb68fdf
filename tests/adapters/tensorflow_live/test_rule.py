"""The loss scale of TensorFlow's optimizers is that of JAX, step by step."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.adapters.tensorflow.rule import NONE, ScaleRule, data_of, fixed, rule_of
from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.scale.optimizer_state import advance, begin, read
from tests.tensorflow.in_tensorflow import needs_tensorflow


@pytest.mark.parametrize(
    ("loss_scale", "rule"),
    [
        ("dynamic", None),
        (None, NONE),
        (8, fixed(8.0)),
        (duotone.FixedLossScale(4), fixed(4.0)),
        (duotone.NoLossScale(), NONE),
        (
            duotone.dynamic_loss_scale(2.0**8, 7, 4.0, 2.0, 2.0**9),
            ScaleRule(2.0**8, 7, 4.0, 2.0, 2.0**9),
        ),
    ],
)
def test_an_argument_becomes_a_rule_and_plain_data(loss_scale, rule):
    assert rule_of(loss_scale) == rule
    assert rule_of(data_of(rule)) == rule


@pytest.mark.parametrize(
    "wrong", [True, [1.0], ScaleRule, np.ones(3), duotone.DynamicLossScale, {}, {"rule": "other"}]
)
def test_other_arguments_are_refused(wrong):
    with pytest.raises(ArgumentTypeError, match="DynamicLossScale"):
        rule_of(wrong)


@pytest.mark.parametrize("wrong", ["static", 0, -1.0, float("nan")])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ArgumentError):
        rule_of(wrong)


def _steps(seed):
    """Random steps: whether they are finite, and their losses."""
    random = np.random.default_rng(seed)
    losses = np.exp(random.normal(size=40) * 12).astype(np.float32)
    losses[random.integers(40)] = np.inf
    return zip(random.random(40) < 0.6, losses, strict=True)


class TestTensorFlow:
    pytestmark = needs_tensorflow

    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("known", [True, False])
    def test_it_adjusts_as_on_jax(self, tf, seed, known):
        from duotone.adapters.tensorflow import scaling

        scale = duotone.dynamic_loss_scale(2.0**15, growth_interval=3, cap=2.0**17)
        rule = rule_of(scale)
        assert rule is not None
        on_jax = begin(None, scale)
        start = (2.0**15, 0, 0, True, 0)
        state = scaling.State(*map(tf.constant, start))
        for finite, loss in _steps(seed):
            known_loss = loss if known else None
            on_jax = advance(on_jax, None, jnp.asarray(finite), known_loss)
            tensor = tf.constant(loss) if known else None
            state = scaling.advance(rule, state, tf.constant(bool(finite)), tensor)
            assert [part.numpy() for part in state] == list(read(on_jax, "test")[:5])

    @pytest.mark.parametrize("loss", [1e2, 1e4, 1e7])
    @pytest.mark.parametrize("skipped", [0, 1])
    def test_it_adjusts_so_in_a_session(self, tf, loss, skipped):
        from duotone.adapters.tensorflow import scaling

        start = (2.0**15, 0, skipped, skipped == 0, 0)
        found = []
        for graph in (tf.Graph(), None):
            with contextlib.nullcontext() if graph is None else graph.as_default():
                state = scaling.State(*map(tf.constant, start))
                after = scaling.advance(ScaleRule(), state, tf.constant(False), tf.constant(loss))
                if graph is None:
                    found.append([part.numpy() for part in after])
                else:
                    found.append(tf.compat.v1.Session().run([*after]))
        assert found[0] == found[1]
        assert found[0][0] < 2.0**14

    def test_those_of_tensorflow_are_accepted(self, tf):
        theirs = tf.compat.v1.mixed_precision
        assert rule_of(theirs.FixedLossScale(4)) == fixed(4.0)
        assert rule_of(theirs.DynamicLossScale(2.0**8, 7, 4.0)) == ScaleRule(2.0**8, 7, 4.0)
