"""An unrolled residual network of any length: a graph as long as one wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

WIDTH = 8
"""Shapes do not matter where nothing runs."""


def unrolled_net(layers: int) -> tuple[Callable[..., jax.Array], tuple[Any, Any]]:
    """A net of ``layers`` layers of a layer norm, a dot, tanh and a residual, each unrolled.

    Returns:
        ``loss(weights, x)``, and the shapes of its arguments.
    """

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            centred = x - jnp.mean(x, axis=-1, keepdims=True)
            variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
            normed = centred * jax.lax.rsqrt(variance + 1e-6)
            x = x + jnp.tanh(normed @ weight) * 0.5
        return jnp.mean(x)

    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return loss, ([weight] * layers, jax.ShapeDtypeStruct((4, WIDTH), jnp.float32))
