"""A small U-Net with group normalisation: down, up, and a shortcut across at every size.

References:
    Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation" (2015).
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.models.case import INPUTS, Case, Tree, cross_entropy


class UNet(nn.Module):
    """Maps images to per-pixel class logits."""

    features: int = 16
    depth: int = 2
    classes: int = 4
    dtype: Any = None

    def _convolve(self, x: jax.Array, features: int) -> jax.Array:
        for _ in range(2):
            x = nn.Conv(features, (3, 3), dtype=self.dtype)(x)
            x = nn.silu(nn.GroupNorm(num_groups=4, dtype=self.dtype)(x))
        return x

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, 3) to (batch, height, width, classes)."""
        up = functools.partial(
            nn.ConvTranspose, kernel_size=(2, 2), strides=(2, 2), dtype=self.dtype
        )
        across = []
        for level in range(self.depth):
            x = self._convolve(x, self.features * 2**level)
            across.append(x)
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = self._convolve(x, self.features * 2**self.depth)
        for level in reversed(range(self.depth)):
            x = up(self.features * 2**level)(x)
            x = jnp.concatenate([across[level], x], axis=-1)
            x = self._convolve(x, self.features * 2**level)
        return nn.Conv(self.classes, (1, 1), dtype=self.dtype)(x)


def small_unet(dtype: Any = None, *, batch: int = 4, size: int = 16, depth: int = 2) -> Case:
    """A U-Net on 16 x 16 images."""
    model = UNet(depth=depth, dtype=dtype)

    def loss(params: Tree, data: tuple[jax.Array, jax.Array]) -> jax.Array:
        images, labels = data
        logits = model.apply(params, images)
        assert isinstance(logits, jax.Array)
        return cross_entropy(logits, labels)

    def init(key: jax.Array) -> Tree:
        return model.init(key, jnp.zeros((1, size, size, 3)))

    def draw(key: jax.Array, inputs: str) -> tuple[jax.Array, jax.Array]:
        first, second = jax.random.split(key)
        images = INPUTS[inputs](first, (batch, size, size, 3))
        return images, jax.random.randint(second, (batch, size, size), 0, model.classes)

    return Case("U-Net", loss, init, draw)
