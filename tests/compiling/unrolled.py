"""Random programs with unrolled loops: what a person writes with ``for t in range(n)``."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

WIDTH = 4
TURNS = 24
_UNARY = [jnp.sin, jnp.tanh, lambda x: x * x * 0.1, jax.nn.relu, lambda x: jnp.roll(x, 1), jnp.abs]


def random_program(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of (weights, inputs, state) and its arguments.

    Its loop has a random body with several carried values, of which some are read from several
    turns back; it reads inputs forward or backward, numbers that count, and keeps some results.
    """
    rng = random.Random(seed)
    states = rng.randint(1, 3)
    operations = [
        (rng.choice(["unary", "add", "mul", "dot", "input", "number", "select"]), rng.random())
        for _ in range(rng.randint(4, 9))
    ]
    back, backward = rng.randint(1, 3), rng.random() < 0.4
    keep, tail = rng.choice(["all", "few", "none"]), rng.random() < 0.5
    layers = rng.choice([1, 1, 2])
    axis = rng.randint(0, 1)

    def program(weights: Any, inputs: Any, state: Any) -> Any:
        history = [[state * (k + 1) for k in range(states)]] * back
        kept, values = [], history[-1]
        for turn in range(TURNS):
            for layer in range(layers):
                values = [*history[-1], history[-back][0]]
                at = TURNS - 1 - turn if backward else turn
                for kind, number in operations:
                    x = values[int(number * 997) % len(values)]
                    y = values[int(number * 7919) % len(values)]
                    if kind == "unary":
                        x = _UNARY[int(number * len(_UNARY))](x)
                    elif kind == "add":
                        x = 0.5 * (x + y)
                    elif kind == "mul":
                        x = jnp.tanh(x * y)
                    elif kind == "dot":
                        x = x @ weights[layer]
                    elif kind == "input":
                        x = x + jax.lax.index_in_dim(inputs, at, axis, keepdims=False)
                    elif kind == "number":
                        x = x * (0.01 * turn)
                    else:
                        x = jnp.where(x > 0, x, y)
                    values.append(x)
                history = [*history, [jnp.tanh(v) for v in values[-states:]]][-back:]
            kept.append(values[-1])
        last = history[-1][0]
        if tail:
            last = last + kept[0] * kept[-1]
        if keep == "all":
            return jnp.stack(kept), last
        if keep == "few":
            return kept[3], jnp.concatenate([k[None] for k in kept], axis=0), last
        return history[-1], last

    key = jax.random.key(seed)
    weights = [jax.random.normal(jax.random.fold_in(key, k), (WIDTH, WIDTH)) for k in range(2)]
    shape = (TURNS, WIDTH) if axis == 0 else (WIDTH, TURNS)
    return program, (weights, jax.random.normal(key, shape), jnp.linspace(-1.0, 1.0, WIDTH))
