"""Networks of images, 32 of 224 x 224: convolutions next to those of the zoo.

References:
    Simonyan and Zisserman, "Very Deep Convolutional Networks" (2015): VGG.
    He et al., "Identity Mappings in Deep Residual Networks" (2016): norms before convolutions.
    Huang et al., "Densely Connected Convolutional Networks" (2017).
    Kingma and Welling, "Auto-Encoding Variational Bayes" (2014).
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.zoo.case import Size, TrainCase, at_least_float32, drawn, numbers, whole
from benchmarks.zoo.layers import Dtype
from benchmarks.zoo.small import Batch, Draw, small_case


class Images(NamedTuple):
    """Numbers of a batch of images."""

    batch: int
    image: int
    classes: int

    @property
    def draw(self) -> Draw:
        """Images and their classes."""
        images = numbers(self.batch, self.image, self.image, 3)
        return drawn(images, whole((self.batch,), self.classes))


IMAGES: dict[Size, Images] = {"full": Images(32, 224, 1000), "tiny": Images(4, 32, 10)}
Stages = tuple[tuple[int, int], ...]
"""Channels (or growth), and how many layers of them."""


def _norm(dtype: Dtype) -> nn.BatchNorm:
    return nn.BatchNorm(use_running_average=False, dtype=dtype)


class Head(nn.Module):
    """The mean over an image, and a dense layer."""

    classes: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, channels) to (batch, classes) logits in float32."""
        x = nn.Dense(self.classes, dtype=self.dtype)(x.mean((1, 2)))
        return at_least_float32(x)


class VGG(nn.Module):
    """3 x 3 convolutions with biases, with or without batch norms between.

    Attributes:
        stages: divided by max pools.
        hidden: width of the dense layer before the last.
        classes: how many.
        norms: whether a norm follows each convolution.
        dtype: see ``benchmarks.zoo.layers``.
    """

    stages: Stages
    hidden: int
    classes: int
    norms: bool
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images to logits."""
        for channels, layers in self.stages:
            for _ in range(layers):
                x = nn.Conv(channels, (3, 3), dtype=self.dtype)(x)
                x = nn.relu(_norm(self.dtype)(x) if self.norms else x)
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(self.hidden, dtype=self.dtype)(x.mean((1, 2))))
        return at_least_float32(nn.Dense(self.classes, dtype=self.dtype)(x))


class Bottlenecks(nn.Module):
    """A ResNet of bottlenecks whose convolutions have biases, though a norm follows each."""

    stages: Stages
    classes: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images to logits."""
        conv = functools.partial(nn.Conv, dtype=self.dtype)
        norm = functools.partial(_norm, self.dtype)
        x = nn.relu(norm()(conv(self.stages[0][0], (7, 7), (2, 2))(x)))
        for stage, (channels, blocks) in enumerate(self.stages):
            for block in range(blocks):
                strides = (2, 2) if stage > 0 and block == 0 else (1, 1)
                y = nn.relu(norm()(conv(channels, (1, 1), strides)(x)))
                y = nn.relu(norm()(conv(channels, (3, 3))(y)))
                y = norm()(conv(4 * channels, (1, 1))(y))
                if block == 0:
                    x = norm()(conv(4 * channels, (1, 1), strides)(x))
                x = nn.relu(x + y)
        return Head(self.classes, self.dtype)(x)


