# python -m benchmarks.inference_cost
"""What does a call of a language model cost with weights cast once, for a GPU that is not here?

A decoder of GPT-2 small's sizes (untied head, random weights of zeros: only shapes matter) on a
short prompt, where weights are most of what a call reads. Compiled by ``duotone.compile_for``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks._common import Bar, Result, table, write

QUESTION = "What does a call cost whose weights were cast once for all?"
LAYERS, WIDTH, HEADS, WORDS, BATCH, LENGTH = 12, 768, 12, 50304, 8, 16


def weights() -> dict[str, Any]:
    """float32, layers stacked."""

    def zeros(*shape: int) -> jax.Array:
        return jnp.zeros(shape, jnp.float32)

    layers = {
        "qkv": zeros(LAYERS, WIDTH, 3 * WIDTH),
        "out": zeros(LAYERS, WIDTH, WIDTH),
        "up": zeros(LAYERS, WIDTH, 4 * WIDTH),
        "down": zeros(LAYERS, 4 * WIDTH, WIDTH),
        "gain": zeros(LAYERS, 2, WIDTH),
    }
    words, places = zeros(WORDS, WIDTH), zeros(1024, WIDTH)
    return {"words": words, "places": places, "layers": layers, "head": zeros(WIDTH, WORDS)}


def _norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain


def predict(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """The logits of all places."""
    batch, length = tokens.shape
    seen = jnp.tril(jnp.ones((length, length), bool))

    def layer(x: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        qkv = jnp.split(_norm(x, p["gain"][0]) @ p["qkv"], 3, -1)
        q, k, v = (a.reshape(batch, length, HEADS, -1) for a in qkv)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / (WIDTH // HEADS) ** 0.5
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e9))
        mixed = jnp.einsum("bhts,bshd->bthd", shares, v).reshape(x.shape)
        x = x + mixed @ p["out"]
        return x + jax.nn.gelu(_norm(x, p["gain"][1]) @ p["up"]) @ p["down"], None

    x = params["words"][tokens] + params["places"][:length]
    x, _ = jax.lax.scan(layer, x, params["layers"])
    return x @ params["head"]


def main() -> None:
    """Compiles the three ways and writes the table."""
    params, half = weights(), jnp.bfloat16
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    ways: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "float32": (predict, (params, tokens)),
        "autocast": (duotone.autocast(predict, dtype=half), (params, tokens)),
        "weights": (duotone.autocast(predict, dtype=half, weights=params), (tokens,)),
    }
    found = {name: duotone.compile_for(fn, *args) for name, (fn, args) in ways.items()}
    figures = {
        name: {
            "GB moved": cost.bytes / 1e9,
            "GB of arguments": cost.argument_bytes / 1e9,
            "roofline ms": cost.seconds * 1e3,
        }
        for name, cost in found.items()
    }
    titles = ["way", *figures["weights"]]
    rows = [[name, *(f"{x:.3f}" for x in row.values())] for name, row in figures.items()]
    ratio = found["weights"].bytes / found["autocast"].bytes
    bars = [Bar("bytes moved, against weights cast at every call", ratio, 0.9, "x")]
    command = "python -m benchmarks.inference_cost"
    write(Result("inference_cost", QUESTION, command, bars, table(titles, rows), figures))


if __name__ == "__main__":
    main()
