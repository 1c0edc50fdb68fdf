"""T5 small: an encoder and a decoder, 60.5 million parameters, 16 texts of 512 to 128 tokens.

Six blocks each, RMS norms, no biases, scores with a learned bias by relative position that all
layers of a stack share, one embedding for both sides and, scaled, for the logits.

References:
    Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer" (2020).
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

from benchmarks.zoo.case import (
    Size,
    TrainCase,
    cross_entropy,
    drawn,
    hostile_leaf,
    network_case,
    whole,
)
from benchmarks.zoo.layers import Dtype, attend, causal_mask, small_normal

_BUCKETS, _FARTHEST = 32, 128

Shape = namedtuple("Shape", "batch read written layers width heads hidden vocabulary")
"""Numbers of a T5 and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(16, 512, 128, 6, 512, 8, 2048, 32128),
    "cpu": Shape(4, 96, 48, 2, 256, 4, 1024, 4096),
    "tiny": Shape(8, 24, 12, 2, 32, 4, 64, 64),
}


def buckets(queries: int, keys: int, both_ways: bool) -> np.ndarray:
    """(queries, keys) numbers of buckets: near distances one each, far ones by their logarithm."""
    distance = np.arange(keys)[None] - np.arange(queries)[:, None]
    count, first = _BUCKETS, np.zeros_like(distance)
    if both_ways:
        count //= 2
        first = np.where(distance > 0, count, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    near = count // 2
    far = np.log(np.maximum(distance, 1) / near) / math.log(_FARTHEST / near) * (count - near)
    far = np.minimum(near + far.astype(int), count - 1)
    return first + np.where(distance < near, distance, far)


class _Attention(nn.Module):
    """Attention of one sequence to another or to itself."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        read: jax.Array,
        mask: jax.Array | None = None,
        bias: jax.Array | None = None,
    ) -> jax.Array:
        heads, width = self.shape.heads, self.shape.width
        size = width // heads

        def split(x: jax.Array, name: str, deviation: float) -> jax.Array:
            drawn = nn.initializers.normal(deviation)
            dense = nn.Dense(width, False, self.dtype, kernel_init=drawn, name=name)
            return dense(x).reshape(*x.shape[:2], heads, size)

        # T5 draws the query's weight smaller instead of dividing the scores: alike when it begins.
        query = split(x, "query", width**-0.5)
        key, value = split(read, "key", width**-0.5), split(read, "value", width**-0.5)
        mixed = attend(query, key, value, mask, bias).reshape(x.shape)
        drawn = nn.initializers.normal(width**-0.5)
        return nn.Dense(width, False, self.dtype, kernel_init=drawn, name="out")(mixed)


class Block(nn.Module):
    """Self-attention, attention to what was read (in the decoder), a perceptron."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(
        self, x: jax.Array, read: jax.Array | None, mask: jax.Array | None, bias: jax.Array
    ) -> jax.Array:
        """Maps (batch, length, width) to the same."""
        norm = functools.partial(nn.RMSNorm, epsilon=1e-6, dtype=self.dtype)
        dense = functools.partial(nn.Dense, use_bias=False, dtype=self.dtype)
        y = norm()(x)
        x = x + _Attention(self.shape, self.dtype, name="self")(y, y, mask, bias)
        if read is not None:
            x = x + _Attention(self.shape, self.dtype, name="cross")(norm()(x), read)
        y = nn.relu(dense(self.shape.hidden, name="up")(norm()(x)))
        return x + dense(self.shape.width, name="down")(y)


class T5(nn.Module):
    """An encoder, a decoder, the embedding again as the head."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, read: jax.Array, written: jax.Array) -> jax.Array:
        """Maps (batch, read) and (batch, written) tokens to (batch, written, vocabulary) logits."""
        shape = self.shape
        unit = nn.initializers.normal(1.0)
        token = nn.Embed(
            shape.vocabulary, shape.width, self.dtype, embedding_init=unit, name="token"
        )

        def stack(name: str, tokens: jax.Array, context: jax.Array | None) -> jax.Array:
            length, decodes = tokens.shape[1], context is not None
            table = self.param(f"{name}_bias", small_normal, (_BUCKETS, shape.heads))
            bias = jnp.moveaxis(table[buckets(length, length, not decodes)], -1, 0)
            mask, x = causal_mask(length) if decodes else None, token(tokens)
            for i in range(shape.layers):
                x = Block(shape, self.dtype, name=f"{name}_{i}")(x, context, mask, bias)
            return nn.RMSNorm(epsilon=1e-6, dtype=self.dtype, name=f"{name}_norm")(x)

        x = stack("decoder", written, stack("encoder", read, None))
        return token.attend(x * shape.width**-0.5)


def t5(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """T5 small with Adafactor. A batch is tokens to read and tokens to write."""
    shape = SHAPES[size]

    # Tokens are whole numbers: the bias of the scores is hostile instead.
    read = whole((shape.batch, shape.read), shape.vocabulary)
    return network_case(
        "T5 small",
        T5(shape, dtype),
        drawn(read, whole((shape.batch, shape.written + 1), shape.vocabulary)),
        optax.adafactor(1e-3),
        reads=lambda batch: (batch[0], batch[1][:, :-1]),
        loss=lambda logits, batch: cross_entropy(logits, batch[1][:, 1:]),
        weights=hostile_leaf("encoder_bias"),
    )
