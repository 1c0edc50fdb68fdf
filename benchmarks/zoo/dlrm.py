"""DLRM on Criteo's logs: 26 embedding tables with 40 million rows in all, batch 32,768.

A perceptron for the numbers, a row of each table, the dots between all pairs of them, a perceptron
on top (MLPerf's sizes), trained with SGD as published. The tables get sparse updates, as usual: the
gradient of the rows that were read is added to the tables, which are never copied.

References:
    Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
    Systems" (2019); MLPerf Training, recommendation.
"""

from __future__ import annotations

from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.zoo.case import INPUTS, Size, State, TrainCase, Tree, at_least_float32
from benchmarks.zoo.layers import Dtype

Batch = tuple[jax.Array, jax.Array, jax.Array]
"""Numbers, row indices and clicks."""

Shape = namedtuple("Shape", "batch tables rows width bottom top numbers", defaults=(13,))
"""Numbers of a DLRM and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(32768, 26, 1_538_462, 128, (512, 256), (1024, 1024, 512, 256)),
    "cpu": Shape(4096, 26, 1000, 32, (128, 64), (256, 128)),
    "tiny": Shape(32, 4, 50, 8, (32, 16), (32, 16)),
}


class DLRM(nn.Module):
    """The two perceptrons and the dots between."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, numbers: jax.Array, rows: jax.Array) -> jax.Array:
        """Maps numbers (batch, 13) and rows (batch, tables, width) to (batch,) logits."""
        shape = self.shape

        def perceptron(x: jax.Array, widths: tuple[int, ...]) -> jax.Array:
            for width in widths:
                x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
            return x

        x = perceptron(numbers, (*shape.bottom, shape.width))
        features = jnp.concatenate([x[:, None], rows.astype(x.dtype)], axis=1)
        dots = jnp.einsum("bif,bjf->bij", features, features)
        lower = np.tril_indices(features.shape[1], -1)
        x = jnp.concatenate([x, dots[:, lower[0], lower[1]]], axis=1)
        return nn.Dense(1, dtype=self.dtype)(perceptron(x, shape.top))[:, 0]


def dlrm(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """DLRM. A batch is numbers, row indices and clicks."""
    shape = SHAPES[size]
    model, rate = DLRM(shape, dtype), 0.1

    def loss_of(dense: Tree, rows: jax.Array, data: Batch) -> jax.Array:
        numbers, _, clicks = data
        logits = model.apply({"params": dense}, numbers, rows)
        assert isinstance(logits, jax.Array)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(at_least_float32(logits), clicks))

    def init(key: jax.Array) -> Tree:
        first, second = jax.random.split(key)
        numbers = jnp.zeros((1, shape.numbers))
        rows = jnp.zeros((1, shape.tables, shape.width))
        bound = shape.rows**-0.5
        tables = jax.random.uniform(
            second, (shape.tables * shape.rows, shape.width), minval=-bound, maxval=bound
        )
        return {"dense": model.init(first, numbers, rows)["params"], "tables": tables}

    def loss(params: Tree, data: Batch) -> jax.Array:
        return loss_of(params["dense"], params["tables"][data[1]], data)

    def step(state: State, data: Batch) -> tuple[State, jax.Array]:
        dense, tables = state.params["dense"], state.params["tables"]
        value, (gradient, row_gradient) = jax.value_and_grad(loss_of, argnums=(0, 1))(
            dense, tables[data[1]], data
        )
        dense = jax.tree.map(lambda p, g: p - rate * g, dense, gradient)
        tables = tables.at[data[1]].add(-rate * row_gradient)
        return State({"dense": dense, "tables": tables}, {}, {}), value

    def draw(key: jax.Array, inputs: str) -> Batch:
        first, second, third = jax.random.split(key, 3)
        numbers = INPUTS[inputs](first, (shape.batch, shape.numbers))
        index = jax.random.randint(second, (shape.batch, shape.tables), 0, shape.rows)
        index = index + shape.rows * jnp.arange(shape.tables)  # all tables are one array
        clicks = jax.random.bernoulli(third, 0.25, (shape.batch,)).astype(jnp.float32)
        return numbers, index, clicks

    return TrainCase(
        "DLRM", loss, init, draw, step=step, start=lambda key: State(init(key), {}, {})
    )
