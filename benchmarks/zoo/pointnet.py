"""PointNet++ on clouds of 1,024 points: sets of near points, gathered and summed up twice.

Centres by farthest-point sampling, the nearest points around each, a perceptron with batch norms on
every point of a set, the maximum over the set. Distances and samples are float32, also by hand, and
nothing is differentiated through them. 32 clouds, 40 classes.

References:
    Qi et al., "PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric Space"
    (2017): single scale grouping; the nearest points here, instead of those within a radius.
"""

from __future__ import annotations

from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, TrainCase, drawn, network_case, numbers, whole
from benchmarks.zoo.layers import Dtype

Shape = namedtuple("Shape", "batch points levels last head classes")
"""Numbers of a PointNet++ and its batch; a level is (centres, near points, widths)."""

_LEVELS = ((512, 32, (64, 64, 128)), (128, 64, (128, 128, 256)))
SHAPES: dict[Size, Shape] = {
    "full": Shape(32, 1_024, _LEVELS, (256, 512, 1024), (512, 256), 40),
    "cpu": Shape(4, 256, ((64, 16, (32, 64)), (16, 16, (64, 128))), (128, 256), (128,), 40),
    "tiny": Shape(8, 16, ((8, 4, (8, 16)),), (16, 32), (16,), 5),
}


def farthest(places: jax.Array, count: int) -> jax.Array:
    """(batch, count) points of (batch, points, 3), each far from those chosen before."""
    batch, points = places.shape[:2]
    near = jnp.full((batch, points), jnp.inf, places.dtype)

    def step(
        carried: tuple[jax.Array, jax.Array], _: None
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        near, chosen = carried
        at = jnp.take_along_axis(places, chosen[:, None, None], axis=1)
        near = jnp.minimum(near, jnp.sum((places - at) ** 2, axis=-1))
        return (near, jnp.argmax(near, axis=-1).astype(jnp.int32)), chosen

    _, found = jax.lax.scan(step, (near, jnp.zeros(batch, jnp.int32)), None, length=count)
    return found.T


def nearest(centres: jax.Array, places: jax.Array, count: int) -> jax.Array:
    """(batch, centres, count) points of (batch, points, 3) that are nearest to each centre."""
    apart = jnp.sum((centres[:, :, None] - places[:, None]) ** 2, axis=-1)
    return jax.lax.top_k(-apart, count)[1]


def picked(x: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of (batch, points, n) by whole numbers (batch, ...)."""
    return jax.vmap(lambda rows, at: rows[at])(x, index)


class _Perceptron(nn.Module):
    """Dense layers, a batch norm and a ReLU after each."""

    widths: tuple[int, ...]
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.widths:
            x = nn.Dense(width, use_bias=False, dtype=self.dtype)(x)
            norm = nn.BatchNorm(use_running_average=False, momentum=0.9, dtype=self.dtype)
            x = nn.relu(norm(x))
        return x


class PointNet(nn.Module):
    """Levels of sets, the maximum over what is left, a perceptron on top."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, places: jax.Array) -> jax.Array:
        """Maps (batch, points, 3) to (batch, classes) logits."""
        shape, features = self.shape, None
        for count, near, widths in shape.levels:
            fixed = jax.lax.stop_gradient(places)
            centres = picked(fixed, farthest(fixed, count))
            index = nearest(centres, fixed, near)
            given = picked(fixed, index) - centres[:, :, None]
            if features is not None:
                given = jnp.concatenate([given.astype(features.dtype), picked(features, index)], -1)
            features = jnp.max(_Perceptron(widths, self.dtype)(given), axis=2)
            places = centres
        assert features is not None
        x = jnp.concatenate([places.astype(features.dtype), features], axis=-1)
        x = jnp.max(_Perceptron(shape.last, self.dtype)(x), axis=1)
        x = _Perceptron(shape.head, self.dtype)(x)
        return nn.Dense(shape.classes, dtype=self.dtype)(x)


def pointnet(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """PointNet++ with Adam. A batch is points and labels."""
    shape = SHAPES[size]

    draw = drawn(numbers(shape.batch, shape.points, 3), whole((shape.batch,), shape.classes))
    return network_case("PointNet++", PointNet(shape, dtype), draw, optax.adam(1e-3))
