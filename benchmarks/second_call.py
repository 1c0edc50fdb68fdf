# python -m benchmarks.second_call
"""What does a second call with the same signature cost over the plain ``jit`` call?

``autocast(f)`` against ``jax.jit(f)``, called in turn, for a function of two arrays and for one
whose parameters are a tree of 150 leaves that also comes back, as a training step's does. The
functions compute almost nothing, so that the difference is what duotone adds in Python.
``jit(autocast(f))`` is the ordinary way to write a training step: there the call is that of
``jit``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks._common import Bar, Result, median, table, take_no_options, write

QUESTION = "What does a second call with the same signature cost over the plain jit call?"
CALLS = 4_000
LEAVES = 150
WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jit(f)": jax.jit,
    "autocast(f)": lambda f: duotone.autocast(
        f, dtype=jnp.bfloat16, policy=duotone.Policy(ignore_performance=True)
    ),
    "jit(autocast(f))": lambda f: jax.jit(WAYS["autocast(f)"](f)),
}


def few_leaves() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of two arrays."""
    return lambda w, x: jnp.tanh(x @ w), (jnp.ones((4, 4)), jnp.ones((2, 4)))


def many_leaves(leaves: int = LEAVES) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of a nested tree of parameters, as Flax has them, that returns one like it."""
    params = {
        f"layer_{i}": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones((2,))}
        for i in range(leaves // 2)
    }

    def step(params: Any, x: jax.Array) -> Any:
        layer = params["layer_0"]
        loss = jnp.sum(x @ layer["kernel"] + layer["bias"])
        return loss, jax.tree.map(lambda leaf: leaf - 0.5, params)

    return step, (params, jnp.ones((2, 2)))


def call_seconds(
    function: Callable[..., Any], args: Sequence[Any], calls: int
) -> dict[str, list[float]]:
    """Seconds of each call, one way after the other, ``calls`` times."""
    ways = {name: way(function) for name, way in WAYS.items()}
    for way in ways.values():
        for _ in range(3):
            jax.block_until_ready(way(*args))
    found: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    gc.disable()
    try:
        for _ in range(calls):
            for name, way in ways.items():
                start = time.perf_counter()
                jax.block_until_ready(way(*args))
                found[name].append(time.perf_counter() - start)
    finally:
        gc.enable()
    return found


def figures_of(found: dict[str, list[float]]) -> dict[str, float]:
    """Medians in microseconds, and what each way adds to ``jit(f)``: the median difference."""
    plain = found["jit(f)"]
    figures = {f"{name} us": 1e6 * median(spent) for name, spent in found.items()}
    for name, spent in list(found.items())[1:]:
        pairs = zip(spent, plain, strict=True)
        figures[f"{name} added us"] = 1e6 * median([mine - theirs for mine, theirs in pairs])
    return figures


def measure(calls: int = CALLS, leaves: int = LEAVES) -> tuple[list[Bar], str, dict[str, Any]]:
    """Both functions; returns bars, a table and data."""
    cases = {"2 leaves": few_leaves(), f"{leaves} leaves": many_leaves(leaves)}
    bars, rows, data = [], [], {}
    for name, (function, args) in cases.items():
        figures = figures_of(call_seconds(function, args, calls))
        data[name] = figures
        rows.append([name, *[figures[f"{way} us"] for way in WAYS]])
        for way in list(WAYS)[1:]:
            bars.append(Bar(f"{way} over jit(f), {name}", figures[f"{way} added us"], 100.0, "us"))
    text = table([f"microseconds a call, median of {calls}", *WAYS], rows)
    return bars, text, data


def main() -> None:
    """Measures and writes the result."""
    take_no_options(QUESTION)
    bars, text, data = measure()
    write(Result("second_call", QUESTION, "python -m benchmarks.second_call", bars, text, data))


if __name__ == "__main__":
    main()
