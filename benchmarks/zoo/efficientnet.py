"""EfficientNet-B0 on ImageNet: 5.3 million parameters, 64 images of 224 x 224.

Inverted bottlenecks: a 1 x 1 convolution that widens, a depthwise one, squeeze and excitation, a
1 x 1 convolution that narrows; batch norms and SiLU between. Without stochastic depth and dropout.

References:
    Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (2019).
"""

from __future__ import annotations

import dataclasses
import functools
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, TrainCase
from benchmarks.zoo.layers import Dtype
from benchmarks.zoo.resnet50 import classifier_case

_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "truncated_normal")


@dataclasses.dataclass(frozen=True)
class Stage:
    """Blocks of one width; ``stride`` is that of the first."""

    blocks: int
    width: int
    widen: int
    kernel: int
    stride: int


Shape = namedtuple("Shape", "batch image stem stages head classes")
"""Numbers of an EfficientNet and its batch."""

_B0 = (
    Stage(1, 16, 1, 3, 1),
    Stage(2, 24, 6, 3, 2),
    Stage(2, 40, 6, 5, 2),
    Stage(3, 80, 6, 3, 2),
    Stage(3, 112, 6, 5, 1),
    Stage(4, 192, 6, 5, 2),
    Stage(1, 320, 6, 3, 1),
)
SHAPES: dict[Size, Shape] = {
    "full": Shape(64, 224, 32, _B0, 1280, 1000),
    "cpu": Shape(8, 64, 32, tuple(dataclasses.replace(s, blocks=1) for s in _B0[:5]), 256, 100),
    "tiny": Shape(16, 16, 8, (Stage(1, 8, 1, 3, 1), Stage(2, 16, 4, 5, 2)), 32, 10),
}


def normed(x: jax.Array, dtype: Dtype) -> jax.Array:
    """A batch norm with the published settings, within a compact module."""
    norm = nn.BatchNorm(use_running_average=False, momentum=0.99, epsilon=1e-3, dtype=dtype)
    return norm(x)


class Excitation(nn.Module):
    """Scales the channels of an image by what a small perceptron makes of their means."""

    hidden: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, channels) to the same."""
        dense = functools.partial(nn.Dense, kernel_init=_fan_out, dtype=self.dtype)
        mean = jnp.mean(x, axis=(1, 2), keepdims=True)
        return x * nn.sigmoid(dense(x.shape[-1])(nn.silu(dense(self.hidden)(mean))))


class Bottleneck(nn.Module):
    """One inverted bottleneck, with a residual where the shape stays."""

    stage: Stage
    stride: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, channels) to the stage's width."""
        conv = functools.partial(nn.Conv, use_bias=False, kernel_init=_fan_out, dtype=self.dtype)
        narrow, wide, window = x.shape[-1], self.stage.widen * x.shape[-1], self.stage.kernel
        y = x
        if wide != narrow:
            y = nn.silu(normed(conv(wide, (1, 1))(y), self.dtype))
        strides = (self.stride, self.stride)
        y = conv(wide, (window, window), strides=strides, feature_group_count=wide)(y)
        y = nn.silu(normed(y, self.dtype))
        y = Excitation(max(1, narrow // 4), self.dtype)(y)
        y = normed(conv(self.stage.width, (1, 1))(y), self.dtype)
        return x + y if x.shape == y.shape else y


class EfficientNet(nn.Module):
    """A stem, stages of bottlenecks, a 1 x 1 convolution, the mean over the image, logits."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        conv = functools.partial(nn.Conv, use_bias=False, kernel_init=_fan_out, dtype=self.dtype)
        x = nn.silu(normed(conv(self.shape.stem, (3, 3), strides=(2, 2))(x), self.dtype))
        for stage in self.shape.stages:
            for block in range(stage.blocks):
                x = Bottleneck(stage, stage.stride if block == 0 else 1, self.dtype)(x)
        x = nn.silu(normed(conv(self.shape.head, (1, 1))(x), self.dtype))
        return nn.Dense(self.shape.classes, dtype=self.dtype)(jnp.mean(x, axis=(1, 2)))


def efficientnet(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """EfficientNet-B0 with RMSProp, as published."""
    shape = SHAPES[size]
    rmsprop = optax.rmsprop(0.016, decay=0.9, momentum=0.9, eps=1e-3)
    optimizer = optax.chain(optax.add_decayed_weights(1e-5), rmsprop)
    return classifier_case("EfficientNet-B0", EfficientNet(shape, dtype), shape, optimizer)
