"""``optimizer_from_environment``: plain, or switched to mixed precision by the environment."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import keras
import optax
import pytest

import duotone
from duotone.errors import EnvironmentVariableError
from duotone.scale.optimizer_state import MixedPrecisionState

PARAMS = {"w": jnp.ones((8, 8)) / 16}
X = jnp.ones((8, 8))


def loss(params, x):
    return jnp.mean((x @ params["w"]) ** 2)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("ENABLE", "ENABLE_GRAPH_REWRITE", "ENABLE_LOSS_SCALING", "DTYPE"):
        monkeypatch.delenv(f"DUOTONE_{name}", raising=False)
    for part in ("", "_GRAPH_REWRITE", "_LOSS_SCALING"):
        monkeypatch.delenv(f"TF_ENABLE_AUTO_MIXED_PRECISION{part}", raising=False)


def made(**arguments):
    """The optimizer, its first state, and whether its gradients hold float16 dots."""
    opt = duotone.optimizer_from_environment(optax.sgd(0.5), **arguments)
    state = opt.init(PARAMS)
    program = str(jax.make_jaxpr(lambda p, s: opt.compute_gradients(loss, p, s, X))(PARAMS, state))
    assert "dot_general" in program
    return opt, state, re.search(r"(?<!b)f16\[", program) is not None


def test_nothing_set_is_the_bare_optimizer_with_the_same_methods_and_state():
    opt, state, half = made(dtype="float16")
    assert not half
    assert isinstance(state, MixedPrecisionState)
    assert isinstance(opt.find_state(state).loss_scale, duotone.NoLossScale)
    bare = optax.sgd(0.5)
    grads = jax.grad(loss)(PARAMS, X)
    expected: Any = optax.apply_updates(PARAMS, bare.update(grads, bare.init(PARAMS), PARAMS)[0])
    done = opt.minimize(loss, PARAMS, state, X)
    assert jnp.array_equal(done.params["w"], expected["w"])


@pytest.mark.parametrize("name", ["DUOTONE_ENABLE", "TF_ENABLE_AUTO_MIXED_PRECISION"])
def test_one_switch_for_both_parts(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    _, state, half = made(dtype="float16")
    assert half
    assert isinstance(state.loss_scale, duotone.DynamicLossScale)


def test_rewriting_alone(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE", "1")
    opt, state, half = made(dtype="float16")
    assert half
    assert isinstance(opt.find_state(state).loss_scale, duotone.NoLossScale)


def test_loss_scaling_alone_is_dynamic_though_nothing_is_rewritten(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING", "1")
    opt, state, half = made()
    assert not half
    assert isinstance(state.loss_scale, duotone.DynamicLossScale)
    done = opt.minimize(loss, PARAMS, state, X)
    assert int(done.state.loss_scale.good_steps) == 1  # pyright: ignore[reportAttributeAccessIssue]
    _, state, _ = made(loss_scale=128)
    assert float(state.loss_scale.value) == 128


def test_the_half_type_of_the_environment_and_of_the_code(monkeypatch):
    monkeypatch.setenv("DUOTONE_ENABLE", "1")
    monkeypatch.setenv("DUOTONE_DTYPE", "float16")
    assert made()[2]
    opt, state, half = made(dtype="bfloat16")
    assert not half
    assert isinstance(opt.find_state(state).loss_scale, duotone.NoLossScale)


def test_a_checkpoint_moves_between_the_two(monkeypatch):
    """The state has one structure, so that a training may go on in the other precision."""
    _, plain, _ = made()
    monkeypatch.setenv("DUOTONE_ENABLE", "1")
    opt, rewritten, half = made(dtype="float16")
    assert half
    assert jax.tree.structure(plain) == jax.tree.structure(rewritten)
    assert jnp.isfinite(opt.minimize(loss, PARAMS, plain, X).loss)


def test_a_bad_value_names_the_variable(monkeypatch):
    monkeypatch.setenv("DUOTONE_ENABLE", "yes")
    with pytest.raises(EnvironmentVariableError, match="DUOTONE_ENABLE is 'yes'"):
        duotone.optimizer_from_environment(optax.sgd(0.5))


def test_a_keras_optimizer(monkeypatch):
    bare = keras.optimizers.SGD(0.1)
    assert duotone.optimizer_from_environment(bare) is bare
    monkeypatch.setenv("DUOTONE_ENABLE", "1")
    monkeypatch.setenv("DUOTONE_DTYPE", "float16")
    both = duotone.optimizer_from_environment(keras.optimizers.SGD(0.1))
    assert both.half == "float16"
    assert both.metrics()["loss_scale"] == 2.0**15
    monkeypatch.setenv("DUOTONE_ENABLE_LOSS_SCALING", "0")
    rewritten = duotone.optimizer_from_environment(keras.optimizers.SGD(0.1))
    assert rewritten.half == "float16"
    assert rewritten.metrics()["loss_scale"] == 1
    monkeypatch.setenv("DUOTONE_ENABLE", "0")
    monkeypatch.setenv("DUOTONE_ENABLE_LOSS_SCALING", "1")
    scaled = duotone.optimizer_from_environment(keras.optimizers.SGD(0.1))
    assert scaled.half is None
    assert scaled.metrics()["loss_scale"] == 2.0**15
