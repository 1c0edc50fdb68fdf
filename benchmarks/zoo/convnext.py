"""ConvNeXt-T on ImageNet: 28.6 million parameters, 64 images of 224 x 224.

Depthwise convolutions, layer norms over channels, layer scale; stochastic depth with its published
rate, its coins thrown in the step from a seed in the batch.

References:
    Liu et al., "A ConvNet for the 2020s" (2022).
"""

from __future__ import annotations

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
    network_case,
    numbers,
    seed,
    whole,
)
from benchmarks.zoo.layers import Drop, Dtype, Perceptron, small_normal

Shape = namedtuple("Shape", "batch image depths widths drop classes layer_scale", defaults=(1e-6,))
"""Numbers of a ConvNeXt and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(64, 224, (3, 3, 9, 3), (96, 192, 384, 768), 0.1, 1000),
    "cpu": Shape(4, 64, (1, 1, 1), (48, 96, 192), 0.1, 100),
    # A layer scale of 1e-6 would leave the blocks without a gradient worth comparing.
    "tiny": Shape(8, 16, (1, 1), (16, 32), 0.1, 10, layer_scale=0.5),
}


class Block(nn.Module):
    """A depthwise 7 x 7 convolution, a norm, a perceptron and a scale, with a residual.

    Attributes:
        drop: how likely the block is left out for an image.
        layer_scale: what the scale starts at.
        dtype: the type of activations.
    """

    drop: float
    layer_scale: float
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, channels) to the same."""
        width = x.shape[-1]
        y = nn.Conv(
            width, (7, 7), feature_group_count=width, kernel_init=small_normal, dtype=self.dtype
        )(x)
        y = nn.LayerNorm(epsilon=1e-6, dtype=self.dtype)(y)
        y = Perceptron(4 * width, self.dtype, approximate=False)(y)
        scale = self.param("scale", nn.initializers.constant(self.layer_scale), (width,))
        y = y * scale.astype(y.dtype)
        return x + Drop(self.drop, whole=True)(y)


class ConvNeXt(nn.Module):
    """Patches of 4 x 4, stages of blocks with a norm and a strided convolution between, a head."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        shape = self.shape

        def norm(x: jax.Array) -> jax.Array:
            return nn.LayerNorm(epsilon=1e-6, dtype=self.dtype)(x)

        def shrink(x: jax.Array, width: int, by: int) -> jax.Array:
            window = (by, by)
            return nn.Conv(width, window, window, kernel_init=small_normal, dtype=self.dtype)(x)

        drops = iter(np.linspace(0.0, shape.drop, sum(shape.depths)).tolist())
        x = norm(shrink(x, shape.widths[0], 4))
        for stage, (depth, width) in enumerate(zip(shape.depths, shape.widths, strict=True)):
            if stage > 0:
                x = shrink(norm(x), width, 2)
            for _ in range(depth):
                x = Block(next(drops), shape.layer_scale, self.dtype)(x)
        x = norm(jnp.mean(x, axis=(1, 2)))
        return nn.Dense(shape.classes, kernel_init=small_normal, dtype=self.dtype)(x)


def convnext(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """ConvNeXt-T with AdamW. A batch is images, labels and a seed."""
    shape = SHAPES[size]

    images = numbers(shape.batch, shape.image, shape.image, 3)
    return network_case(
        "ConvNeXt-T",
        ConvNeXt(shape, dtype),
        drawn(images, whole((shape.batch,), shape.classes), seed),
        optax.adamw(4e-3, weight_decay=0.05),
        reads=lambda batch: batch[:1],
        loss=lambda logits, batch: cross_entropy(logits, batch[1]),
        seeded=True,
    )
