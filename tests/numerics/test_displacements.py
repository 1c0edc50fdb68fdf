"""Exact numbers that a network moves a little: their differences are much smaller than they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative

WIDTH, POINTS = 32, 64
W = jax.random.normal(jax.random.key(0), (3, WIDTH, WIDTH)) / WIDTH**0.5
X = jax.random.normal(jax.random.key(1), (POINTS, WIDTH))
LATTICE = np.stack(np.meshgrid(*[np.arange(4.0)] * 3), -1).reshape(POINTS, 3)
PLACES = (LATTICE * 1.1 + 20).astype(np.float32)
LINKS = np.stack([np.arange(POINTS - 1), np.arange(1, POINTS)])
STATES = X + 0.01 * jnp.cumsum(jax.random.normal(jax.random.key(2), (5, POINTS, WIDTH)), 0)


def network(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w[0]) @ w[1]


def atoms(w: Any, places: Any) -> Any:
    """A potential between atoms that a network displaces from a lattice."""
    moved = places + 0.02 * network(w, X.astype(w.dtype))[:, :3]
    apart = moved[:, None] - moved[None]
    sixth = (jnp.sum(apart**2, -1) + 100 * jnp.eye(POINTS)) ** -3
    return jnp.sum(sixth**2 - sixth)


def edges(w: Any, places: Any) -> Any:
    """The lengths of the edges of a template's mesh, a part of which stays where it is."""
    moved = places + 0.02 * network(w, X.astype(w.dtype))[:, :3]
    moved = jnp.where(places[:, :1] > 22, places, moved)
    links = moved[LINKS[0]] - moved[LINKS[1]]
    return jnp.mean((jnp.sum(links**2, -1) - 1.2) ** 2)


def forecast(w: Any, states: Any) -> Any:
    """A simulator that is trained on several steps of its own."""
    state, loss = states[0], 0.0
    for truth in states[1:]:
        state = state + 0.01 * network(w, state)
        loss = loss + jnp.sum((state - truth) ** 2)
    return loss


def curvature(w: Any, places: Any) -> Any:
    """Second differences along a curve, of which a network moves the points."""
    moved = places[:16] / 20 + 0.02 * network(w, X[:16].astype(w.dtype))[:, :3]
    bend = moved[2:] - 2 * moved[1:-1] + moved[:-2]
    return jnp.sum(bend**2)


def joined(w: Any, places: Any) -> Any:
    """Coordinates and features in one array, of which neighbours are gathered together."""
    points = jnp.concatenate([places, network(w, X.astype(w.dtype))], -1)
    apart = points[LINKS[0], :3] - points[LINKS[1], :3]
    near = jnp.exp(-2 * jnp.sum(apart**2, -1, keepdims=True))
    return jnp.sum((near * points[LINKS[1], 3:]) ** 2)


def grouped(w: Any, places: Any) -> Any:
    """Groups of joined points around their centres, as networks on point clouds read them."""
    points = jnp.concatenate([places, network(w, X.astype(w.dtype))], -1)
    group = points[(np.arange(POINTS)[:, None] + np.arange(8)) % POINTS]
    apart = group[..., :3] - places[:, None]
    layer = jnp.tanh(jnp.concatenate([apart, group[..., 3:WIDTH]], -1) @ w[2])
    return jnp.sum(jnp.exp(-jnp.sum(apart**2, -1)) * jnp.sum(layer**2, -1))


def blend(w: Any, places: Any) -> Any:
    """A forecast between two given ones, and its error."""
    weight = jax.nn.sigmoid(network(w, X.astype(w.dtype))[:, :3])
    return jnp.mean((weight * (places + 280) + (1 - weight) * (places[::-1] + 280) - 300) ** 2)


def corners(w: Any, places: Any) -> Any:
    """Two blends along one axis, and one along the other."""
    one, other = jnp.split(jax.nn.sigmoid(network(w, X.astype(w.dtype))[:, :6]), 2, axis=-1)
    near, far = places + 280, places[::-1] + 280
    left = one * near + (1 - one) * jnp.roll(near, 1, 0)
    right = one * far + (1 - one) * jnp.roll(far, 1, 0)
    return jnp.mean((other * left + (1 - other) * right - near) ** 2)


PROGRAMS: list[tuple[Callable[..., Any], Any]] = [
    (atoms, PLACES),
    (edges, PLACES),
    (curvature, PLACES),
    (forecast, STATES),
    (joined, PLACES),
    (grouped, PLACES),
    (blend, PLACES),
    (corners, PLACES),
]
LIMITS = {"float16": 1e-3, "bfloat16": 8e-3}


def errors(function: Callable[..., Any], args: Any, half: str, **policy: Any) -> list[float]:
    program = jax.value_and_grad(function)
    found, want = mixed(program, half, W, args, **policy), reference(program, W, args)
    return [relative(*pair) for pair in zip(found, want, strict=True)]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(("function", "args"), PROGRAMS)
def test_differences_are_as_exact_as_displacements(
    function: Callable[..., Any], args: Any, half: str
) -> None:
    assert max(errors(function, args, half)) < LIMITS[half]


@pytest.mark.parametrize(("function", "args"), PROGRAMS)
def test_without_the_rule_the_same_test_fails(function: Callable[..., Any], args: Any) -> None:
    """Rule ``cancellation`` also keeps small arrays after the last dot."""
    off = {"rules_remove": {"position", "cancellation"}}
    assert max(errors(function, args, "bfloat16", **off)) > LIMITS["bfloat16"]


def stream(w: Any, x: Any) -> Any:
    """A residual stream that starts with an argument, and a head."""
    for own in w:
        mean = jnp.mean(x, -1, keepdims=True)
        x = x + jnp.tanh((x - mean) @ own)
    return jnp.mean((x @ w[0] - X) ** 2)


def moving_average(w: Any, x: Any) -> Any:
    """A norm with averages of other data."""
    x = x + jnp.tanh(x @ w[0])
    return jnp.sum(jax.nn.relu((x - X[0]) @ w[1]) @ w[2])


def neighbours(w: Any, x: Any) -> Any:
    """Differences of features, which half dots made."""
    x = x @ w[0]
    x = x + jnp.tanh(x @ w[1])
    return jnp.sum(jax.nn.relu((x[1:] - x[:-1]) @ w[2]))


def gated(w: Any, x: Any) -> Any:
    """A recurrent network: its new state is a blend, but only the old one is exact."""
    state = x
    for own in w:
        kept = jax.nn.sigmoid(x @ own)
        state = kept * state + (1 - kept) * jnp.tanh(state @ own)
    return jnp.mean((state @ w[0] - X) ** 2)


@pytest.mark.parametrize("function", [stream, moving_average, neighbours, gated])
def test_what_is_no_displacement_is_decided_as_before(function: Callable[..., Any]) -> None:
    seen = duotone.explain(jax.grad(function), W, X, dtype="bfloat16").operations
    assert "position" not in {o.rule for o in seen}
    assert "half" in {o.stored for o in seen if o.operation == "add"}


def test_the_reason_is_reported() -> None:
    seen = duotone.explain(atoms, W, PLACES, dtype="bfloat16").operations
    (found,) = [o for o in seen if o.rule == "position"]
    assert (found.operation, found.paint) == ("add", "full")
    assert "moves exact numbers a little" in found.reason
