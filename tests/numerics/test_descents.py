"""Steps of a descent: weights that one program moves several times keep small steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative

W = jax.random.normal(jax.random.key(0), (16, 16)) / 4
X = jax.random.normal(jax.random.key(1), (64, 16))
Y = jax.random.normal(jax.random.key(2), (64, 16))
RATE = 1e-3


def squares(w: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


def batches(w: Any, x: Any, y: Any) -> Any:
    """A loop over batches, which reads a matrix in each iteration as a scan over layers does."""

    def step(state: Any, batch: Any) -> tuple[Any, None]:
        return state - RATE * jax.grad(squares)(state, *batch), None

    return jax.lax.scan(step, w, (x.reshape(8, 8, 16), y.reshape(8, 8, 16)))[0] - w


def written_out(w: Any, x: Any, y: Any) -> Any:
    first = w
    for _ in range(5):
        w = jnp.clip(w - RATE * jax.grad(squares)(w, x, y), -4, 4)
    return w - first


def adam(w: Any, x: Any, y: Any) -> Any:
    """Adam by hand. The squares of small gradients do not fit float16."""
    first, mean, power = w, jnp.zeros_like(w), jnp.zeros_like(w)
    for step in range(1, 5):
        gradient = jax.grad(squares)(w, x, y)
        mean = 0.9 * mean + 0.1 * gradient
        power = 0.999 * power + 0.001 * gradient * gradient
        root = jnp.sqrt(power / (1 - 0.999**step)) + 1e-3
        w = w - RATE * (mean / (1 - 0.9**step)) / root
    return w - first


def momentum(w: Any, x: Any, y: Any) -> Any:
    """Two layers with momentum, over batches."""

    def loss(weights: Any, batch: Any) -> Any:
        return jnp.mean((jnp.tanh(batch[0] @ weights[0]) @ weights[1] - batch[1]) ** 2)

    def step(state: Any, batch: Any) -> tuple[Any, None]:
        weights, moved = state
        gradient = jax.grad(loss)(weights, batch)
        moved = jax.tree.map(lambda m, g: 0.9 * m + g, moved, gradient)
        return (jax.tree.map(lambda v, m: v - RATE * m, weights, moved), moved), None

    first = (w, w.T)
    start = (first, jax.tree.map(jnp.zeros_like, first))
    weights, _ = jax.lax.scan(step, start, (x.reshape(8, 8, 16), y.reshape(8, 8, 16)))[0]
    return jax.tree.map(jnp.subtract, weights, first)


def stacked(w: Any, x: Any, y: Any) -> Any:
    """Weights that a scan over layers reads slice by slice."""

    def loss(layers: Any) -> Any:
        out = jax.lax.scan(lambda h, layer: (h + jnp.tanh(h @ layer), None), x, layers)[0]
        return jnp.mean((out - y) ** 2)

    first = layers = jnp.stack([w, w.T, -w])
    for _ in range(4):
        layers = layers - RATE * jax.grad(loss)(layers)
    return layers - first


def langevin(w: Any, x: Any, y: Any) -> Any:
    """The input of a network moves along its gradient, and by noise."""
    x = first = x + 4
    for _ in range(4):
        x = x - RATE * jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w) ** 2))(x) + RATE * y
    return x - first


DESCENTS = [batches, written_out, adam, momentum, stacked, langevin]


def _error(function: Callable[..., Any], half: str, **policy: Any) -> float:
    return relative(mixed(function, half, W, X, Y, **policy), reference(function, W, X, Y))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", DESCENTS)
def test_small_steps_are_as_good_as_with_half_dots(function: Callable[..., Any], half: str) -> None:
    assert _error(function, half) <= 4 * _error(function, half, level="TENSOR_CORES_ONLY")


@pytest.mark.parametrize("function", DESCENTS)
def test_without_the_rule_the_same_test_fails(function: Callable[..., Any]) -> None:
    """Two other rules would keep them too, since the programs return differences of weights."""
    off = {"carry", "position", "cancellation"}
    error = _error(function, "bfloat16", rules_remove=off)
    assert error > 8 * _error(function, "bfloat16", level="TENSOR_CORES_ONLY")


def residual(w: Any, x: Any, y: Any) -> Any:
    """Layers that are scaled down, and read other weights than the gradient of one would."""
    for _ in range(4):
        x = x + 0.5 * (jnp.tanh(x @ w) @ y.T @ y / 64)
    return jnp.mean(x @ w)


def one_step(w: Any, x: Any, y: Any) -> Any:
    return w - RATE * jax.grad(squares)(w, x, y)


def two_networks(w: Any, x: Any, y: Any) -> Any:
    """A step of one network, whose returned weights the step of another one reads."""
    moved = one_step(w, x, y)
    return moved, moved.T - RATE * jax.grad(lambda v: squares(moved, x @ v, y))(moved.T)


@pytest.mark.parametrize("function", [residual, one_step, two_networks])
def test_what_takes_no_further_step_is_decided_as_before(function: Callable[..., Any]) -> None:
    seen = duotone.explain(function, W, X, Y, dtype="bfloat16")
    assert {o.rule for o in seen.operations}.isdisjoint({"carry"})
    assert any(o.rule == "allow" for o in seen.operations)


@pytest.mark.parametrize("half", HALVES)
def test_returned_steps_keep_small_steps_without_the_rule(half: str) -> None:
    def path(w: Any, x: Any, y: Any) -> Any:
        weights = [w]
        for _ in range(4):
            weights.append(one_step(weights[-1], x, y))
        return weights[1:]

    moves = [
        [step - W for step in steps]
        for steps in (
            mixed(path, half, W, X, Y),
            mixed(path, half, W, X, Y, level="TENSOR_CORES_ONLY"),
            reference(path, W, X, Y),
        )
    ]
    assert relative(moves[0], moves[2]) <= 4 * relative(moves[1], moves[2])
