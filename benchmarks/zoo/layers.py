"""Layers that several models of the zoo share, with dtypes as a good engineer sets them.

``dtype`` is the type to compute and store in, ``None`` for float32. With a half type dots are half,
norms and softmax compute in float32 and pass half, parameters stay float32.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.zoo.case import at_least_float32

Dtype = Any
"""A half type, float64, or None for float32."""

small_normal = nn.initializers.normal(0.02)
"""How transformers draw their weights."""


def causal_mask(length: int) -> jax.Array:
    """(length, length): which positions (columns) a position (row) may read."""
    return jnp.tril(jnp.ones((length, length), bool))


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Scaled dot-product attention, its softmax in float32.

    Args:
        query: (batch, queries, heads, size).
        key: (batch, keys, groups, size), where ``groups`` divides ``heads``.
        value: like ``key``.
        mask: (queries, keys), true where a query may read a key.
        bias: (heads, queries, keys), added to the scores.

    Returns:
        (batch, queries, heads, size), in the type of ``value``.
    """
    batch, queries, heads, size = query.shape
    groups = key.shape[2]
    query = query.reshape(batch, queries, groups, heads // groups, size) / math.sqrt(size)
    scores = at_least_float32(jnp.einsum("bqghd,bkgd->bghqk", query, key))
    if bias is not None:
        scores = scores + bias.reshape(groups, heads // groups, *bias.shape[1:])
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores).astype(value.dtype)
    mixed = jnp.einsum("bghqk,bkgd->bqghd", weights, value)
    return mixed.reshape(batch, queries, heads, size)


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, one dense layer for query, key and value.

    Attributes:
        heads: how many.
        dtype: see the module.
    """

    heads: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Maps (batch, length, width) to the same."""
        dense = functools.partial(nn.Dense, dtype=self.dtype, kernel_init=small_normal)
        batch, length, width = x.shape
        joint = dense(3 * width, name="in")(x)
        joint = joint.reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (joint[:, :, i] for i in range(3))
        mixed = attend(query, key, value, mask)
        return dense(width, name="out")(mixed.reshape(batch, length, width))


class Perceptron(nn.Module):
    """Two dense layers with a GELU between.

    Attributes:
        hidden: width between the layers.
        dtype: see the module.
        approximate: the tanh form of GELU (GPT-2), or erf (ViT, ConvNeXt).
    """

    hidden: int
    dtype: Dtype = None
    approximate: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (..., width) to the same."""
        dense = functools.partial(nn.Dense, dtype=self.dtype, kernel_init=small_normal)
        y = nn.gelu(dense(self.hidden)(x), approximate=self.approximate)
        return dense(x.shape[-1])(y)


class Block(nn.Module):
    """A transformer block: attention and a perceptron, each after a norm, with a residual.

    Attributes:
        heads: of attention.
        dtype: see the module.
        approximate: see :class:`Perceptron`.
        epsilon: of the norms.
    """

    heads: int
    dtype: Dtype = None
    approximate: bool = True
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Maps (batch, length, width) to the same."""
        norm = functools.partial(nn.LayerNorm, epsilon=self.epsilon, dtype=self.dtype)
        x = x + SelfAttention(self.heads, self.dtype)(norm()(x), mask)
        hidden = 4 * x.shape[-1]
        return x + Perceptron(hidden, self.dtype, self.approximate)(norm()(x))


class Drop(nn.Module):
    """Dropout whose coins are the same under ``jax_enable_x64``; Flax throws them in float64 there.

    Attributes:
        rate: how likely an element is dropped.
        whole: drop whole elements of the batch (stochastic depth).
    """

    rate: float
    whole: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps an array to the same, what is kept enlarged so that the mean stays."""
        kept = 1.0 - self.rate
        if kept == 1.0:
            return x
        shape = (x.shape[0], *[1] * (x.ndim - 1)) if self.whole else x.shape
        coins = jax.random.bernoulli(self.make_rng("dropout"), jnp.float32(kept), shape)
        return jnp.where(coins, x / kept, 0)
