"""Messages on a mesh, as MeshGraphNets: 16 meshes of 1,885 nodes, each with 11,000 edges.

An encoder, steps of message passing (a perceptron on every edge, the sum of what arrives at a node,
a perceptron on every node, layer norms and residuals) and a decoder; width 128, ten steps of the
published fifteen. Predicts two components of an acceleration.

References:
    Pfaff et al., "Learning Mesh-Based Simulation with Graph Networks" (2021).
"""

from __future__ import annotations

from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import INPUTS, Size, TrainCase, network_case
from benchmarks.zoo.graphs import random_edges, summed
from benchmarks.zoo.layers import Dtype
from benchmarks.zoo.unet import squared_error

Batch = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Features of nodes and of edges, where the edges are, and accelerations."""

Shape = namedtuple("Shape", "nodes edges features sides steps width found", defaults=(2,))
"""Numbers of a mesh network and its batch, which is one graph."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(16 * 1_885, 16 * 11_000, 11, 3, 10, 128),
    "cpu": Shape(1_885, 11_000, 11, 3, 4, 64),
    "tiny": Shape(32, 128, 6, 3, 2, 16),
}


class Perceptron(nn.Module):
    """Three dense layers with ReLUs between, and a layer norm after them unless it decodes."""

    width: int
    dtype: Dtype = None
    found: int | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (rows, features) to ``found`` features, or to the width after a norm."""
        for _ in range(2):
            x = nn.relu(nn.Dense(self.width, dtype=self.dtype)(x))
        x = nn.Dense(self.found or self.width, dtype=self.dtype)(x)
        return x if self.found else nn.LayerNorm(dtype=self.dtype)(x)


class MeshNet(nn.Module):
    """An encoder, steps of message passing, a decoder."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, nodes: jax.Array, sides: jax.Array, edges: jax.Array) -> jax.Array:
        """Maps features of nodes and of edges, and (2, edges), to (nodes, found)."""
        shape, (begins, ends) = self.shape, edges
        x = Perceptron(shape.width, self.dtype)(nodes)
        along = Perceptron(shape.width, self.dtype)(sides)
        for _ in range(shape.steps):
            read = jnp.concatenate([along, x[begins], x[ends]], axis=-1)
            sent = Perceptron(shape.width, self.dtype)(read)
            along = along + sent
            arrived = summed(along, ends, shape.nodes)
            x = x + Perceptron(shape.width, self.dtype)(jnp.concatenate([x, arrived], axis=-1))
        return Perceptron(shape.width, self.dtype, shape.found)(x)


def mpnn(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A mesh network with Adam. A batch is a graph with its features and accelerations."""
    shape = SHAPES[size]

    def draw(key: jax.Array, inputs: str) -> Batch:
        keys = jax.random.split(key, 4)
        nodes = INPUTS[inputs](keys[0], (shape.nodes, shape.features))
        sides = jax.random.normal(keys[1], (shape.edges, shape.sides))
        wanted = jax.random.normal(keys[2], (shape.nodes, shape.found))
        return nodes, sides, random_edges(keys[3], shape.nodes, shape.edges), wanted

    return network_case(
        "Mesh network",
        MeshNet(shape, dtype),
        draw,
        optax.adam(1e-4),
        loss=lambda found, batch: squared_error(found, batch[-1]),
    )
