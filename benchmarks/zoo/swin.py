"""Swin-T on ImageNet: attention in shifted windows, 28.3 million parameters, 64 images.

Windows of 7 x 7 patches with a learned bias by relative position, every other block's windows moved
by half of one; stages with patches merged between. Without stochastic depth.

References:
    Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows" (2021).
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.zoo.case import Size, TrainCase, at_least_float32
from benchmarks.zoo.layers import Dtype, Perceptron, small_normal
from benchmarks.zoo.resnet50 import classifier_case

Shape = namedtuple("Shape", "batch image depths width head window classes")
"""Numbers of a Swin and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(64, 224, (2, 2, 6, 2), 96, 32, 7, 1000),
    "cpu": Shape(4, 112, (2, 2), 64, 32, 7, 100),
    "tiny": Shape(8, 32, (2, 1), 16, 8, 4, 10),
}


def relative(window: int) -> np.ndarray:
    """(patches, patches) which bias a patch of a window has for another."""
    place = np.stack(np.meshgrid(*[np.arange(window)] * 2, indexing="ij"), -1).reshape(-1, 2)
    apart = place[:, None] - place[None] + window - 1
    return apart[..., 0] * (2 * window - 1) + apart[..., 1]


def windows(x: jax.Array, window: int) -> jax.Array:
    """(batch, height, width, n) to (batch, windows, patches of a window, n)."""
    batch, height, width, features = x.shape
    x = x.reshape(batch, height // window, window, width // window, window, features)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, window * window, features)


def unwindowed(x: jax.Array, window: int, size: int) -> jax.Array:
    """The inverse of :func:`windows`, for images of ``size`` x ``size`` patches."""
    batch, features = x.shape[0], x.shape[-1]
    x = x.reshape(batch, size // window, size // window, window, window, features)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, size, size, features)


def neighbours(size: int, window: int, shift: int) -> np.ndarray:
    """(windows, patches, patches): which patches were together before windows were moved."""
    line = np.zeros(size, int)
    line[size - window : size - shift] = 1
    line[size - shift :] = 2
    region = (3 * line[:, None] + line[None]).reshape(1, size, size, 1)
    parts = region.reshape(size // window, window, size // window, window)
    parts = parts.transpose(0, 2, 1, 3).reshape(-1, window * window)
    return parts[:, :, None] == parts[:, None]


class Attention(nn.Module):
    """Attention within each window, its softmax in float32.

    Attributes:
        heads: how many.
        window: height and width of one, in patches.
        dtype: the type of activations.
    """

    heads: int
    window: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, mask: np.ndarray | None) -> jax.Array:
        """Maps (batch, windows, patches, width) to the same; ``mask`` as from neighbours."""
        width = x.shape[-1]
        dense = functools.partial(nn.Dense, dtype=self.dtype, kernel_init=small_normal)
        joint = dense(3 * width)(x).reshape(*x.shape[:3], 3, self.heads, width // self.heads)
        query, key, value = (joint[:, :, :, i] for i in range(3))
        query = query / math.sqrt(width // self.heads)
        scores = at_least_float32(jnp.einsum("bwqhd,bwkhd->bwhqk", query, key))
        table = self.param("bias", small_normal, ((2 * self.window - 1) ** 2, self.heads))
        scores = scores + jnp.moveaxis(table[relative(self.window)], -1, 0)
        if mask is not None:
            scores = jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores).astype(value.dtype)
        mixed = jnp.einsum("bwhqk,bwkhd->bwqhd", weights, value)
        return dense(width)(mixed.reshape(x.shape))


class Block(nn.Module):
    """Attention in windows, moved by ``shift``, and a perceptron, after norms."""

    shape: Shape
    shift: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, size, size, width) to the same."""
        norm = functools.partial(nn.LayerNorm, epsilon=1e-5, dtype=self.dtype)
        size, window = x.shape[1], self.shape.window
        shift = self.shift if size > window else 0
        mask = neighbours(size, window, shift) if shift else None
        y = jnp.roll(norm()(x), (-shift, -shift), axis=(1, 2)) if shift else norm()(x)
        heads = x.shape[-1] // self.shape.head
        y = Attention(heads, window, self.dtype)(windows(y, window), mask)
        y = unwindowed(y, window, size)
        x = x + (jnp.roll(y, (shift, shift), axis=(1, 2)) if shift else y)
        return x + Perceptron(4 * x.shape[-1], self.dtype, approximate=False)(norm()(x))


class Swin(nn.Module):
    """Patches of 4 x 4, stages of blocks with patches merged between, the mean, logits."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        shape = self.shape
        norm = functools.partial(nn.LayerNorm, epsilon=1e-5, dtype=self.dtype)
        x = norm()(nn.Conv(shape.width, (4, 4), (4, 4), dtype=self.dtype)(x))
        for stage, depth in enumerate(shape.depths):
            if stage > 0:
                width = x.shape[-1]
                parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
                x = norm()(jnp.concatenate(parts, axis=-1))
                x = nn.Dense(2 * width, False, self.dtype, kernel_init=small_normal)(x)
            for i in range(depth):
                x = Block(shape, shape.window // 2 * (i % 2), self.dtype)(x)
        x = jnp.mean(norm()(x), axis=(1, 2))
        return nn.Dense(shape.classes, dtype=self.dtype, kernel_init=small_normal)(x)


def swin(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Swin-T with AdamW and clipping."""
    shape = SHAPES[size]
    adamw = optax.adamw(1e-3, weight_decay=0.05)
    optimizer = optax.chain(optax.clip_by_global_norm(5.0), adamw)
    return classifier_case("Swin-T", Swin(shape, dtype), shape, optimizer)
