"""Regions of ``jax.checkpoint``: what is inlined there may bring constants with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import duotone

X = jnp.ones((8, 16))
W = jax.random.normal(jax.random.key(0), (16, 16)) / 4
TABLE = jnp.arange(16.0) / 8
INDEX = np.array([[3]], np.int32)


def scaled(y: jax.Array) -> jax.Array:
    """An inner ``jit`` that holds an array."""
    return jax.jit(lambda y: y * TABLE)(y)


@jax.custom_jvp
def waves(y: jax.Array) -> jax.Array:
    return scaled(jnp.sin(y))


@waves.defjvp
def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return waves(*primals), scaled(jnp.cos(primals[0])) * tangents[0]


def layers(w: jax.Array) -> jax.Array:
    layer = jax.checkpoint(lambda c, _: (scaled(jnp.tanh(c @ w)), None))
    return jnp.sum(lax.scan(layer, X, None, length=3)[0] ** 2)


REGIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "jit": jax.checkpoint(lambda w: jnp.sum(scaled(X @ w) ** 2)),
    "indices": jax.checkpoint(lambda w: jnp.sum((X @ w)[INDEX] ** 2)),
    "custom": jax.checkpoint(lambda w: jnp.sum(waves(X @ w) ** 2)),
    "scan": layers,
    "each": jax.checkpoint(lambda w, x: jnp.sum(scaled(x @ w) ** 2), prevent_cse=(True, False)),
}


@pytest.mark.parametrize("name", REGIONS)
def test_constants_of_what_is_inlined(name: str) -> None:
    region, others = REGIONS[name], (X,) if name == "each" else ()
    mixed = duotone.autocast(region, dtype=jnp.float16)
    np.testing.assert_allclose(mixed(W, *others), region(W, *others), rtol=2e-3)
    expected = jax.grad(region)(W, *others)
    of_gradient = duotone.autocast(jax.grad(region), dtype=jnp.float16)
    for gradient in (jax.grad(mixed), of_gradient, jax.jit(of_gradient)):
        found = gradient(W, *others)
        np.testing.assert_allclose(found, expected, atol=4e-3 * float(jnp.max(jnp.abs(expected))))