class Preactivation(nn.Module):
    """Residual blocks of group norm, SiLU and convolution, in this order."""

    stages: Stages
    groups: int
    classes: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images to logits."""
        conv = functools.partial(nn.Conv, kernel_size=(3, 3), dtype=self.dtype)
        norm = functools.partial(nn.GroupNorm, self.groups, dtype=self.dtype)
        x = conv(self.stages[0][0])(x)
        for channels, blocks in self.stages:
            x = conv(channels, strides=(2, 2))(x)
            for _ in range(blocks):
                y = conv(channels)(nn.silu(norm()(x)))
                x = x + conv(channels)(nn.silu(norm()(y)))
        return Head(self.classes, self.dtype)(x)


class DenseNet(nn.Module):
    """Layers that each read all features so far, and join theirs to them.

    Attributes:
        blocks: how many layers between two transitions, which halve features and image.
        growth: how many features a layer adds.
        classes: how many.
        dtype: see ``benchmarks.zoo.layers``.
    """

    blocks: tuple[int, ...]
    growth: int
    classes: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images to logits."""
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = functools.partial(_norm, self.dtype)
        x = conv(2 * self.growth, (7, 7), (2, 2))(x)
        for layers in self.blocks:
            for _ in range(layers):
                y = conv(4 * self.growth, (1, 1))(nn.relu(norm()(x)))
                y = conv(self.growth, (3, 3))(nn.relu(norm()(y)))
                x = jnp.concatenate([x, y], axis=-1)
            x = conv(x.shape[-1] // 2, (1, 1))(nn.relu(norm()(x)))
            x = nn.avg_pool(x, (2, 2), (2, 2))
        return Head(self.classes, self.dtype)(x)


class VAE(nn.Module):
    """Strided convolutions to a mean and a logarithm of a variance, and back from a draw."""

    channels: tuple[int, ...]
    latents: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, images: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Maps images to images, the means, and the logarithms of the variances, all float32."""
        x = images
        for channels in self.channels:
            x = nn.leaky_relu(nn.Conv(channels, (4, 4), (2, 2), dtype=self.dtype)(x))
        small = x.shape[1:]
        x = x.reshape(x.shape[0], -1)
        mean = at_least_float32(nn.Dense(self.latents, dtype=self.dtype)(x))
        spread = at_least_float32(nn.Dense(self.latents, dtype=self.dtype)(x))
        noise = jax.random.normal(self.make_rng("dropout"), mean.shape, mean.dtype)
        drawn = mean + jnp.exp(0.5 * spread) * noise
        x = nn.Dense(math.prod(small), dtype=self.dtype)(drawn).reshape(-1, *small)
        for channels in (*self.channels[-2::-1], images.shape[-1]):
            x = nn.ConvTranspose(channels, (4, 4), (2, 2), dtype=self.dtype)(nn.leaky_relu(x))
        return at_least_float32(x), mean, spread


def evidence(found: tuple[jax.Array, jax.Array, jax.Array], batch: Batch) -> jax.Array:
    """The negative evidence lower bound of images with a variance of 1/2."""
    images, mean, spread = found
    error = ((images - batch[0]) ** 2).sum((1, 2, 3)).mean()
    return error - 0.5 * (1 + spread - mean**2 - jnp.exp(spread)).sum(-1).mean()


_VGG: dict[Size, tuple[Stages, int]] = {
    "full": (((64, 2), (128, 2), (256, 3), (512, 3)), 1024),
    "tiny": (((8, 1), (16, 2)), 32),
}
_STAGES: dict[Size, Stages] = {"full": ((64, 2), (128, 2), (256, 2)), "tiny": ((8, 1), (16, 2))}


def vgg(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """VGG of ten convolutions, without norms."""
    images = IMAGES[size]
    return small_case("VGG", VGG(*_VGG[size], images.classes, False, dtype), images.draw)


def vgg_norms(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """The same with batch norms."""
    images = IMAGES[size]
    return small_case("VGG, norms", VGG(*_VGG[size], images.classes, True, dtype), images.draw)


def bottleneck(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A ResNet of six bottlenecks with biases."""
    images = IMAGES[size]
    return small_case("bottlenecks", Bottlenecks(_STAGES[size], images.classes, dtype), images.draw)


def preactivation(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A ResNet of six blocks with norms before convolutions."""
    images, groups = IMAGES[size], 32 if size == "full" else 4
    model = Preactivation(_STAGES[size], groups, images.classes, dtype)
    return small_case("pre-activation", model, images.draw)


def densenet(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A DenseNet of ten layers."""
    images = IMAGES[size]
    blocks, growth = ((4, 6), 32) if size == "full" else ((2, 2), 8)
    return small_case("DenseNet", DenseNet(blocks, growth, images.classes, dtype), images.draw)


def vae(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A variational autoencoder of six convolutions."""
    channels, latents = ((64, 128, 256), 128) if size == "full" else ((8, 16), 8)
    return small_case("VAE", VAE(channels, latents, dtype), IMAGES[size].draw, evidence)
