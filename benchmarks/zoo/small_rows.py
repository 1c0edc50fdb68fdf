"""Networks of rows of numbers, 4096 at a time.

References:
    Dinh et al., "Density Estimation Using Real NVP" (2017): coupling layers.
    Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data" (2021): FT-Transformer.
"""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.zoo.case import Size, TrainCase, at_least_float32, drawn, numbers, whole
from benchmarks.zoo.layers import Dtype, small_normal
from benchmarks.zoo.small import Batch, Draw, small_case

_CLASSES = 10


def _rows(rows: int, columns: int) -> Draw:
    return drawn(numbers(rows, columns), whole((rows,), _CLASSES))


class Flow(nn.Module):
    """Coupling layers: half of the numbers scale and move the other half."""

    layers: int
    hidden: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps rows to rows, and to the logarithms of the determinants; float32 both."""
        volume = jnp.zeros(x.shape[:1], x.dtype)
        for _ in range(self.layers):
            kept, moved = jnp.split(x, 2, axis=-1)
            y = kept
            for _ in range(2):
                y = nn.relu(nn.Dense(self.hidden, dtype=self.dtype)(y))
            y = at_least_float32(nn.Dense(2 * moved.shape[-1], dtype=self.dtype)(y))
            scale, shift = jnp.split(y, 2, axis=-1)
            scale = jnp.tanh(scale)
            volume = volume + scale.sum(-1)
            x = jnp.concatenate([moved * jnp.exp(scale) + shift, kept], axis=-1)
        return x, volume


def unlikelihood(found: tuple[jax.Array, jax.Array], batch: Batch) -> jax.Array:
    """The mean negative log likelihood under a normal distribution, but for a constant."""
    rows, volume = found
    return 0.5 * (rows**2).sum(-1).mean() - volume.mean()


class Autoencoder(nn.Module):
    """Dense layers, each with a batch norm and ELU, and one more back to the rows."""

    widths: tuple[int, ...]
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps rows to rows, in float32."""
        columns = x.shape[-1]
        for width in self.widths:
            x = nn.Dense(width, dtype=self.dtype)(x)
            x = nn.elu(nn.BatchNorm(use_running_average=False, dtype=self.dtype)(x))
        return at_least_float32(nn.Dense(columns, dtype=self.dtype)(x))


def squared_error(found: jax.Array, batch: Batch) -> jax.Array:
    """The mean squared difference from the rows themselves."""
    return ((found - batch[0]) ** 2).mean()


class Table(nn.Module):
    """A transformer over the columns of a row: each number is a token of its column.

    Queries and keys have a norm each; the first column's token is classified.
    """

    layers: int
    width: int
    hidden: int
    heads: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (rows, columns) to (rows, classes) logits in float32."""
        dense = functools.partial(nn.Dense, dtype=self.dtype)
        norm = functools.partial(nn.LayerNorm, dtype=self.dtype)
        kind, shape = self.dtype or x.dtype, (x.shape[-1], self.width)
        weight = self.param("weight", small_normal, shape).astype(kind)
        bias = self.param("bias", nn.initializers.zeros, shape).astype(kind)
        x = x[..., None].astype(kind) * weight + bias
        for _ in range(self.layers):
            attention = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype)
            x = x + attention(norm()(x), norm()(x))
            y, gate = jnp.split(dense(self.hidden)(norm()(x)), 2, axis=-1)
            x = x + dense(self.width)(y * nn.relu(gate))
        return at_least_float32(dense(_CLASSES)(nn.relu(norm()(x[:, 0]))))


def flow(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Six coupling layers over 2048 numbers."""
    rows, columns, layers, hidden = (4096, 2048, 6, 1024) if size == "full" else (16, 16, 2, 32)
    return small_case("flow", Flow(layers, hidden, dtype), _rows(rows, columns), unlikelihood)


def autoencoder(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Six dense layers, 2048 numbers through 128."""
    widths = (4096, 1024, 128, 1024, 4096) if size == "full" else (32, 8, 32)
    rows, columns = (4096, 2048) if size == "full" else (64, 16)
    return small_case(
        "autoencoder", Autoencoder(widths, dtype), _rows(rows, columns), squared_error
    )


def table(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Three layers over 128 columns."""
    model, rows, columns = Table(3, 192, 512, 8, dtype), 4096, 128
    if size == "tiny":
        model, rows, columns = Table(1, 16, 32, 2, dtype), 16, 8
    return small_case("table", model, _rows(rows, columns))
