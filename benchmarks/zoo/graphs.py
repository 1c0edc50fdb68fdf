"""The shared parts of graph networks: random graphs, and sums over the edges of a node."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.zoo.case import at_least_float32


def random_edges(key: jax.Array, nodes: int, edges: int) -> jax.Array:
    """(2, edges) whole numbers: where each edge begins and ends, sorted by its end.

    As libraries for graphs keep them. Beginnings are uneven: a few nodes are read often.
    """
    first, second = jax.random.split(key)
    chance = jax.random.uniform(first, (edges,), jnp.float32)
    begins = jnp.minimum((chance * chance * nodes).astype(jnp.int32), nodes - 1)
    ends = jnp.sort(jax.random.randint(second, (edges,), 0, nodes, jnp.int32))
    return jnp.stack([begins, ends])


def summed(x: jax.Array, ends: jax.Array, nodes: int) -> jax.Array:
    """Sums over the edges that end in a node, added in float32 (float64 stays).

    Args:
        x: (edges, ...).
        ends: (edges,) whole numbers, sorted.
        nodes: how many there are.

    Returns:
        (nodes, ...), in the type of ``x``.
    """
    found = jax.ops.segment_sum(at_least_float32(x), ends, nodes, indices_are_sorted=True)
    return found.astype(x.dtype)
