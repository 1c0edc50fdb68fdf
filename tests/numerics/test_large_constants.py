"""Gradients of a loss that a constant makes too large for float16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from tests.numerics.oracle import mixed, reference, relative

W = jax.random.normal(jax.random.key(0), (3, 32, 32)) / 32**0.5
X = jax.random.normal(jax.random.key(1), (128, 32))


def network(w: Any, x: Any, activation: Callable[..., Any]) -> Any:
    for own in w[:-1]:
        x = activation(x @ own)
    return x @ w[-1]


def clipped(activation: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a large loss, of norm 1 at most."""

    def program(w: Any, x: Any) -> Any:
        found = jax.grad(lambda w: 1e12 * jnp.mean((network(w, x, activation) - x) ** 2))(w)
        return found * jnp.minimum(1, 1 / jnp.linalg.norm(found))

    return program


ACTIVATIONS = [jnp.tanh, jax.nn.relu, jax.nn.gelu, jax.nn.silu]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gradient_of_a_large_loss_is_finite(activation: Callable[..., Any]) -> None:
    program = clipped(activation)
    assert relative(mixed(program, "float16", W, X), reference(program, W, X)) < 0.02


@pytest.mark.parametrize("activation", [jnp.tanh, jax.nn.gelu])
def test_without_the_rule_it_overflows(activation: Callable[..., Any]) -> None:
    found = mixed(clipped(activation), "float16", W, X, rules_remove={"overflow"})
    assert not np.isfinite(found).all()


def test_arithmetic_between_the_dots_is_float32() -> None:
    seen = duotone.explain(clipped(jnp.tanh), W, X, dtype="float16").operations
    reasons = {o.operation for o in seen if "follows from a constant too large" in o.reason}
    assert {"dot_general", "mul"} <= reasons
    halves = [o.operation for o in seen if o.paint == "half" and o.rule == "allow"]
    assert halves == ["dot_general"] * 3  # the forward pass


def value_of_bins(w: Any, x: Any) -> Any:
    """The mean of a distribution over bins from -485,165,194 to 485,165,194 (DreamerV3)."""
    steps = jnp.linspace(-20, 20, 64)
    bins = jnp.sign(steps) * (jnp.exp(jnp.abs(steps)) - 1)
    return jax.nn.softmax(x @ w) @ bins[:, None]


BINS = jax.random.normal(jax.random.key(2), (32, 64))


def test_a_dot_of_numbers_from_counters_is_finite() -> None:
    want = reference(value_of_bins, BINS, X)
    assert relative(mixed(value_of_bins, "float16", BINS, X), want) < 0.01
    without = mixed(value_of_bins, "float16", BINS, X, rules_remove={"overflow"})
    assert not np.isfinite(without).all()


def test_a_mask_from_counters_keeps_its_dots_half() -> None:
    def attention(w: Any, x: Any) -> Any:
        places = jnp.arange(x.shape[0])
        mask = jnp.where(places[:, None] >= places, 0.0, -1e9)
        far = -1.0 * jnp.abs(places[:, None] - places) * 1000.0
        return jax.nn.softmax((x @ w) @ x.T + mask + far) @ x

    seen = duotone.explain(attention, W[0], X, dtype="float16").operations
    dots = [o.paint for o in seen if o.operation == "dot_general"]
    assert dots == ["half"] * 3
