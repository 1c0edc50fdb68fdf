"""Sums that share a term and are subtracted from each other, directly or as factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative

W = jax.random.normal(jax.random.key(0), (3, 16, 16)) / 4
X = jax.random.normal(jax.random.key(1), (64, 16))
STEP = jax.random.normal(jax.random.key(2), (64, 8))


def network(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w[0]) @ w[1]


def volumes(w: Any, x: Any) -> Any:
    """Tetrahedra whose corners a network moves around a point."""
    corners = network(w, x)[:, :12].reshape(-1, 4, 3) * 0.1 + jnp.array([9.0, 20.0, 30.0])
    a, b, c = (corners[:, i] - corners[:, 0] for i in (1, 2, 3))
    return jnp.mean(jnp.abs(jnp.sum(a * jnp.cross(b, c), -1)))


def areas(w: Any, x: Any) -> Any:
    """A predicted point and two given corners of a triangle."""
    one, other = (jnp.array(corner) - (5 + 0.1 * network(w, x)[:, :2]) for corner in (
        [4.0, 4.5], [6.0, 4.0]
    ))  # fmt: skip
    return jnp.mean((one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]) ** 2)


def advantages(w: Any, x: Any) -> Any:
    """Sums of temporal differences of values around 30."""
    values = network(w, x) * 0.3 + 30.0
    steps = 0.99 * values[1:] - values[:-1] + 0.3
    _, sums = jax.lax.scan(lambda c, u: (u + 0.9 * c,) * 2, 0 * steps[0], steps, reverse=True)
    return jnp.mean(sums**2)


def policies(w: Any, x: Any) -> Any:
    """The divergence of a normal distribution from one a small step away."""
    out = network(w, x)
    mean, scale = out[:, :8], jax.nn.softplus(out[:, 8:]) + 0.1
    old = jax.lax.stop_gradient(mean) + 0.001 * STEP.astype(mean.dtype)
    wide = jax.lax.stop_gradient(scale) * 1.001
    return 1e3 * jnp.mean((mean - old) ** 2 / wide**2 + (scale / wide - 1) ** 2)


def rotated(w: Any, x: Any) -> Any:
    """How far a rotation close to the identity moves predicted points."""
    out = network(w, x)
    axis, points = 0.01 * out[:, :3], out[:, 3:6]
    turned = 2 * jnp.cross(axis, points)
    moved = points + turned + jnp.cross(axis, turned)
    return 1e4 * jnp.mean((moved - points) ** 2)


def nearly_parallel(w: Any, x: Any) -> Any:
    out = network(w, x)
    one = out[:, :3]
    return jnp.mean(jnp.cross(one, 1.7 * one + 0.05 * out[:, 3:6]) ** 2)


def smoothed(w: Any, x: Any) -> Any:
    """Steps of diffusion around 1, written out one by one."""
    u = 1 + 0.1 * network(w, x)
    for _ in range(4):
        u = u + 0.2 * (jnp.roll(u, 1, -1) - 2 * u + jnp.roll(u, -1, -1))
    return jnp.mean((u - 1) ** 2)


def determinants(w: Any, x: Any) -> Any:
    """Determinants of matrices whose elements are all near 2."""
    rows = 2 + 0.05 * network(w, x)[:, :9].reshape(-1, 3, 3)
    (a, b, c), (d, e, f), (g, h, i) = jnp.moveaxis(rows, 0, -1)
    return 1e6 * jnp.mean((a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)) ** 2)


def slopes(w: Any, x: Any) -> Any:
    """Functions of near numbers, whose difference no small number divides."""
    out = network(w, x)
    near = jnp.tanh(out + 0.01) - jnp.tanh(out)
    inverse = 1 / (2 + 0.1 * out) - 1 / (2.01 + 0.1 * out)
    return 1e4 * jnp.mean(near**2) + 1e6 * jnp.mean(inverse**2)


def bent(w: Any, x: Any) -> Any:
    """What a function leaves of its argument, and a layer before and after a small change."""
    out = 0.1 * network(w, x)
    layers = jax.nn.relu(out + 1) - jax.nn.relu(0.999 * out + 1)
    return 1e5 * jnp.mean((out - jnp.tanh(out)) ** 2 + layers**2)


def adapted(w: Any, x: Any) -> Any:
    """How far steps of a descent lead: the cotangent of the last step and of the first cancel."""
    inner = jax.grad(lambda w: jnp.mean((network(w, x) - x) ** 2))
    end = w
    for _ in range(4):
        end = end - 0.01 * inner(end)
    return 1e3 * jnp.sum((end - w) ** 2)


PROGRAMS = [volumes, areas, advantages, policies, rotated, nearly_parallel, smoothed]
PROGRAMS += [determinants, slopes, bent, adapted]
LIMITS = {"float16": 5e-3, "bfloat16": 1e-2}


def error(function: Callable[..., Any], half: str, **policy: Any) -> float:
    program = jax.value_and_grad(function)
    found, want = mixed(program, half, W, X, **policy), reference(program, W, X)
    return max(relative(*pair) for pair in zip(found, want, strict=True))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", PROGRAMS)
def test_the_difference_keeps_its_digits(function: Callable[..., Any], half: str) -> None:
    assert error(function, half) < LIMITS[half]


@pytest.mark.parametrize("function", PROGRAMS)
def test_without_the_rule_the_same_test_fails(function: Callable[..., Any]) -> None:
    """Rule ``cancellation`` also keeps small arrays after the last dot."""
    off = {"rules_remove": {"position", "cancellation"}}
    assert any(error(function, half, **off) > LIMITS[half] for half in HALVES)


def stream(w: Any, x: Any) -> Any:
    """A residual stream with norms that are modulated."""
    x = x @ w[2]
    for own in w:
        normed = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        x = x + jax.nn.gelu((normed * (1 + x @ own) + x @ own) @ own) @ own
    return jnp.mean((x @ w[0] - X) ** 2)


def from_start(w: Any, x: Any) -> Any:
    """What a residual stream adds to its start."""
    start = x = x @ w[2]
    for own in w:
        x = x + jnp.tanh(x @ own)
    return jnp.mean((x - start) ** 2)


def gated(w: Any, x: Any) -> Any:
    """A gated recurrence, written out; its gates have a bias."""
    state = x @ w[2]
    for own in w:
        gate, new = jax.nn.sigmoid(x @ own + 1), jnp.tanh(state @ own)
        state = (1 - gate) * new + gate * (state - new)
    return jnp.mean((state @ w[0] - X) ** 2)


def hard(w: Any, x: Any) -> Any:
    """Hard swishes, and batch norms with running averages."""
    for own in w:
        x = x @ own
        x = x * jnp.clip(x + 3, 0, 6) / 6
        x = (x - X[0]) * 1.5
    return jnp.mean((x @ w[0]) ** 2)


@pytest.mark.parametrize("function", [stream, from_start, gated, hard])
def test_networks_are_decided_as_before(function: Callable[..., Any]) -> None:
    seen = duotone.explain(jax.grad(function), W, X, dtype="bfloat16").operations
    assert "position" not in {o.rule for o in seen}
    assert "half" in {o.stored for o in seen if o.operation == "add"}


def test_the_reason_is_reported() -> None:
    seen = duotone.explain(policies, W, X, dtype="bfloat16").operations
    (found,) = [o for o in seen if o.rule == "position"]
    assert (found.operation, found.paint) == ("add", "full")
    assert "a term of it is subtracted again" in found.reason
