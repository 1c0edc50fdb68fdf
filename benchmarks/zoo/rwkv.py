"""RWKV-4: a recurrence of exponentials in place of attention, six layers of the 169M model.

Time mixing with a numerator, a denominator and their common exponent carried from position to
position, in float32 also by hand; channel mixing with squared ReLUs. Eight sequences of 512 tokens;
six layers of the published twelve.

References:
    Peng et al., "RWKV: Reinventing RNNs for the Transformer Era" (2023).
"""

from __future__ import annotations

import functools
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.zoo.case import Size, TrainCase, at_least_float32
from benchmarks.zoo.gpt2 import language_model_case
from benchmarks.zoo.layers import Dtype, small_normal

Shape = namedtuple("Shape", "batch length layers width vocabulary")
"""Numbers of an RWKV and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(8, 512, 6, 768, 50277),
    "cpu": Shape(2, 64, 2, 256, 4096),
    "tiny": Shape(8, 12, 2, 32, 64),
}

Carried = tuple[jax.Array, jax.Array, jax.Array]
"""Numerator, denominator, and the exponent that both are divided by."""


def weighted(keys: jax.Array, values: jax.Array, decay: jax.Array, now: jax.Array) -> jax.Array:
    """Means of the values so far, with weights ``exp(key)`` that decay with the distance.

    Args:
        keys: (length, batch, width), as the values.
        values: what is averaged.
        decay: (width,), how much the logarithm of a weight grows in one position: below 0.
        now: (width,), what is added to the key of the present position.

    Returns:
        (length, batch, width).
    """

    def step(carried: Carried, given: tuple[jax.Array, jax.Array]) -> tuple[Carried, jax.Array]:
        above, below, highest = carried
        key, value = given
        top = jnp.maximum(highest, now + key)
        old, new = jnp.exp(highest - top), jnp.exp(now + key - top)
        shown = (old * above + new * value) / (old * below + new)
        top = jnp.maximum(highest + decay, key)
        old, new = jnp.exp(highest + decay - top), jnp.exp(key - top)
        return (old * above + new * value, old * below + new, top), shown

    zeros = jnp.zeros_like(keys[0])
    _, shown = jax.lax.scan(step, (zeros, zeros, zeros - 1e30), (keys, values))
    return shown


class _Mix(nn.Module):
    """Reads each position together with the one before."""

    @nn.compact
    def __call__(self, x: jax.Array, *names: str) -> list[jax.Array]:
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        found = []
        for name in names:
            share = self.param(name, nn.initializers.constant(0.5), (x.shape[-1],)).astype(x.dtype)
            found.append(before + share * (x - before))
        return found


class Block(nn.Module):
    """Time mixing and channel mixing, each after a layer norm, with residuals."""

    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, length, width) to the same."""
        width = x.shape[-1]
        dense = functools.partial(nn.Dense, use_bias=False, dtype=self.dtype)
        norm = functools.partial(nn.LayerNorm, epsilon=1e-5, dtype=self.dtype)
        forkey, forvalue, forgate = _Mix(name="time")(norm()(x), "key", "value", "gate")
        key, value = dense(width, name="key")(forkey), dense(width, name="value")(forvalue)
        keys, values = (jnp.swapaxes(at_least_float32(y), 0, 1) for y in (key, value))
        decay = self.param("decay", nn.initializers.normal(1.0), (width,)).astype(keys.dtype)
        now = self.param("now", nn.initializers.normal(0.3), (width,)).astype(keys.dtype)
        found = weighted(keys, values, -jnp.exp(decay), now)
        found = jnp.swapaxes(found, 0, 1).astype(x.dtype)
        gate = nn.sigmoid(dense(width, name="gate")(forgate))
        x = x + dense(width, name="out")(gate * found)
        forkey, forgate = _Mix(name="channels")(norm()(x), "key", "gate")
        y = jnp.square(nn.relu(dense(4 * width, name="up")(forkey)))
        gate = nn.sigmoid(dense(width, name="channel_gate")(forgate))
        return x + gate * dense(width, name="down")(y)


class RWKV(nn.Module):
    """Embeddings after a norm, blocks, a norm, logits."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        shape = self.shape
        norm = functools.partial(nn.LayerNorm, epsilon=1e-5, dtype=self.dtype)
        token = nn.Embed(
            shape.vocabulary, shape.width, self.dtype, embedding_init=small_normal, name="token"
        )
        x = norm()(token(tokens))
        for i in range(shape.layers):
            x = Block(self.dtype, name=f"layer_{i}")(x)
        return nn.Dense(shape.vocabulary, use_bias=False, dtype=self.dtype, name="head")(norm()(x))


def rwkv(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Six layers of RWKV-4 with AdamW."""
    shape = SHAPES[size]
    return language_model_case("RWKV-4", RWKV(shape, dtype), shape, "token")
