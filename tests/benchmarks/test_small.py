"""The small models of the zoo, painted and by hand."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone
from benchmarks.zoo import ZOO, names_of
from benchmarks.zoo.small_sequences import retained
from tests.benchmarks.zoo_steps import check_steps, dot_types, slow_but

QUICK = ("autoencoder", "flow")
FORCED = duotone.Policy(ignore_performance=True)
models = pytest.mark.parametrize("name", slow_but(names_of("small"), QUICK))


@models
@pytest.mark.parametrize("size", ["full", "tiny"])
def test_a_step_keeps_the_state_and_is_the_same_by_hand_but_for_its_dots(name, size):
    plain, by_hand = (ZOO[name].make(dtype, size) for dtype in (None, jnp.float16))
    shapes = check_steps(plain, by_hand)
    assert "float16" in dot_types(by_hand.step, shapes)


@models
def test_a_painted_step_is_that_of_float32_within_half(name):
    case = ZOO[name].make(None, "tiny")
    arguments = case.start(jax.random.key(0)), case.batch(jax.random.key(1), "ordinary")
    state, loss = jax.jit(case.step)(*arguments)
    paint = functools.partial(duotone.autocast, dtype="bfloat16", policy=FORCED)
    assert case.step_with is not None
    short = case.step_with(lambda loss: jax.value_and_grad(paint(loss), has_aux=True))
    for painted in (paint(case.step), short):
        found_state, found_loss = jax.jit(painted)(*arguments)
        assert found_loss.dtype == jnp.float32
        np.testing.assert_allclose(found_loss, loss, rtol=0.01)
        # AdamW's first step has the size of its rate whatever the gradient: its moment tells.
        moment, found = (s.optimizer[0].mu for s in (state, found_state))
        apart = optax.tree.norm(optax.tree.sub(found, moment)) / optax.tree.norm(moment)
        assert 0 < apart < 0.2


def test_retention_in_chunks_is_a_decaying_sum():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 8, 2, 3))
    place = np.arange(8)
    apart = place[:, None] - place
    weights = jnp.einsum("bihd,bjhd->bhij", query, key) * np.where(apart >= 0, 0.9**apart, 0)
    expected = jnp.einsum("bhij,bjhd->bihd", weights, value)
    np.testing.assert_allclose(retained(query, key, value, 4), expected, atol=1e-5)
