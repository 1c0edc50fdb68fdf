"""A graph attention network of the size of ogbn-arxiv: 169,343 articles, 1.2 million citations.

Three layers of eight heads whose softmax runs over the edges that end in a node, as segment sums;
layer norms and residuals between; the whole graph in each step.

References:
    Velickovic et al., "Graph Attention Networks" (2018).
    Hu et al., "Open Graph Benchmark" (2020): the size of the graph.
"""

from __future__ import annotations

from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import INPUTS, Size, TrainCase, at_least_float32, network_case
from benchmarks.zoo.graphs import random_edges, summed
from benchmarks.zoo.layers import Dtype

Batch = tuple[jax.Array, jax.Array, jax.Array]
"""Features of the nodes, edges and labels."""

Shape = namedtuple("Shape", "nodes edges features layers heads width classes")
"""Numbers of a graph attention network and its graph."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(169_343, 1_166_243, 128, 3, 8, 32, 40),
    "cpu": Shape(2_048, 16_384, 64, 2, 4, 16, 40),
    "tiny": Shape(48, 192, 16, 2, 4, 8, 5),
}


class Layer(nn.Module):
    """Attention of a node to the nodes whose edges end in it.

    Attributes:
        heads: how many.
        width: of each head.
        dtype: the type of activations.
    """

    heads: int
    width: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, edges: jax.Array) -> jax.Array:
        """Maps (nodes, features) to (nodes, heads * width)."""
        begins, ends = edges
        nodes, both = x.shape[0], self.heads * self.width
        y = nn.Dense(both, use_bias=False, dtype=self.dtype)(x)
        y = y.reshape(nodes, self.heads, self.width)
        drawn = nn.initializers.glorot_uniform()
        sides = self.param("scores", drawn, (self.width, 2, self.heads))
        parts = at_least_float32(jnp.einsum("nhd,dsh->nsh", y, sides.astype(y.dtype)))
        scores = nn.leaky_relu(parts[begins, 0] + parts[ends, 1], 0.2)
        largest = jax.ops.segment_max(scores, ends, nodes, indices_are_sorted=True)
        raised = jnp.exp(scores - jax.lax.stop_gradient(largest)[ends])
        total = summed(raised, ends, nodes)
        weights = (raised / total[ends]).astype(y.dtype)
        mixed = summed(weights[..., None] * y[begins], ends, nodes)
        return mixed.reshape(nodes, both)


class GraphAttention(nn.Module):
    """Layers with a norm and a residual each, a dense layer on every node."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, edges: jax.Array) -> jax.Array:
        """Maps (nodes, features) and (2, edges) to (nodes, classes) logits."""
        shape = self.shape
        x = nn.Dense(shape.heads * shape.width, dtype=self.dtype)(x)
        for _ in range(shape.layers):
            y = nn.LayerNorm(dtype=self.dtype)(x)
            x = x + nn.elu(Layer(shape.heads, shape.width, self.dtype)(y, edges))
        return nn.Dense(shape.classes, dtype=self.dtype)(x)


def gat(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A graph attention network with Adam. A batch is the features, the edges and the labels."""
    shape = SHAPES[size]

    def draw(key: jax.Array, inputs: str) -> Batch:
        first, second, third = jax.random.split(key, 3)
        features = INPUTS[inputs](first, (shape.nodes, shape.features))
        labels = jax.random.randint(third, (shape.nodes,), 0, shape.classes)
        return features, random_edges(second, shape.nodes, shape.edges), labels

    return network_case("Graph attention", GraphAttention(shape, dtype), draw, optax.adam(5e-3))
