"""Triangle updates of protein structure prediction: three blocks over pairs of 256 residues.

Triangle multiplication along outgoing and incoming edges, triangle attention around both ends, a
transition; layer norms and sigmoid gates throughout. Predicts the distance of each pair in 64 bins.

References:
    Jumper et al., "Highly accurate protein structure prediction with AlphaFold" (2021): the pair
    stack of the Evoformer, three blocks of the published 48.
"""

from __future__ import annotations

import functools
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, TrainCase, drawn, network_case, numbers, whole
from benchmarks.zoo.layers import Dtype, attend

Shape = namedtuple("Shape", "residues features blocks width heads bins", defaults=(64,))
"""Numbers of a pair stack and its protein."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(256, 64, 3, 128, 4),
    "cpu": Shape(48, 32, 2, 64, 4),
    "tiny": Shape(8, 8, 1, 16, 2, bins=8),
}


class Multiplication(nn.Module):
    """Updates an edge with the products of the two others of each triangle."""

    outgoing: bool
    dtype: Dtype = None

    @nn.compact
    def __call__(self, pairs: jax.Array) -> jax.Array:
        """Maps (residues, residues, width) to what is added to it."""
        dense = functools.partial(nn.Dense, pairs.shape[-1], dtype=self.dtype)
        x = nn.LayerNorm(dtype=self.dtype)(pairs)
        left = nn.sigmoid(dense()(x)) * dense()(x)
        right = nn.sigmoid(dense()(x)) * dense()(x)
        form = "ikc,jkc->ijc" if self.outgoing else "kic,kjc->ijc"
        y = nn.LayerNorm(dtype=self.dtype)(jnp.einsum(form, left, right))
        return nn.sigmoid(dense()(x)) * dense()(y)


class Attention(nn.Module):
    """Updates an edge from those that begin where it begins; the third one is the bias."""

    heads: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, pairs: jax.Array) -> jax.Array:
        """Maps (residues, residues, width) to what is added to it."""
        count, _, width = pairs.shape
        dense = functools.partial(nn.Dense, width, dtype=self.dtype)
        x = nn.LayerNorm(dtype=self.dtype)(pairs)
        bias = nn.Dense(self.heads, use_bias=False, dtype=self.dtype)(x)
        shape = (count, count, self.heads, width // self.heads)
        query, key, value = (dense(use_bias=False)(x).reshape(shape) for _ in range(3))
        mixed = attend(query, key, value, bias=jnp.moveaxis(bias, -1, 0)).reshape(pairs.shape)
        return dense()(nn.sigmoid(dense()(x)) * mixed)


class Block(nn.Module):
    """Two multiplications, two attentions, a transition."""

    heads: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, pairs: jax.Array) -> jax.Array:
        """Maps (residues, residues, width) to the same."""
        width = pairs.shape[-1]
        pairs = pairs + Multiplication(True, self.dtype)(pairs)
        pairs = pairs + Multiplication(False, self.dtype)(pairs)
        pairs = pairs + Attention(self.heads, self.dtype)(pairs)
        turned = Attention(self.heads, self.dtype)(jnp.swapaxes(pairs, 0, 1))
        pairs = pairs + jnp.swapaxes(turned, 0, 1)
        x = nn.LayerNorm(dtype=self.dtype)(pairs)
        x = nn.relu(nn.Dense(4 * width, dtype=self.dtype)(x))
        return pairs + nn.Dense(width, dtype=self.dtype)(x)


class PairStack(nn.Module):
    """Pairs from the residues' features, blocks, symmetric logits."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Maps (residues, features) to (residues, residues, bins) logits."""
        shape = self.shape
        dense = functools.partial(nn.Dense, dtype=self.dtype)
        pairs = dense(shape.width)(features)[:, None] + dense(shape.width)(features)[None]
        for i in range(shape.blocks):
            pairs = Block(shape.heads, self.dtype, name=f"block_{i}")(pairs)
        logits = dense(shape.bins)(nn.LayerNorm(dtype=self.dtype)(pairs))
        return logits + jnp.swapaxes(logits, 0, 1)


def triangles(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A pair stack with Adam after clipping. A batch is features and bins of distances."""
    shape = SHAPES[size]

    distances = whole((shape.residues, shape.residues), shape.bins)
    draw = drawn(numbers(shape.residues, shape.features), distances)
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-3))
    return network_case("Triangle updates", PairStack(shape, dtype), draw, optimizer)
