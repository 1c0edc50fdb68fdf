"""Mamba: a selective scan in place of attention, four layers of the width of the 130M model.

A recurrence with a state of 16 numbers for each of 1536 channels, in float32 also by hand; chunks
of 64 positions are scanned in parallel, one chunk after another, and computed again in the backward
pass instead of being kept. Eight sequences of 1024 tokens; four layers of the published 24.

References:
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023).
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.zoo.case import Size, TrainCase, at_least_float32
from benchmarks.zoo.gpt2 import language_model_case
from benchmarks.zoo.layers import Dtype, small_normal

Shape = namedtuple(
    "Shape", "batch length layers width vocabulary chunk state window", defaults=(16, 4)
)
"""Numbers of a Mamba and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(8, 1024, 4, 768, 50280, 64),
    "cpu": Shape(2, 128, 2, 192, 4096, 32),
    "tiny": Shape(4, 16, 2, 32, 64, 8, state=4),
}


def selective_scan(kept: jax.Array, given: jax.Array, shown: jax.Array, chunk: int) -> jax.Array:
    """The outputs of ``h[t] = kept[t] * h[t - 1] + given[t]``, read by ``shown[t]``.

    Args:
        kept: (length, batch, channels, state), as are the terms ``given``.
        given: what is added.
        shown: (length, batch, state).
        chunk: how many positions are scanned in parallel; divides the length.

    Returns:
        (length, batch, channels).
    """

    def joined(
        left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(
        state: jax.Array, part: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        kept, given, shown = part
        product, added = jax.lax.associative_scan(joined, (kept, given))
        states = product * state + added
        return states[-1], jnp.einsum("tbcs,tbs->tbc", states, shown)

    parts = [x.reshape(-1, chunk, *x.shape[1:]) for x in (kept, given, shown)]
    _, found = jax.lax.scan(step, jnp.zeros_like(given[0]), tuple(parts))
    return found.reshape(-1, *found.shape[2:])


class Mixer(nn.Module):
    """A short convolution and a selective scan, gated."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, length, width) to the same."""
        shape, width = self.shape, x.shape[-1]
        channels, rank = 2 * width, math.ceil(width / 16)
        dense = functools.partial(nn.Dense, use_bias=False, dtype=self.dtype)
        x, gate = jnp.split(dense(2 * channels, name="in")(x), 2, axis=-1)
        window: tuple[int, ...] = (shape.window,)
        conv = nn.Conv(
            channels, window, padding="CAUSAL", feature_group_count=channels, dtype=self.dtype
        )
        x = nn.silu(conv(x))
        made = dense(rank + 2 * shape.state, name="select")(x)
        low, enter, shown = jnp.split(made, [rank, rank + shape.state], axis=-1)
        wide, enter, shown = (at_least_float32(y) for y in (x, enter, shown))
        step = nn.Dense(
            channels, dtype=self.dtype, bias_init=nn.initializers.constant(-4.6), name="step"
        )
        time = nn.softplus(at_least_float32(step(low)))
        rates = self.param("rates", _rates, (channels, shape.state)).astype(time.dtype)
        skip = self.param("skip", nn.initializers.ones, (channels,)).astype(time.dtype)
        kept = jnp.exp(-time[..., None] * jnp.exp(rates))
        given = (time * wide)[..., None] * enter[:, :, None]
        kept, given, shown = (jnp.swapaxes(y, 0, 1) for y in (kept, given, shown))
        found = jnp.swapaxes(selective_scan(kept, given, shown, shape.chunk), 0, 1)
        mixed = (found + skip * wide).astype(x.dtype) * nn.silu(gate)
        return dense(width, name="out")(mixed)


def _rates(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    del key
    return jnp.broadcast_to(jnp.log(jnp.arange(1, shape[-1] + 1, dtype=dtype)), shape)


class Mamba(nn.Module):
    """Embeddings, mixers after RMS norms, the token embedding again as the head."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        shape = self.shape
        norm = functools.partial(nn.RMSNorm, epsilon=1e-5, dtype=self.dtype)
        token = nn.Embed(
            shape.vocabulary, shape.width, self.dtype, embedding_init=small_normal, name="token"
        )
        x = token(tokens)
        for i in range(shape.layers):
            x = x + Mixer(shape, self.dtype, name=f"layer_{i}")(norm()(x))
        return token.attend(norm()(x))


def mamba(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Four layers of Mamba with AdamW."""
    shape = SHAPES[size]
    return language_model_case("Mamba", Mamba(shape, dtype), shape, "token")
