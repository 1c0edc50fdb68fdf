"""DCGAN for 64 x 64 images: 3.6 million parameters against 2.8 million, batch 128.

One step updates the discriminator on real and generated images, then the generator against the new
discriminator, each with Adam; both keep running statistics of their batch norms.

References:
    Radford et al., "Unsupervised Representation Learning with Deep Convolutional Generative
    Adversarial Networks" (2016); sizes of PyTorch's DCGAN example.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, State, TrainCase, Tree, at_least_float32, drawn, numbers, seed
from benchmarks.zoo.layers import Dtype, small_normal


@dataclasses.dataclass(frozen=True)
class Shape:
    """Numbers of a DCGAN and its batch: images of ``4 * 2**doublings`` pixels."""

    batch: int
    doublings: int
    width: int
    latent: int

    @property
    def image(self) -> int:
        """Height and width of an image."""
        return 4 * 2**self.doublings


SHAPES: dict[Size, Shape] = {
    "full": Shape(128, 4, 64, 100),
    "cpu": Shape(16, 3, 32, 100),
    "tiny": Shape(8, 2, 8, 16),
}


class _Network(nn.Module):
    shape: Shape
    dtype: Dtype = None

    def _norm(self, x: jax.Array) -> jax.Array:
        norm = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5, dtype=self.dtype)
        return norm(x)

    @functools.cached_property
    def _settings(self) -> dict[str, Any]:
        return {"use_bias": False, "kernel_init": small_normal, "dtype": self.dtype}


class Generator(_Network):
    """Transposed convolutions that double the image, each after a batch norm and a ReLU."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, latent) to images (batch, height, width, 3) in (-1, 1)."""
        features = self.shape.width * 2 ** (self.shape.doublings - 1)
        grow = functools.partial(nn.ConvTranspose, kernel_size=(4, 4), **self._settings)
        x = x[:, None, None]
        x = nn.relu(self._norm(grow(features, padding="VALID")(x)))
        for _ in range(self.shape.doublings - 1):
            features //= 2
            x = nn.relu(self._norm(grow(features, strides=(2, 2))(x)))
        return jnp.tanh(grow(3, strides=(2, 2))(x))


class Discriminator(_Network):
    """Strided convolutions that halve the image, with batch norms and leaky ReLUs."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images (batch, height, width, 3) to (batch,) logits."""
        shrink = functools.partial(nn.Conv, kernel_size=(4, 4), **self._settings)
        for i in range(self.shape.doublings):
            x = shrink(self.shape.width * 2**i, strides=(2, 2))(x)
            x = nn.leaky_relu(x if i == 0 else self._norm(x), 0.2)
        return shrink(1, padding="VALID")(x).reshape(-1)


def _judged(logits: jax.Array, real: float) -> jax.Array:
    """Mean binary cross-entropy in float32."""
    wide = at_least_float32(logits)
    return jnp.mean(optax.sigmoid_binary_cross_entropy(wide, jnp.full_like(wide, real)))


class _Game:
    """The two losses and the step."""

    def __init__(self, shape: Shape, dtype: Dtype) -> None:
        self.shape = shape
        self.generator = Generator(shape, dtype)
        self.discriminator = Discriminator(shape, dtype)
        self.optimizer = optax.adam(2e-4, b1=0.5)

    def variables(self, key: jax.Array) -> tuple[Tree, Tree]:
        first, second = jax.random.split(key)
        size = self.shape.image
        generator = dict(self.generator.init(first, jnp.zeros((2, self.shape.latent))))
        discriminator = dict(self.discriminator.init(second, jnp.zeros((2, size, size, 3))))
        params = {
            "generator": generator.pop("params"),
            "discriminator": discriminator.pop("params"),
        }
        return params, {"generator": generator, "discriminator": discriminator}

    def make(self, params: Tree, statistics: Tree, seed: jax.Array) -> tuple[jax.Array, Tree]:
        size = (self.shape.batch, self.shape.latent)
        latent = jax.random.normal(jax.random.key(seed), size, jnp.float32)
        variables = {"params": params, **statistics}
        return self.generator.apply(variables, latent, mutable=["batch_stats"])

    def judge(
        self, params: Tree, statistics: Tree, images: jax.Array, real: float
    ) -> tuple[jax.Array, Tree]:
        variables = {"params": params, **statistics}
        logits, new = self.discriminator.apply(variables, images, mutable=["batch_stats"])
        assert isinstance(logits, jax.Array)
        return _judged(logits, real), new

    def discriminator_loss(
        self, params: Tree, statistics: Tree, images: jax.Array, made: jax.Array
    ) -> tuple[jax.Array, Tree]:
        real, statistics = self.judge(params, statistics, images, 1.0)
        false, statistics = self.judge(params, statistics, made, 0.0)
        return real + false, statistics

    def generator_loss(
        self, params: Tree, other: Tree, statistics: Tree, seed: jax.Array
    ) -> tuple[jax.Array, Tree]:
        made, new = self.make(params, statistics["generator"], seed)
        loss, judged = self.judge(other, statistics["discriminator"], made, 1.0)
        return loss, {"generator": new, "discriminator": judged}

    def start(self, key: jax.Array) -> State:
        params, statistics = self.variables(key)
        optimizer = {name: self.optimizer.init(one) for name, one in params.items()}
        return State(params, statistics, optimizer)

    def update(self, gradient: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        updates, state = self.optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    def step(self, state: State, data: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
        images, seed = data
        params, statistics = dict(state.params), dict(state.statistics)
        optimizer = dict(state.optimizer)
        made, statistics["generator"] = self.make(
            params["generator"], statistics["generator"], seed
        )
        differentiate = jax.value_and_grad(self.discriminator_loss, has_aux=True)
        (first, statistics["discriminator"]), gradient = differentiate(
            params["discriminator"], statistics["discriminator"], images, made
        )
        params["discriminator"], optimizer["discriminator"] = self.update(
            gradient, optimizer["discriminator"], params["discriminator"]
        )
        differentiate = jax.value_and_grad(self.generator_loss, has_aux=True)
        (second, statistics), gradient = differentiate(
            params["generator"], params["discriminator"], statistics, seed
        )
        params["generator"], optimizer["generator"] = self.update(
            gradient, optimizer["generator"], params["generator"]
        )
        return State(params, statistics, optimizer), first + second

    def loss(self, params: Tree, data: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Both losses of the same parameters, for gradients."""
        images, seed = data
        shapes = jax.eval_shape(lambda: self.variables(jax.random.key(0))[1])
        statistics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        made, _ = self.make(params["generator"], statistics["generator"], seed)
        first, _ = self.discriminator_loss(
            params["discriminator"], statistics["discriminator"], images, made
        )
        second, _ = self.generator_loss(
            params["generator"], params["discriminator"], statistics, seed
        )
        return first + second


def gan(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A DCGAN. A batch is real images and a seed."""
    shape = SHAPES[size]
    game = _Game(shape, dtype)
    return TrainCase(
        "GAN, DCGAN",
        game.loss,
        lambda key: game.variables(key)[0],
        drawn(numbers(shape.batch, shape.image, shape.image, 3), seed),
        step=game.step,
        start=game.start,
    )
