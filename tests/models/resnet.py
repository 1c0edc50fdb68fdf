"""A residual network: two blocks, batch norm with batch statistics; the second halves the size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.model import Keys, Model, Params, cross_entropy

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=_LAYOUT
    )


def _batch_norm(p: Params, x: jax.Array) -> jax.Array:
    with jax.named_scope("batch_norm"):
        mean = jnp.mean(x, (0, 1, 2))
        variance = jnp.mean(jnp.square(x), (0, 1, 2)) - jnp.square(mean)
        scale = jax.lax.rsqrt(variance + 1e-5) * p["scale"]
        return (x - mean) * scale + p["bias"]


def _block(p: Params, x: jax.Array, stride: int) -> jax.Array:
    h = jax.nn.relu(_batch_norm(p["norm1"], _conv(x, p["conv1"], stride)))
    h = _batch_norm(p["norm2"], _conv(h, p["conv2"]))
    if "shortcut" in p:
        x = _conv(x, p["shortcut"], stride)
    return jax.nn.relu(x + h)


def _forward(params: Params, images: jax.Array) -> jax.Array:
    with jax.named_scope("stem"):
        x = jax.nn.relu(_batch_norm(params["norm"], _conv(images, params["stem"])))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
    for index, (block, stride) in enumerate(zip(params["blocks"], (1, 2), strict=True)):
        with jax.named_scope(f"block_{index}"):
            x = _block(block, x, stride)
    with jax.named_scope("head"):
        return jnp.mean(x, (1, 2)) @ params["head"] + params["bias"]


def _loss(params: Params, inputs: Any, labels: Any) -> jax.Array:
    return cross_entropy(_forward(params, *inputs), *labels)


def _norm(width: int) -> Params:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def _init(key: jax.Array) -> Params:
    keys = Keys(key)
    return {
        "stem": keys.normal(3, 3, 3, 8),
        "norm": _norm(8),
        "blocks": [
            {
                "conv1": keys.normal(3, 3, 8, 8),
                "norm1": _norm(8),
                "conv2": keys.normal(3, 3, 8, 8),
                "norm2": _norm(8),
            },
            {
                "conv1": keys.normal(3, 3, 8, 16),
                "norm1": _norm(16),
                "conv2": keys.normal(3, 3, 16, 16),
                "norm2": _norm(16),
                "shortcut": keys.normal(1, 1, 8, 16),
            },
        ],
        "head": keys.normal(16, 10),
        "bias": jnp.zeros(10),
    }


def _batch(key: jax.Array) -> tuple[Any, Any]:
    one, two = jax.random.split(key)
    images = jax.random.normal(one, (4, 16, 16, 3), jnp.float32)
    return (images,), (jax.random.randint(two, (4,), 0, 10),)


RESNET = Model("resnet", _init, _batch, _forward, _loss)
