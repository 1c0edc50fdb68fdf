"""Llama 3.2 1B: rotary positions, RMS norms, gated perceptrons, grouped queries.

1.24 billion parameters in 16 blocks, four sequences of 2048 tokens, AdamW after clipping. Rotary
positions are computed in float32, as in the published code.

References:
    Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023).
    Grattafiori et al., "The Llama 3 Herd of Models" (2024).
    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).
"""

from __future__ import annotations

import functools
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.zoo.case import Size, TrainCase, at_least_float32
from benchmarks.zoo.gpt2 import language_model_case
from benchmarks.zoo.layers import Dtype, attend, causal_mask, small_normal

Shape = namedtuple(
    "Shape", "batch length layers width heads groups hidden vocabulary tied", defaults=(True,)
)
"""Numbers of a Llama and its batch; ``tied`` where the embedding is also the head."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(4, 2048, 16, 2048, 32, 8, 8192, 128256),
    "cpu": Shape(4, 128, 4, 256, 8, 2, 704, 4096),
    # Not tied: hostile embeddings should meet the blocks, not the logits.
    "tiny": Shape(8, 32, 2, 64, 4, 2, 176, 128, tied=False),
}


def rotate(x: jax.Array, base: float = 500_000.0) -> jax.Array:
    """Turns each pair of features by an angle that grows with the position, in float32.

    Args:
        x: (batch, length, heads, size).
        base: of the frequencies.
    """
    wide = at_least_float32(x)
    size = x.shape[-1]
    frequency = base ** (-jnp.arange(0, size, 2, dtype=wide.dtype) / size)
    angle = jnp.arange(x.shape[1], dtype=wide.dtype)[:, None, None] * frequency
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(wide, 2, axis=-1)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


class Block(nn.Module):
    """Grouped-query attention and a gated perceptron, each after an RMS norm."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps (batch, length, width) to the same."""
        shape = self.shape
        dense = functools.partial(
            nn.Dense, use_bias=False, kernel_init=small_normal, dtype=self.dtype
        )
        norm = functools.partial(nn.RMSNorm, epsilon=1e-5, dtype=self.dtype)
        batch, length, width = x.shape
        size = width // shape.heads

        def heads(x: jax.Array, count: int, name: str) -> jax.Array:
            return dense(count * size, name=name)(x).reshape(batch, length, count, size)

        y = norm(name="attention_norm")(x)
        query = rotate(heads(y, shape.heads, "query"))
        key = rotate(heads(y, shape.groups, "key"))
        value = heads(y, shape.groups, "value")
        mixed = attend(query, key, value, mask).reshape(batch, length, width)
        x = x + dense(width, name="out")(mixed)
        y = norm(name="perceptron_norm")(x)
        y = nn.silu(dense(shape.hidden, name="gate")(y)) * dense(shape.hidden, name="up")(y)
        return x + dense(width, name="down")(y)


class Llama(nn.Module):
    """Embeddings, blocks, an RMS norm, logits."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        shape = self.shape
        token = nn.Embed(
            shape.vocabulary,
            shape.width,
            dtype=self.dtype,
            embedding_init=small_normal,
            name="token",
        )
        x = token(tokens)
        mask = causal_mask(tokens.shape[1])
        for i in range(shape.layers):
            x = Block(shape, self.dtype, name=f"layer_{i}")(x, mask)
        x = nn.RMSNorm(epsilon=1e-5, dtype=self.dtype)(x)
        if shape.tied:
            return token.attend(x)
        return nn.Dense(shape.vocabulary, use_bias=False, dtype=self.dtype, name="head")(x)


def llama(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Llama 3.2 1B."""
    shape = SHAPES[size]
    return language_model_case("Llama 3.2 1B", Llama(shape, dtype), shape, "token")
