"""The U-Net of DDPM for CIFAR-10, with self-attention: 35.7 million parameters, 128 images.

A training step of denoising diffusion: a time and a noise for each image from a seed in the batch,
the linear schedule, the mean squared error of the predicted noise, Adam after clipping, and an
exponential moving average of the weights.

References:
    Ho et al., "Denoising Diffusion Probabilistic Models" (2020).
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import (
    INPUTS,
    Size,
    TrainCase,
    Tree,
    at_least_float32,
    train_case,
    without_statistics,
)
from benchmarks.zoo.layers import Drop, Dtype, attend

Shape = namedtuple(
    "Shape", "batch image width factors blocks attention groups drop", defaults=(0.1,)
)
"""Numbers of a U-Net and its batch; ``attention`` are the sizes of image that get it."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(128, 32, 128, (1, 2, 2, 2), 2, (16,), 32),
    "cpu": Shape(4, 32, 32, (1, 2), 1, (16,), 8),
    "tiny": Shape(4, 16, 16, (1, 2), 1, (8,), 4),
}
STEPS = 1000
"""The steps of the noise schedule."""


def sinusoids(times: jax.Array, width: int, dtype: Dtype = jnp.float32) -> jax.Array:
    """(batch, width) sines and cosines of whole times, computed in float32."""
    half = width // 2
    frequency = jnp.exp(-math.log(10_000.0) * jnp.arange(half, dtype=jnp.float32) / half)
    angle = times.astype(jnp.float32)[:, None] * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1).astype(dtype)


def noised(images: jax.Array, seed: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Images at random times of the forward process.

    Returns:
        The noised images, the noise, and the times, whole numbers below :data:`STEPS`.
    """
    first, second = jax.random.split(jax.random.key(seed))
    times = jax.random.randint(first, images.shape[:1], 0, STEPS, jnp.int32)
    noise = jax.random.normal(second, images.shape, jnp.float32).astype(images.dtype)
    kept = jnp.cumprod(1.0 - jnp.linspace(1e-4, 0.02, STEPS, dtype=jnp.float32))[times]
    kept = kept.reshape(-1, *[1] * (images.ndim - 1)).astype(images.dtype)
    return jnp.sqrt(kept) * images + jnp.sqrt(1.0 - kept) * noise, noise, times


def squared_error(found: jax.Array, wanted: jax.Array) -> jax.Array:
    """The mean squared difference, in float32 (float64 stays)."""
    difference = at_least_float32(found) - at_least_float32(wanted)
    return jnp.mean(difference * difference)


class Residual(nn.Module):
    """Two convolutions, each after a norm and SiLU, the time added between."""

    features: int
    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        """Maps (batch, height, width, channels) to ``features`` channels."""
        norm = functools.partial(nn.GroupNorm, num_groups=self.shape.groups, dtype=self.dtype)
        conv = functools.partial(nn.Conv, self.features, (3, 3), dtype=self.dtype)
        y = conv()(nn.silu(norm()(x)))
        y = y + nn.Dense(self.features, dtype=self.dtype)(nn.silu(time))[:, None, None]
        y = conv()(Drop(self.shape.drop)(nn.silu(norm()(y))))
        if x.shape != y.shape:
            x = nn.Conv(self.features, (1, 1), dtype=self.dtype)(x)
        return x + y


class Attention(nn.Module):
    """Self-attention of the pixels of an image, one head."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, height, width, channels) to the same."""
        dense = functools.partial(nn.Dense, x.shape[-1], dtype=self.dtype)
        y = nn.GroupNorm(num_groups=self.shape.groups, dtype=self.dtype)(x)
        y = y.reshape(x.shape[0], -1, 1, x.shape[-1])
        mixed = attend(dense()(y), dense()(y), dense()(y))
        return x + dense()(mixed).reshape(x.shape)


class UNet(nn.Module):
    """Down, through the middle, and up, with a shortcut across from every block."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, times: jax.Array) -> jax.Array:
        """Maps noised images (batch, height, width, 3) and times to the noise."""
        shape, channels = self.shape, x.shape[-1]
        dense = functools.partial(nn.Dense, 4 * shape.width, dtype=self.dtype)
        time = dense()(nn.silu(dense()(sinusoids(times, shape.width, x.dtype))))

        def conv(x: jax.Array, features: int, stride: int = 1) -> jax.Array:
            return nn.Conv(features, (3, 3), strides=(stride, stride), dtype=self.dtype)(x)

        def block(x: jax.Array, features: int) -> jax.Array:
            x = Residual(features, shape, self.dtype)(x, time)
            return Attention(shape, self.dtype)(x) if x.shape[1] in shape.attention else x

        x = conv(x, shape.width)
        across = [x]
        for level, factor in enumerate(shape.factors):
            for _ in range(shape.blocks):
                x = block(x, factor * shape.width)
                across.append(x)
            if level + 1 < len(shape.factors):
                x = conv(x, x.shape[-1], stride=2)
                across.append(x)
        x = Residual(x.shape[-1], shape, self.dtype)(x, time)
        x = Attention(shape, self.dtype)(x)
        x = Residual(x.shape[-1], shape, self.dtype)(x, time)
        for level, factor in reversed(list(enumerate(shape.factors))):
            for _ in range(shape.blocks + 1):
                x = block(jnp.concatenate([x, across.pop()], axis=-1), factor * shape.width)
            if level > 0:
                x = conv(jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2), x.shape[-1])
        x = nn.silu(nn.GroupNorm(num_groups=shape.groups, dtype=self.dtype)(x))
        return conv(x, channels)


def denoising_case(
    name: str,
    model: nn.Module,
    images: tuple[int, int, int, int],
    optimizer: optax.GradientTransformation,
    labels: int | None = None,
) -> TrainCase:
    """A case that predicts the noise in images; a batch is images, labels if any, and a seed.

    Args:
        name: for tables.
        model: maps noised images and times (and labels) to the noise.
        images: shape of a batch.
        optimizer: of all parameters.
        labels: how many classes, if the model is told the class.
    """

    def loss(params: Tree, data: tuple[jax.Array, tuple[jax.Array, ...], jax.Array]) -> jax.Array:
        clean, classes, seed = data
        mixed, noise, times = noised(clean, seed)
        coins = {"dropout": jax.random.key(seed + 1)}
        found = model.apply({"params": params}, mixed, times, *classes, rngs=coins)
        assert isinstance(found, jax.Array)
        return squared_error(found, noise)

    def variables(key: jax.Array) -> tuple[Tree, Tree]:
        given = [jnp.zeros((1, *images[1:]), jnp.float32), jnp.zeros((1,), jnp.int32)]
        given += [] if labels is None else [jnp.zeros((1,), jnp.int32)]
        return model.init({"params": key, "dropout": key}, *given)["params"], {}

    def draw(key: jax.Array, inputs: str) -> tuple[jax.Array, tuple[jax.Array, ...], jax.Array]:
        first, second, third = jax.random.split(key, 3)
        classes = () if labels is None else (jax.random.randint(second, images[:1], 0, labels),)
        return INPUTS[inputs](first, images), classes, jax.random.bits(third, (), jnp.uint32)

    return train_case(
        name,
        variables=variables,
        loss=without_statistics(loss),
        optimizer=optimizer,
        batch=draw,
        average=0.9999,
    )


def unet(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """The DDPM U-Net of CIFAR-10."""
    shape = SHAPES[size]
    return denoising_case(
        "U-Net, attention",
        UNet(shape, dtype),
        (shape.batch, shape.image, shape.image, 3),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-4)),
    )
