"""A Conformer with CTC: 16 pieces of speech of 800 frames, six blocks of the medium model.

Two strided convolutions over the spectrum; blocks of half a perceptron, self-attention, a gated
depthwise convolution with a batch norm, and half a perceptron; the loss sums over all alignments,
in float32 also by hand.

References:
    Gulati et al., "Conformer: Convolution-augmented Transformer for Speech Recognition" (2020); six
    blocks of the published sixteen, sines for positions.
    Graves et al., "Connectionist Temporal Classification" (2006).
"""

from __future__ import annotations

import functools
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import (
    Size,
    TrainCase,
    at_least_float32,
    drawn,
    network_case,
    numbers,
    whole,
)
from benchmarks.zoo.layers import Dtype, SelfAttention
from benchmarks.zoo.unet import sinusoids

Batch = tuple[jax.Array, jax.Array]
"""Spectra and the letters that were said."""

Shape = namedtuple("Shape", "batch frames bands layers width heads window letters vocabulary")
"""Numbers of a Conformer and its batch; ``letters`` are said in each piece."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(16, 800, 80, 6, 256, 4, 31, 64, 1024),
    "cpu": Shape(4, 160, 80, 3, 144, 4, 15, 16, 256),
    "tiny": Shape(4, 32, 16, 1, 32, 4, 5, 3, 12),
}


class Half(nn.Module):
    """Half of a perceptron's result, after a norm."""

    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, length, width) to what is added to it."""
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.silu(nn.Dense(4 * x.shape[-1], dtype=self.dtype)(y))
        return 0.5 * nn.Dense(x.shape[-1], dtype=self.dtype)(y)


class Convolution(nn.Module):
    """A gate, a depthwise convolution over time, a batch norm, a dense layer."""

    window: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, length, width) to what is added to it."""
        width, window = x.shape[-1], (self.window,)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.glu(nn.Dense(2 * width, dtype=self.dtype)(y))
        y = nn.Conv(width, window, feature_group_count=width, dtype=self.dtype)(y)
        norm = nn.BatchNorm(use_running_average=False, momentum=0.9, dtype=self.dtype)
        return nn.Dense(width, dtype=self.dtype)(nn.silu(norm(y)))


class Conformer(nn.Module):
    """A strided front, blocks, logits."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, spectra: jax.Array) -> jax.Array:
        """Maps (batch, frames, bands) to (batch, frames / 4, vocabulary) logits."""
        shape = self.shape
        x = spectra[..., None]
        for _ in range(2):
            x = nn.relu(nn.Conv(shape.width, (3, 3), (2, 2), dtype=self.dtype)(x))
        x = nn.Dense(shape.width, dtype=self.dtype)(x.reshape(*x.shape[:2], -1))
        x = x + sinusoids(jnp.arange(x.shape[1]), shape.width, x.dtype)
        norm = functools.partial(nn.LayerNorm, dtype=self.dtype)
        for _ in range(shape.layers):
            x = x + Half(self.dtype)(x)
            x = x + SelfAttention(shape.heads, self.dtype)(norm()(x))
            x = x + Convolution(shape.window, self.dtype)(x)
            x = norm()(x + Half(self.dtype)(x))
        return nn.Dense(shape.vocabulary, dtype=self.dtype)(x)


def conformer(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A Conformer with AdamW and clipping. A batch is spectra and letters."""
    shape = SHAPES[size]

    def loss(logits: jax.Array, batch: Batch) -> jax.Array:
        wide, letters = at_least_float32(logits), batch[1]
        whole = jnp.zeros(wide.shape[:2], wide.dtype)  # nothing is padded
        said = jnp.zeros(letters.shape, wide.dtype)
        return jnp.mean(optax.ctc_loss(wide, whole, letters, said)) / shape.letters

    spectra = numbers(shape.batch, shape.frames, shape.bands)
    draw = drawn(spectra, whole((shape.batch, shape.letters), shape.vocabulary, 1))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return network_case("Conformer, CTC", Conformer(shape, dtype), draw, optimizer, loss=loss)
