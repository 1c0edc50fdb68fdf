"""A diffusion transformer, DiT-B/2 for 256 x 256 images: 130 million parameters, 64 latents.

Blocks whose norms are scaled and shifted, and whose residuals are gated, by time and class (adaLN);
the training step of :mod:`benchmarks.zoo.unet`, with AdamW. The published model also predicts a
variance; this one predicts the noise alone.

References:
    Peebles and Xie, "Scalable Diffusion Models with Transformers" (2023).
"""

from __future__ import annotations

import functools
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, TrainCase
from benchmarks.zoo.layers import Dtype, Perceptron, SelfAttention, small_normal
from benchmarks.zoo.unet import denoising_case, sinusoids

Shape = namedtuple(
    "Shape", "batch latent patch layers width heads classes gate", defaults=(1000, 0.02)
)
"""Numbers of a DiT and its batch; ``gate`` is the standard deviation of the weights that make
scales, shifts and gates. The published 0 would leave all blocks without a gradient."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(64, 32, 2, 12, 768, 12),
    "cpu": Shape(4, 32, 4, 4, 256, 4, classes=100),
    "tiny": Shape(8, 8, 2, 2, 64, 4, classes=10, gate=0.1),
}


class Block(nn.Module):
    """A transformer block whose norms and residuals obey time and class."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, told: jax.Array) -> jax.Array:
        """Maps (batch, length, width) to the same; ``told`` is (batch, width)."""
        width = x.shape[-1]
        gate = nn.initializers.normal(self.shape.gate)
        made = nn.Dense(6 * width, kernel_init=gate, dtype=self.dtype)(nn.silu(told))
        shift, scale, open_, shift2, scale2, open2 = jnp.split(made[:, None], 6, axis=-1)
        norm = functools.partial(
            nn.LayerNorm, epsilon=1e-6, use_scale=False, use_bias=False, dtype=self.dtype
        )
        y = SelfAttention(self.shape.heads, self.dtype)(norm()(x) * (1 + scale) + shift)
        x = x + open_ * y
        y = Perceptron(4 * width, self.dtype)(norm()(x) * (1 + scale2) + shift2)
        return x + open2 * y


class DiT(nn.Module):
    """Patches and positions, blocks told time and class, patches back to an image."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, times: jax.Array, labels: jax.Array) -> jax.Array:
        """Maps noised latents (batch, height, width, 4), times and labels to the noise."""
        shape, channels = self.shape, x.shape[-1]
        dense = functools.partial(nn.Dense, kernel_init=small_normal, dtype=self.dtype)
        told = dense(shape.width)(nn.silu(dense(shape.width)(sinusoids(times, 256, x.dtype))))
        told = told + nn.Embed(
            shape.classes, shape.width, embedding_init=small_normal, dtype=self.dtype
        )(labels)
        patch = (shape.patch, shape.patch)
        y = nn.Conv(shape.width, patch, strides=patch, padding="VALID", dtype=self.dtype)(x)
        batch, rows, columns, width = y.shape
        y = y.reshape(batch, rows * columns, width)
        y = y + sinusoids(jnp.arange(rows * columns), width, y.dtype)
        for i in range(shape.layers):
            y = Block(shape, self.dtype, name=f"layer_{i}")(y, told)
        gate = nn.initializers.normal(shape.gate)
        made = nn.Dense(2 * width, kernel_init=gate, dtype=self.dtype)(nn.silu(told))
        shift, scale = jnp.split(made[:, None], 2, axis=-1)
        y = nn.LayerNorm(epsilon=1e-6, use_scale=False, use_bias=False, dtype=self.dtype)(y)
        y = dense(shape.patch**2 * channels)(y * (1 + scale) + shift)
        y = y.reshape(batch, rows, columns, shape.patch, shape.patch, channels)
        return y.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)


def diffusion(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """DiT-B/2. A batch is latents, labels and a seed."""
    shape = SHAPES[size]
    return denoising_case(
        "Diffusion, DiT-B/2",
        DiT(shape, dtype),
        (shape.batch, shape.latent, shape.latent, 4),
        optax.adamw(1e-4, weight_decay=0.0),
        labels=shape.classes,
    )
