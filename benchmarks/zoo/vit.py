"""ViT-B/16 on ImageNet: 86.6 million parameters, 64 images of 224 x 224.

References:
    Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021).
"""

from __future__ import annotations

from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, TrainCase
from benchmarks.zoo.layers import Block, Dtype, small_normal
from benchmarks.zoo.resnet50 import classifier_case

Shape = namedtuple("Shape", "batch image patch layers width heads classes")
"""Numbers of a vision transformer and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(64, 224, 16, 12, 768, 12, 1000),
    "cpu": Shape(8, 96, 8, 4, 256, 4, 100),
    "tiny": Shape(8, 16, 4, 2, 64, 4, 10),
}


class ViT(nn.Module):
    """Patches, a class token, positions, blocks, a norm, a dense layer on the class token."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        shape = self.shape
        patch = (shape.patch, shape.patch)
        x = nn.Conv(shape.width, patch, strides=patch, padding="VALID", dtype=self.dtype)(images)
        x = x.reshape(x.shape[0], -1, shape.width)
        first = self.param("class", nn.initializers.zeros, (1, 1, shape.width))
        first = jnp.broadcast_to(first, (x.shape[0], 1, shape.width)).astype(x.dtype)
        x = jnp.concatenate([first, x], axis=1)
        x = x + self.param("position", small_normal, (1, *x.shape[1:])).astype(x.dtype)
        for i in range(shape.layers):
            x = Block(shape.heads, self.dtype, approximate=False, epsilon=1e-6, name=f"layer_{i}")(
                x
            )
        x = nn.LayerNorm(epsilon=1e-6, dtype=self.dtype)(x)
        return nn.Dense(shape.classes, dtype=self.dtype)(x[:, 0])


def vit(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """ViT-B/16 with AdamW and clipping."""
    shape = SHAPES[size]
    adamw = optax.adamw(3e-4, weight_decay=0.1)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adamw)
    return classifier_case("ViT-B/16", ViT(shape, dtype), shape, optimizer)
