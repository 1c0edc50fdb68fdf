"""A language model with one LSTM layer, run by ``jax.lax.scan``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.model import Keys, Model, Params, cross_entropy

_WIDTH, _VOCABULARY, _LENGTH = 16, 32, 12


def _forward(params: Params, tokens: jax.Array) -> jax.Array:
    with jax.named_scope("embed"):
        inputs = params["embedding"][tokens].swapaxes(0, 1)

    def cell(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[Any, jax.Array]:
        h, c = carry
        gates = x @ params["input"] + h @ params["recurrent"] + params["bias"]
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    with jax.named_scope("lstm"):
        zeros = jnp.zeros((tokens.shape[0], _WIDTH))
        _, hidden = jax.lax.scan(cell, (zeros, zeros), inputs)
    with jax.named_scope("head"):
        return hidden.swapaxes(0, 1) @ params["head"] + params["head_bias"]


def _loss(params: Params, inputs: Any, labels: Any) -> jax.Array:
    return cross_entropy(_forward(params, *inputs), *labels)


def _init(key: jax.Array) -> Params:
    keys = Keys(key)
    return {
        "embedding": keys.normal(_VOCABULARY, _WIDTH, scale=4.0),
        "input": keys.normal(_WIDTH, 4 * _WIDTH),
        "recurrent": keys.normal(_WIDTH, 4 * _WIDTH),
        "bias": jnp.zeros(4 * _WIDTH),
        "head": keys.normal(_WIDTH, _VOCABULARY),
        "head_bias": jnp.zeros(_VOCABULARY),
    }


def _batch(key: jax.Array) -> tuple[Any, Any]:
    tokens = jax.random.randint(key, (8, _LENGTH + 1), 0, _VOCABULARY)
    return (tokens[:, :-1],), (tokens[:, 1:],)


LSTM = Model("lstm", _init, _batch, _forward, _loss)
