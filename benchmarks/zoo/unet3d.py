"""A U-Net in three dimensions for volumes of 128 x 128 x 128: 16 million parameters, batch 2.

Convolutions of 3 x 3 x 3, each after an instance norm and a leaky ReLU; strided ones down, their
transposes up, shortcuts across; the loss is cross-entropy and one minus the Dice score.

References:
    Cicek et al., "3D U-Net" (2016); Isensee et al., "nnU-Net" (2021): norms, widths and the loss.
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
    cross_entropy,
    drawn,
    network_case,
    numbers,
    whole,
)
from benchmarks.zoo.layers import Dtype

Shape = namedtuple("Shape", "batch volume widths classes channels", defaults=(4,))
"""Numbers of a U-Net for volumes and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(2, 128, (32, 64, 128, 256, 320), 4),
    "cpu": Shape(1, 32, (16, 32, 64), 4),
    "tiny": Shape(2, 8, (8, 16), 3, channels=2),
}


class Convolutions(nn.Module):
    """Two convolutions, an instance norm and a leaky ReLU after each."""

    width: int
    stride: int = 1
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, depth, height, width, channels) to ``width`` channels."""
        for stride in (self.stride, 1):
            strides = (stride, stride, stride)
            x = nn.Conv(self.width, (3, 3, 3), strides, dtype=self.dtype)(x)
            x = nn.InstanceNorm(epsilon=1e-5, dtype=self.dtype)(x)
            x = nn.leaky_relu(x, 0.01)
        return x


class UNet3D(nn.Module):
    """Down and up, with a shortcut across on every level."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, depth, height, width, channels) to logits of the classes."""
        widths, across = self.shape.widths, []
        for level, width in enumerate(widths):
            x = Convolutions(width, 1 if level == 0 else 2, self.dtype)(x)
            across.append(x)
        grow = functools.partial(nn.ConvTranspose, strides=(2, 2, 2), dtype=self.dtype)
        for width, other in zip(reversed(widths[:-1]), reversed(across[:-1]), strict=True):
            x = jnp.concatenate([grow(width, (2, 2, 2))(x), other], axis=-1)
            x = Convolutions(width, 1, self.dtype)(x)
        return nn.Conv(self.shape.classes, (1, 1, 1), dtype=self.dtype)(x)


def overlap(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """One minus the mean Dice score of the classes, in float32 (float64 stays)."""
    shares = jax.nn.softmax(at_least_float32(logits))
    wanted = jax.nn.one_hot(labels, logits.shape[-1], dtype=shares.dtype)
    over = tuple(range(1, logits.ndim - 1))
    both = jnp.sum(shares * wanted, axis=over)
    each = jnp.sum(shares, axis=over) + jnp.sum(wanted, axis=over)
    return 1.0 - jnp.mean((2.0 * both + 1e-5) / (each + 1e-5))


def unet3d(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A U-Net for volumes with SGD, as nnU-Net. A batch is volumes and labels of their voxels."""
    shape = SHAPES[size]
    space = (shape.volume,) * 3

    volumes = numbers(shape.batch, *space, shape.channels)
    return network_case(
        "U-Net 3D",
        UNet3D(shape, dtype),
        drawn(volumes, whole((shape.batch, *space), shape.classes)),
        optax.sgd(0.01, momentum=0.99, nesterov=True),
        loss=lambda logits, batch: cross_entropy(logits, batch[1]) + overlap(logits, batch[1]),
    )
