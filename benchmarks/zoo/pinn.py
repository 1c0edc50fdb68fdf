"""A network that solves Burgers' equation: residuals with second derivatives at 65,536 points.

A perceptron of eight layers with tanh; derivatives by time and place by ``jvp`` through it, the
residual squared at points inside, the error squared at points of the border. By hand the dots are
half, and what the derivatives are combined to is float32.

References:
    Raissi et al., "Physics-informed neural networks" (2019); width and points are larger here.
"""

from __future__ import annotations

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
from benchmarks.zoo.layers import Dtype
from benchmarks.zoo.unet import squared_error

Batch = tuple[jax.Array, jax.Array, jax.Array]
"""Points inside, points of the border, values there."""
VISCOSITY = 0.01 / math.pi

Shape = namedtuple("Shape", "inside border layers width")
"""Numbers of a solver and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(65_536, 4_096, 8, 256),
    "cpu": Shape(4_096, 256, 4, 64),
    "tiny": Shape(64, 16, 3, 16),
}


class Field(nn.Module):
    """Dense layers with tanh between."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, points: jax.Array) -> jax.Array:
        """Maps (points, 2), time and place, to (points,) values, in float32 by hand too."""
        x = points
        drawn = nn.initializers.glorot_normal()
        for _ in range(self.shape.layers):
            x = jnp.tanh(nn.Dense(self.shape.width, kernel_init=drawn, dtype=self.dtype)(x))
        return at_least_float32(nn.Dense(1, kernel_init=drawn, dtype=self.dtype)(x))[:, 0]


def pinn(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A solver of Burgers' equation with Adam. A batch is points, and values on the border."""
    shape = SHAPES[size]
    model = Field(shape, dtype)

    def loss(params: Tree, data: Batch) -> jax.Array:
        inside, border, values = data

        def field(points: jax.Array) -> jax.Array:
            found = model.apply({"params": params}, points)
            assert isinstance(found, jax.Array)
            return found

        def along(axis: int) -> jax.Array:
            return jnp.zeros_like(inside).at[:, axis].set(1.0)

        def by_place(points: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jax.jvp(field, (points,), (along(1),))

        (value, slope), (_, bend) = jax.jvp(by_place, (inside,), (along(1),))
        _, change = jax.jvp(field, (inside,), (along(0),))
        residual = change + value * slope - VISCOSITY * bend
        return jnp.mean(residual * residual) + squared_error(field(border), values)

    def variables(key: jax.Array) -> tuple[Tree, Tree]:
        return model.init(key, jnp.zeros((1, 2)))["params"], {}

    def draw(key: jax.Array, inputs: str) -> Batch:
        first, second = jax.random.split(key)
        inside = INPUTS[inputs](first, (shape.inside, 2))
        border = INPUTS[inputs](second, (shape.border, 2)).at[:, 0].set(0.0)
        return inside, border, -jnp.sin(jnp.pi * border[:, 1])

    return train_case(
        "Burgers' equation",
        variables=variables,
        loss=without_statistics(loss),
        optimizer=optax.adam(1e-3),
        batch=draw,
    )
