"""Functions with an infinite slope at an end of their domain: a rounding error becomes its root."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative

W = jax.random.normal(jax.random.key(0), (32, 8)) / 32**0.5
X = jax.random.normal(jax.random.key(1), (64, 32))


def rotations(rows: Any) -> Any:
    """Rotations from six numbers each, by Gram-Schmidt."""
    one, other = rows[:, :3], rows[:, 3:6]
    one = one / jnp.linalg.norm(one, axis=-1, keepdims=True)
    other = other - jnp.sum(one * other, -1, keepdims=True) * one
    other = other / jnp.linalg.norm(other, axis=-1, keepdims=True)
    return jnp.stack([one, other, jnp.cross(one, other)], -1)


def geodesic(w: Any, x: Any) -> Any:
    """The mean angle between the rotations that a network predicts for a point and the next."""
    found = rotations(x @ w)
    both = jnp.einsum("nij,nkj->nik", found, jnp.roll(found, 1, 0))
    cosine = (jnp.trace(both, axis1=1, axis2=2) - 1) / 2
    return jnp.mean(jnp.arccos(jnp.clip(cosine, -1 + 1e-5, 1 - 1e-5)))


def corner(w: Any, x: Any) -> Any:
    """The narrow angle of triangles with predicted sides, by the law of cosines."""
    one, other, small = jnp.split(jax.nn.sigmoid((x @ w)[:, :6]), 3, axis=-1)
    one, other, small = 3 + one, 3 + one + 0.1 * other, 0.2 + 0.1 * small
    cosine = (one * one + other * other - small * small) / (2 * one * other)
    return jnp.mean(jnp.arccos(jnp.clip(cosine, -1 + 1e-5, 1 - 1e-5)))


LIMITS = {geodesic: (0.006, 0.06), corner: (0.0015, 0.006)}
"""By program, in float16 and in bfloat16."""


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", LIMITS)
def test_a_gradient_is_as_exact_as_the_dots(function: Callable[..., Any], half: str) -> None:
    program, limit = jax.grad(function), LIMITS[function][HALVES.index(half)]
    want = reference(program, W, X)
    assert relative(mixed(program, half, W, X), want) < limit
    # Rule "position" keeps what makes rotations of near vectors.
    without = mixed(program, half, W, X, rules_remove={"cancellation", "position"})
    assert relative(without, want) > 2 * limit


def angles_of_a_network(w: Any, x: Any) -> Any:
    """Angles between features of a residual stream and weights (ArcFace)."""
    stream = x
    for _ in range(3):
        stream = stream + jax.nn.relu(stream @ w @ w.T)
    norm = jnp.linalg.norm(stream, axis=-1, keepdims=True)
    cosine = (stream / norm) @ (w / jnp.linalg.norm(w, axis=0))
    return jnp.mean(jnp.arccos(jnp.clip(cosine, -0.999, 0.999)) ** 2)


def angle_of_a_stream(w: Any, x: Any) -> Any:
    """The last sum of a residual stream leads to the angle, and the ones before do not."""
    stream = x @ w
    for _ in range(4):
        stream = stream + jax.nn.relu(stream @ w.T @ w)
    return jnp.mean(jnp.arccos(jnp.tanh(stream)))


@pytest.mark.parametrize(
    ("function", "denied"), [(angles_of_a_network, []), (angle_of_a_stream, ["add", "tanh"])]
)
def test_the_network_before_it_stays_half(function: Callable[..., Any], denied: list[str]) -> None:
    seen = duotone.explain(function, W, X, dtype="bfloat16").operations
    assert [o.operation for o in seen if "slope is infinite" in o.reason] == denied
    streams = [o.stored for o in seen if o.operation == "add" and len(o.operands) == 2]
    assert streams[:3] == ["half"] * 3
