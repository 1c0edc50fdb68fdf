"""Two towers, as CLIP: images and texts brought to one space, 256 pairs, six layers each.

A vision transformer and a causal text transformer of width 384; the loss compares every image with
every text of the batch, its logits scaled by a learned temperature, in float32 also by hand.

References:
    Radford et al., "Learning Transferable Visual Models From Natural Language Supervision" (2021);
    towers of about half the published width and depth.
"""

from __future__ import annotations

import math
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import (
    Size,
    TrainCase,
    at_least_float32,
    cross_entropy,
    drawn,
    network_case,
    numbers,
    whole,
)
from benchmarks.zoo.layers import Block, Dtype, causal_mask, small_normal

Shape = namedtuple("Shape", "batch image patch length layers width heads joint vocabulary")
"""Numbers of two towers and their batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(256, 224, 16, 64, 6, 384, 6, 256, 49408),
    "cpu": Shape(8, 64, 8, 32, 3, 192, 3, 128, 4096),
    "tiny": Shape(8, 16, 4, 8, 1, 32, 4, 16, 64),
}


class Tower(nn.Module):
    """Blocks between two norms, one position read out, a dense layer, a vector of length one."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, read: int, mask: jax.Array | None = None) -> jax.Array:
        """Maps (batch, length, width) to (batch, joint), in float32 by hand too."""
        shape = self.shape
        position = self.param("position", small_normal, (1, *x.shape[1:]))
        x = x + position.astype(x.dtype)
        for i in range(shape.layers):
            x = Block(shape.heads, self.dtype, name=f"layer_{i}")(x, mask)
        x = nn.LayerNorm(epsilon=1e-5, dtype=self.dtype)(x)[:, read]
        x = at_least_float32(nn.Dense(shape.joint, use_bias=False, dtype=self.dtype)(x))
        return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-12)


class TwoTowers(nn.Module):
    """The two towers and the logits between them."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, images: jax.Array, tokens: jax.Array) -> jax.Array:
        """Maps images and (batch, length) tokens to (batch, batch) logits."""
        shape = self.shape
        patch = (shape.patch, shape.patch)
        conv = nn.Conv(shape.width, patch, patch, padding="VALID", dtype=self.dtype)
        x = conv(images).reshape(images.shape[0], -1, shape.width)
        first = self.param("class", small_normal, (1, 1, shape.width)).astype(x.dtype)
        first = jnp.broadcast_to(first, (x.shape[0], 1, shape.width))
        seen = Tower(shape, self.dtype, name="image")(jnp.concatenate([first, x], axis=1), 0)
        token = nn.Embed(shape.vocabulary, shape.width, self.dtype, embedding_init=small_normal)
        mask = causal_mask(shape.length)
        said = Tower(shape, self.dtype, name="text")(token(tokens), -1, mask)
        start = nn.initializers.constant(math.log(1 / 0.07))
        scale = jnp.exp(self.param("temperature", start, ())).astype(seen.dtype)
        dots = jnp.dot(seen.astype(x.dtype), said.astype(x.dtype).T)
        return scale * at_least_float32(dots)


def two_tower(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Two towers with AdamW. A batch is images and tokens."""
    shape = SHAPES[size]

    def loss(logits: jax.Array, _: tuple[jax.Array, jax.Array]) -> jax.Array:
        labels = jnp.arange(shape.batch)
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    images = numbers(shape.batch, shape.image, shape.image, 3)
    return network_case(
        "Two towers",
        TwoTowers(shape, dtype),
        drawn(images, whole((shape.batch, shape.length), shape.vocabulary)),
        optax.adamw(5e-4, weight_decay=0.2),
        reads=lambda batch: batch,
        loss=loss,
    )
