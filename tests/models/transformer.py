"""A decoder: pre-layer-norm blocks, causal mask of -1e9, GELU, logits from the embedding table."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.model import Keys, Model, Params, cross_entropy

_WIDTH, _HEADS, _VOCABULARY, _LENGTH = 32, 4, 64, 16


def _layer_norm(p: Params, x: jax.Array) -> jax.Array:
    with jax.named_scope("layer_norm"):
        mean = jnp.mean(x, -1, keepdims=True)
        variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def _attention(p: Params, x: jax.Array) -> jax.Array:
    with jax.named_scope("attention"):
        batch, length, _ = x.shape
        q, k, v = jnp.split(x @ p["qkv"] + p["qkv_bias"], 3, -1)

        def heads(y: jax.Array) -> jax.Array:
            return y.reshape(batch, length, _HEADS, -1).transpose(0, 2, 1, 3)

        q, k, v = heads(q), heads(k), heads(v)
        scores = q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(jnp.float32(q.shape[-1]))
        mask = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, -1)
        return mixed @ p["out"] + p["out_bias"]


def _mlp(p: Params, x: jax.Array) -> jax.Array:
    with jax.named_scope("mlp"):
        return jax.nn.gelu(x @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]


def _forward(params: Params, tokens: jax.Array) -> jax.Array:
    with jax.named_scope("embed"):
        x = params["embedding"][tokens] + params["positions"]
    for index, block in enumerate(params["blocks"]):
        with jax.named_scope(f"block_{index}"):
            x = x + _attention(block["attention"], _layer_norm(block["norm1"], x))
            x = x + _mlp(block["mlp"], _layer_norm(block["norm2"], x))
    with jax.named_scope("head"):
        return _layer_norm(params["norm"], x) @ params["embedding"].T


def _loss(params: Params, inputs: Any, labels: Any) -> jax.Array:
    return cross_entropy(_forward(params, *inputs), *labels)


def _norm() -> Params:
    return {"scale": jnp.ones(_WIDTH), "bias": jnp.zeros(_WIDTH)}


def _init(key: jax.Array) -> Params:
    keys = Keys(key)

    def block() -> Params:
        return {
            "norm1": _norm(),
            "attention": {
                "qkv": keys.normal(_WIDTH, 3 * _WIDTH),
                "qkv_bias": jnp.zeros(3 * _WIDTH),
                "out": keys.normal(_WIDTH, _WIDTH),
                "out_bias": jnp.zeros(_WIDTH),
            },
            "norm2": _norm(),
            "mlp": {
                "up": keys.normal(_WIDTH, 4 * _WIDTH),
                "up_bias": jnp.zeros(4 * _WIDTH),
                "down": keys.normal(4 * _WIDTH, _WIDTH),
                "down_bias": jnp.zeros(_WIDTH),
            },
        }

    return {
        "embedding": keys.normal(_VOCABULARY, _WIDTH),
        "positions": keys.normal(_LENGTH, _WIDTH),
        "blocks": [block(), block()],
        "norm": _norm(),
    }


def _batch(key: jax.Array) -> tuple[Any, Any]:
    tokens = jax.random.randint(key, (4, _LENGTH + 1), 0, _VOCABULARY)
    return (tokens[:, :-1],), (tokens[:, 1:],)


TRANSFORMER = Model("transformer", _init, _batch, _forward, _loss)
