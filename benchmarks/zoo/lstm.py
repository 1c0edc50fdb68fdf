"""The large LSTM language model of Zaremba et al.: 66 million parameters, 20 x 35 tokens.

Two layers of 1500 cells with dropout between, plain SGD after clipping by the global norm. What
the input gives to the gates is one dot for all steps; the scan holds the recurrent dot alone. By
hand the hidden state is half and the cell state float32.

References:
    Zaremba et al., "Recurrent Neural Network Regularization" (2014).
"""

from __future__ import annotations

from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import (
    Size,
    TrainCase,
    at_least_float32,
    cross_entropy,
    drawn,
    hostile_leaf,
    network_case,
    seed,
    whole,
)
from benchmarks.zoo.layers import Drop, Dtype

Shape = namedtuple("Shape", "batch length layers width vocabulary drop")
"""Numbers of an LSTM language model and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(20, 35, 2, 1500, 10_000, 0.65),
    "cpu": Shape(16, 24, 2, 256, 2048, 0.65),
    "tiny": Shape(8, 12, 2, 48, 64, 0.25),
}


def _uniform(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    return jax.random.uniform(key, shape, dtype, -0.04, 0.04)


class Layer(nn.Module):
    """One LSTM layer over a sequence, its gates computed in float32."""

    width: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, length, features) to (batch, length, width)."""
        gates = 4 * self.width
        given = nn.Dense(gates, dtype=self.dtype, kernel_init=_uniform, name="input")(x)
        weight = self.param("recurrent", _uniform, (self.width, gates)).astype(given.dtype)

        def step(
            state: tuple[jax.Array, jax.Array], given: jax.Array
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            hidden, cell = state
            wide = at_least_float32(hidden @ weight + given)
            enter, forget, show, new = jnp.split(wide, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            hidden = (jax.nn.sigmoid(show) * jnp.tanh(cell)).astype(hidden.dtype)
            return (hidden, cell), hidden

        hidden = jnp.zeros((x.shape[0], self.width), given.dtype)
        start = (hidden, at_least_float32(hidden))
        _, shown = jax.lax.scan(step, start, given.swapaxes(0, 1))
        return shown.swapaxes(0, 1)


class LanguageModel(nn.Module):
    """Embeddings, LSTM layers with dropout, logits."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        shape = self.shape

        token = nn.Embed(
            shape.vocabulary, shape.width, dtype=self.dtype, embedding_init=_uniform, name="token"
        )
        x = Drop(shape.drop)(token(tokens))
        for _ in range(shape.layers):
            x = Drop(shape.drop)(Layer(shape.width, self.dtype)(x))
        return nn.Dense(shape.vocabulary, dtype=self.dtype, kernel_init=_uniform, name="head")(x)


def lstm(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """The large LSTM language model. A batch is tokens and a seed."""
    shape = SHAPES[size]

    # Tokens are whole numbers: their embedding is hostile instead.
    tokens = whole((shape.batch, shape.length + 1), shape.vocabulary)
    return network_case(
        "LSTM language model",
        LanguageModel(shape, dtype),
        drawn(tokens, seed),
        optax.chain(optax.clip_by_global_norm(10.0), optax.sgd(1.0)),
        reads=lambda batch: (batch[0][:, :-1],),
        loss=lambda logits, batch: cross_entropy(logits, batch[0][:, 1:]),
        seeded=True,
        weights=hostile_leaf("token", "embedding"),
    )
