"""An unrolled residual network and an unrolled transformer: graphs as long as one wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.zoo.case import cross_entropy

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


LENGTH, FEATURES, HEADS, VOCABULARY = 32, 64, 4, 256
"""Of :func:`unrolled_gpt`; their sizes do not matter either."""


def unrolled_gpt(layers: int) -> tuple[Callable[..., jax.Array], tuple[Any, Any]]:
    """A decoder of ``layers`` layers in plain functions: no library adds to the time of a trace.

    Returns:
        ``loss(params, tokens)``, and the shapes of its arguments.
    """

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["token"][tokens[:, :-1]] + params["position"]
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        for layer in params["layers"]:
            x = _block(layer, x, mask)
        return cross_entropy(_norm(params["norm"], x) @ params["token"].T, tokens[:, 1:])

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    norm = {"scale": array(FEATURES), "bias": array(FEATURES)}
    layer = {
        "norms": [norm, norm],
        "qkv": array(FEATURES, 3 * FEATURES),
        "out": array(FEATURES, FEATURES),
        "up": array(FEATURES, 4 * FEATURES),
        "bias": array(4 * FEATURES),
        "down": array(4 * FEATURES, FEATURES),
    }
    params = {
        "token": array(VOCABULARY, FEATURES),
        "position": array(LENGTH, FEATURES),
        "norm": norm,
        "layers": [layer] * layers,
    }
    return loss, (params, jax.ShapeDtypeStruct((4, LENGTH + 1), jnp.int32))


def _norm(params: Any, x: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"]


def _block(params: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
    batch, length, width = x.shape
    parts = jnp.split(_norm(params["norms"][0], x) @ params["qkv"], 3, axis=-1)
    q, k, v = [p.reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3) for p in parts]
    scores = q @ k.swapaxes(-1, -2) * (width // HEADS) ** -0.5
    attention = jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ v
    x = x + attention.transpose(0, 2, 1, 3).reshape(batch, length, width) @ params["out"]
    hidden = jax.nn.gelu(_norm(params["norms"][1], x) @ params["up"] + params["bias"])
    return x + hidden @ params["down"]
