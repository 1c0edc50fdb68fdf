# python -m benchmarks.clusters
"""What do deep nets that are written out cost to compile, whole and as clusters, and to run?

A training step with Adam each: a transformer, a residual MLP, and a recurrent net, whose layers
each have weights of their own. A declined program is compiled whole and has no row next to it.
``--only NAME`` measures one and writes nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from rich.progress import track

from benchmarks._common import Bar, Result, median, seconds, table, write
from benchmarks.compile_time import apart, memory
from duotone.compiling.cluster_parts import Sizes
from duotone.compiling.cluster_program import clusters_of, compile_clusters
from duotone.compiling.defaults import LEAST

QUESTION = "What do deep nets that are written out cost to compile, whole and as clusters?"
ROUNDS = 5
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def _weights(number: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(number), len(shapes))
    return {
        name: 0.05 * jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def _training(loss: Callable[..., Any], params: Any, data: Any) -> Program:
    """A step of Adam. Its epsilon keeps rounding from deciding updates of gradients near 0."""
    optimizer = optax.adam(1e-3, eps=1e-3)

    def step(params: Any, state: Any, data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, data)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), data)


def transformer(layers: int = 24, width: int = 128, heads: int = 4) -> Program:
    """Pre-norm attention and GELU layers, 4 sequences of 64."""

    def norm(x: Any, gain: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * (1 + gain)

    def layer(p: Any, x: Any) -> Any:
        batch, length, _ = x.shape
        y = norm(x, p["norm 1"])
        q, k, v = ((y @ p[name]).reshape(batch, length, heads, -1).swapaxes(1, 2) for name in "qkv")
        scores = q @ k.swapaxes(-1, -2) / (width // heads) ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        seen = (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape)
        x = x + seen @ p["out"]
        return x + jax.nn.gelu(norm(x, p["norm 2"]) @ p["up"]) @ p["down"]

    def loss(params: Any, x: Any) -> Any:
        y = x
        for p in params:
            y = layer(p, y)
        return jnp.mean((y - jnp.roll(x, 1, axis=1)) ** 2)

    square, gain = (width, width), (width,)
    shapes = {"q": square, "k": square, "v": square, "out": square, "norm 1": gain, "norm 2": gain}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    params = [_weights(number, shapes) for number in range(layers)]
    return _training(loss, params, jax.random.normal(jax.random.key(99), (4, 64, width)))


def residual(layers: int = 64, width: int = 256) -> Program:
    """Gated residual layers with a root-mean-square norm, a batch of 64."""

    def loss(params: Any, x: Any) -> Any:
        y = x
        for p in params:
            z = y / jnp.sqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-6)
            y = y + (jax.nn.silu(z @ p["gate"]) * (z @ p["up"])) @ p["down"] + p["bias"]
        return jnp.mean((y - x[::-1]) ** 2)

    square = (width, width)
    shapes = {"gate": square, "up": square, "down": square, "bias": (width,)}
    params = [_weights(number, shapes) for number in range(layers)]
    return _training(loss, params, jax.random.normal(jax.random.key(99), (64, width)))


def recurrent(layers: int = 24, width: int = 64, steps: int = 32) -> Program:
    """Gated recurrent layers, each a ``lax.scan`` over 32 steps, a batch of 16."""

    def layer(p: Any, x: Any) -> Any:
        def turn(h: Any, now: Any) -> Any:
            both = jnp.concatenate([now, h], axis=-1)
            z = jax.nn.sigmoid(both @ p["z"])
            h = (1 - z) * h + z * jnp.tanh(both @ p["h"])
            return h, h

        return jax.lax.scan(turn, jnp.zeros(x.shape[1:]), x)[1] + x

    def loss(params: Any, x: Any) -> Any:
        y = x
        for p in params:
            y = layer(p, y)
        return jnp.mean((y - jnp.roll(x, 1, axis=0)) ** 2)

    shapes = {"z": (2 * width, width), "h": (2 * width, width)}
    params = [_weights(number, shapes) for number in range(layers)]
    return _training(loss, params, jax.random.normal(jax.random.key(99), (steps, 16, width)))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "transformer, 24 layers": transformer,
    "residual MLP, 64 layers": residual,
    "recurrent net, 24 layers": recurrent,
}


def measured(name: str) -> dict[str, float | str]:
    """One program, whole and as clusters, or with the search that declines them."""
    fn, args = PROGRAMS[name]()
    leaves = jax.tree.leaves(args)

    def ours() -> tuple[Any, Any]:
        found = clusters_of(jax.make_jaxpr(fn)(*args), Sizes(LEAST, None, frozenset()))
        if found.declined:
            return found, jax.jit(fn).lower(*args).compile()
        return found, compile_clusters(found, leaves, frozenset(), 2)

    jax.clear_caches()
    my_clock, my_seconds, (found, program) = seconds(ours)
    jax.clear_caches()
    clock, busy, whole = seconds(lambda: jax.jit(fn).lower(*args).compile())
    row: dict[str, float | str] = {
        "form": "declined" if found.declined else f"{found.launches} of {len(found.clusters)}",
        "whole s": busy,
        "ours s": my_seconds,
        "whole clock s": clock,
        "ours clock s": my_clock,
    }
    if found.declined:
        return row
    mine, theirs = jax.block_until_ready((program(*leaves), whole(*args)))
    spent: dict[str, list[float]] = {"whole": [], "ours": []}
    for _ in range(ROUNDS):
        for kind, call in (("ours", lambda: program(*leaves)), ("whole", lambda: whole(*args))):
            start = time.perf_counter()
            jax.block_until_ready(call())
            spent[kind].append(time.perf_counter() - start)
    return row | {
        "whole step ms": 1e3 * median(spent["whole"]),
        "ours step ms": 1e3 * median(spent["ours"]),
        "whole MB": memory(whole) / 1e6,
        "ours MB": program.most_bytes / 1e6,
        "apart": apart(mine, jax.tree.leaves(theirs)),
    }


def bars_of(data: dict[str, dict[str, Any]]) -> list[Bar]:
    """The limits of time and memory."""
    bars = []
    for name, row in data.items():
        limits = [("compilation", "s", 0.4), ("memory", "MB", 1.4)]
        if row["form"] == "declined":
            limits = [("compilation, declined", "s", 1.05)]
        for what, key, limit in limits:
            ratio = row[f"ours {key}"] / row[f"whole {key}"]
            bars.append(Bar(f"{name}: {what}, ours over whole", ratio, limit, "times"))
    return bars


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(PROGRAMS))
    asked = parser.parse_args()
    if asked.only:
        print(measured(asked.only))
        return
    data = {name: measured(name) for name in track(PROGRAMS, "clusters")}
    columns = list(max(data.values(), key=len))
    rows = [[name, *[row.get(column, "") for column in columns]] for name, row in data.items()]
    text = table(["training step", *columns], rows)
    write(Result("clusters", QUESTION, "python -m benchmarks.clusters", bars_of(data), text, data))


if __name__ == "__main__":
    main()
