"""MLP-Mixer S/16 on ImageNet: 18.5 million parameters, 64 images of 224 x 224.

Perceptrons over the patches and over the channels in turn, each after a layer norm.

References:
    Tolstikhin et al., "MLP-Mixer: An all-MLP Architecture for Vision" (2021).
"""

from __future__ import annotations

import functools
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, TrainCase
from benchmarks.zoo.layers import Dtype, small_normal
from benchmarks.zoo.resnet50 import classifier_case

Shape = namedtuple("Shape", "batch image patch layers width over_patches over_channels classes")
"""Numbers of a mixer and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(64, 224, 16, 8, 512, 256, 2048, 1000),
    "cpu": Shape(8, 96, 8, 4, 256, 128, 1024, 100),
    "tiny": Shape(8, 16, 4, 2, 32, 16, 64, 10),
}


class Block(nn.Module):
    """A perceptron over patches and one over channels, with residuals."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, patches, width) to the same."""
        dense = functools.partial(nn.Dense, kernel_init=small_normal, dtype=self.dtype)
        norm = functools.partial(nn.LayerNorm, epsilon=1e-6, dtype=self.dtype)
        y = jnp.swapaxes(norm()(x), 1, 2)
        y = dense(x.shape[1])(nn.gelu(dense(self.shape.over_patches)(y), approximate=False))
        x = x + jnp.swapaxes(y, 1, 2)
        y = nn.gelu(dense(self.shape.over_channels)(norm()(x)), approximate=False)
        return x + dense(x.shape[-1])(y)


class Mixer(nn.Module):
    """Patches, blocks, a norm, the mean over the patches, a dense layer."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        shape = self.shape
        patch = (shape.patch, shape.patch)
        x = nn.Conv(shape.width, patch, strides=patch, padding="VALID", dtype=self.dtype)(images)
        x = x.reshape(x.shape[0], -1, shape.width)
        for i in range(shape.layers):
            x = Block(shape, self.dtype, name=f"layer_{i}")(x)
        x = jnp.mean(nn.LayerNorm(epsilon=1e-6, dtype=self.dtype)(x), axis=1)
        return nn.Dense(shape.classes, dtype=self.dtype)(x)


def mixer(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """MLP-Mixer S/16 with AdamW and clipping."""
    shape = SHAPES[size]
    adamw = optax.adamw(1e-3, weight_decay=0.1)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adamw)
    return classifier_case("MLP-Mixer S/16", Mixer(shape, dtype), shape, optimizer)
