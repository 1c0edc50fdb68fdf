"""A U-Net: one level down and up, group norm, SiLU, a skip connection, mean squared error."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.model import Keys, Model, Params

_GROUPS = 4


def _conv(p: Params, x: jax.Array) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=layout)
    return y + p["bias"]


def _group_norm(p: Params, x: jax.Array) -> jax.Array:
    with jax.named_scope("group_norm"):
        grouped = x.reshape(*x.shape[:-1], _GROUPS, -1)
        mean = jnp.mean(grouped, (1, 2, 4), keepdims=True)
        variance = jnp.var(grouped, (1, 2, 4), keepdims=True)
        normed = (grouped - mean) / jnp.sqrt(variance + 1e-6)
        return normed.reshape(x.shape) * p["scale"] + p["offset"]


def _block(p: Params, x: jax.Array) -> jax.Array:
    for conv, norm in (("conv1", "norm1"), ("conv2", "norm2")):
        x = jax.nn.silu(_group_norm(p[norm], _conv(p[conv], x)))
    return x


def _down(x: jax.Array) -> jax.Array:
    n, h, w, c = x.shape
    return jnp.mean(x.reshape(n, h // 2, 2, w // 2, 2, c), (2, 4))


def _up(x: jax.Array) -> jax.Array:
    n, h, w, c = x.shape
    return jax.image.resize(x, (n, 2 * h, 2 * w, c), "nearest")


def _forward(params: Params, images: jax.Array) -> jax.Array:
    with jax.named_scope("encoder"):
        skip = _block(params["encoder"], images)
    with jax.named_scope("middle"):
        x = _block(params["middle"], _down(skip))
    with jax.named_scope("decoder"):
        x = _block(params["decoder"], jnp.concatenate([_up(x), skip], -1))
    with jax.named_scope("head"):
        return _conv(params["head"], x)


def _loss(params: Params, inputs: Any, labels: Any) -> jax.Array:
    (noise,) = labels
    return jnp.mean(jnp.square(_forward(params, *inputs) - noise))


def _init(key: jax.Array) -> Params:
    keys = Keys(key)

    def conv(inside: int, outside: int) -> Params:
        return {"kernel": keys.normal(3, 3, inside, outside), "bias": jnp.zeros(outside)}

    def block(inside: int, outside: int) -> Params:
        norm = {"scale": jnp.ones(outside), "offset": jnp.zeros(outside)}
        return {
            "conv1": conv(inside, outside),
            "norm1": norm,
            "conv2": conv(outside, outside),
            "norm2": norm,
        }

    return {
        "encoder": block(3, 8),
        "middle": block(8, 16),
        "decoder": block(24, 8),
        "head": conv(8, 3),
    }


def _batch(key: jax.Array) -> tuple[Any, Any]:
    one, two = jax.random.split(key)
    shape = (2, 8, 8, 3)
    return (jax.random.normal(one, shape),), (jax.random.normal(two, shape),)


UNET = Model("unet", _init, _batch, _forward, _loss)
