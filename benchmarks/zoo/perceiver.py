"""A Perceiver on ImageNet: 512 latents read 50,176 pixels twice, 8 images of 224 x 224.

Pixels with Fourier features of their place, cross-attention of one head from the latents, three
blocks of self-attention after each reading.

References:
    Jaegle et al., "Perceiver: General Perception with Iterative Attention" (2021); latents of half
    the published width, two readings of the published eight.
"""

from __future__ import annotations

import functools
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.zoo.case import Size, TrainCase
from benchmarks.zoo.layers import Block, Dtype, Perceptron, attend, small_normal
from benchmarks.zoo.resnet50 import classifier_case

Shape = namedtuple("Shape", "batch image bands readings layers latents width heads classes")
"""Numbers of a perceiver and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(8, 224, 64, 2, 3, 512, 512, 8, 1000),
    "cpu": Shape(4, 48, 16, 1, 2, 96, 192, 4, 100),
    "tiny": Shape(8, 8, 4, 1, 1, 8, 32, 4, 10),
}


def places(image: int, bands: int) -> np.ndarray:
    """(image * image, 2 + 4 * bands) Fourier features of the place of each pixel."""
    line = np.linspace(-1.0, 1.0, image)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    angles = np.pi * grid[..., None] * np.linspace(1.0, image / 2, bands)
    parts = [grid[..., None], np.sin(angles), np.cos(angles)]
    return np.concatenate(parts, axis=-1).reshape(image * image, -1).astype(np.float32)


class Reading(nn.Module):
    """Cross-attention from the latents to the pixels, and a perceptron, with residuals."""

    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, pixels: jax.Array) -> jax.Array:
        """Maps (batch, latents, width) latents and (batch, pixels, features) to latents."""
        norm = functools.partial(nn.LayerNorm, epsilon=1e-5, dtype=self.dtype)
        width, y = x.shape[-1], norm()(pixels)
        dense = functools.partial(nn.Dense, dtype=self.dtype, kernel_init=small_normal)
        features = pixels.shape[-1]
        query, key, value = (dense(features)(z)[:, :, None] for z in (norm()(x), y, y))
        x = x + dense(width)(attend(query, key, value)[:, :, 0])
        return x + Perceptron(width, self.dtype)(norm()(x))


class Perceiver(nn.Module):
    """Readings with blocks between, the mean of the latents, a dense layer."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        shape, batch = self.shape, images.shape[0]
        pixels = images.reshape(batch, -1, images.shape[-1])
        place = jnp.asarray(places(shape.image, shape.bands), pixels.dtype)
        place = jnp.broadcast_to(place, (batch, *place.shape))
        pixels = jnp.concatenate([pixels, place], axis=-1)
        kind = pixels.dtype if self.dtype is None else self.dtype
        latents = self.param("latents", small_normal, (shape.latents, shape.width)).astype(kind)
        x = jnp.broadcast_to(latents, (batch, *latents.shape))
        for reading in range(shape.readings):
            x = Reading(self.dtype, name=f"reading_{reading}")(x, pixels)
            for i in range(shape.layers):
                x = Block(shape.heads, self.dtype, name=f"block_{reading}_{i}")(x)
        x = jnp.mean(nn.LayerNorm(epsilon=1e-5, dtype=self.dtype)(x), axis=1)
        return nn.Dense(shape.classes, dtype=self.dtype)(x)


def perceiver(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A Perceiver with LAMB, as published."""
    shape = SHAPES[size]
    optimizer = optax.lamb(4e-3, weight_decay=0.1)
    return classifier_case("Perceiver", Perceiver(shape, dtype), shape, optimizer)
