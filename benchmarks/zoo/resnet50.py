"""ResNet-50 (v1.5) on ImageNet: 25.6 million parameters, 64 images of 224 x 224.

Batch normalisation with running statistics; SGD with Nesterov momentum and weight decay.

References:
    He et al., "Deep Residual Learning for Image Recognition" (2016).
    Goyal et al., "Accurate, Large Minibatch SGD" (2017): stride in the 3 x 3 convolution, settings.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, TrainCase, drawn, network_case, numbers, whole
from benchmarks.zoo.layers import Dtype

_he_normal = nn.initializers.variance_scaling(2.0, "fan_out", "truncated_normal")


_ONE_AROUND: Any = ((1, 1), (1, 1))

Shape = namedtuple("Shape", "batch image stages width classes")
"""Numbers of an image classifier and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(64, 224, (3, 4, 6, 3), 64, 1000),
    "cpu": Shape(16, 64, (1, 1, 1, 1), 64, 100),
    "tiny": Shape(16, 32, (1, 1), 8, 10),
}


def _batch_norm(running: bool, dtype: Dtype) -> nn.BatchNorm:
    return nn.BatchNorm(use_running_average=running, momentum=0.9, epsilon=1e-5, dtype=dtype)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut."""

    features: int
    stride: int
    dtype: Dtype = None
    running: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, channels) to four times ``features`` channels."""
        conv = functools.partial(nn.Conv, use_bias=False, kernel_init=_he_normal, dtype=self.dtype)
        norm = functools.partial(_batch_norm, self.running, self.dtype)
        strides = (self.stride, self.stride)
        y = nn.relu(norm()(conv(self.features, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.features, (3, 3), strides=strides)(y)))
        y = norm()(conv(4 * self.features, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(4 * self.features, (1, 1), strides=strides)(x))
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """A stem, stages of bottlenecks, the mean over the image, a dense layer.

    Attributes:
        shape: of the model.
        dtype: the type of activations.
        running: norms use running statistics, as in a prediction.
    """

    shape: Shape
    dtype: Dtype = None
    running: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        x = nn.Conv(
            self.shape.width,
            (7, 7),
            strides=(2, 2),
            padding=[(3, 3), (3, 3)],
            use_bias=False,
            kernel_init=_he_normal,
            dtype=self.dtype,
        )(x)
        x = nn.relu(_batch_norm(self.running, self.dtype)(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=_ONE_AROUND)
        for stage, blocks in enumerate(self.shape.stages):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Bottleneck(self.shape.width * 2**stage, stride, self.dtype, self.running)(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.shape.classes, dtype=self.dtype)(x)


def classifier_case(
    name: str, model: nn.Module, shape: Any, optimizer: optax.GradientTransformation
) -> TrainCase:
    """A case of a network that classifies the images of a shape's ``batch``."""
    images = numbers(shape.batch, shape.image, shape.image, 3)
    draw = drawn(images, whole((shape.batch,), shape.classes))
    return network_case(name, model, draw, optimizer)


def resnet50(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """ResNet-50."""
    shape = SHAPES[size]
    sgd = optax.sgd(0.1, momentum=0.9, nesterov=True)
    optimizer = optax.chain(optax.add_decayed_weights(1e-4), sgd)
    return classifier_case("ResNet-50", ResNet50(shape, dtype), shape, optimizer)
