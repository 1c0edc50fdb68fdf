"""A small residual network with batch normalisation, in training mode.

References:
    He et al., "Deep Residual Learning for Image Recognition" (2016).
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.models.case import INPUTS, Case, Tree, cross_entropy


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut."""

    features: int
    stride: int
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, channels) to ``features`` channels."""
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = functools.partial(nn.BatchNorm, use_running_average=False, dtype=self.dtype)
        strides = (self.stride, self.stride)
        y = nn.relu(norm()(conv(self.features, (3, 3), strides=strides)(x)))
        y = norm()(conv(self.features, (3, 3))(y))
        if x.shape != y.shape:
            x = norm()(conv(self.features, (1, 1), strides=strides)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """A stem, stages of residual blocks, a mean over the image, a dense layer."""

    stages: tuple[int, ...] = (1, 1, 1)
    features: int = 16
    classes: int = 10
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        x = nn.Conv(self.features, (3, 3), use_bias=False, dtype=self.dtype)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False, dtype=self.dtype)(x))
        for stage, blocks in enumerate(self.stages):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = ResidualBlock(self.features * 2**stage, stride, self.dtype)(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.classes, dtype=self.dtype)(x)


def small_resnet(
    dtype: Any = None, *, batch: int = 16, size: int = 16, stages: tuple[int, ...] = (1, 1, 1)
) -> Case:
    """A ResNet of three stages on 16 x 16 images."""
    model = ResNet(stages=stages, dtype=dtype)

    def variables_of(key: jax.Array) -> Tree:
        return model.init(key, jnp.zeros((1, size, size, 3), jnp.float32))

    # Running statistics are written, not read, while training.
    statistics = jax.eval_shape(variables_of, jax.random.key(0))["batch_stats"]

    def loss(variables: Tree, data: tuple[jax.Array, jax.Array]) -> jax.Array:
        images, labels = data
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), statistics)
        logits, _ = model.apply(
            {"params": variables, "batch_stats": zeros}, images, mutable=["batch_stats"]
        )
        return cross_entropy(logits, labels)

    def init(key: jax.Array) -> Tree:
        return variables_of(key)["params"]

    def draw(key: jax.Array, inputs: str) -> tuple[jax.Array, jax.Array]:
        first, second = jax.random.split(key)
        images = INPUTS[inputs](first, (batch, size, size, 3))
        return images, jax.random.randint(second, (batch,), 0, model.classes)

    return Case("ResNet", loss, init, draw)
