"""The first lowering of a transformer's step, over that of the same step in float32."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import duotone
from benchmarks._common import Bar, seconds, table
from benchmarks._deep_nets import unrolled_gpt

ROUNDS = {12: 5, 48: 3, 192: 1}
"""How often each number of layers is measured."""
_SETTINGS: dict[str, Any] = {
    "dtype": jnp.bfloat16,
    "policy": duotone.Policy(ignore_performance=True),
}
Loss = Callable[..., Any]


def _plain_step(loss: Loss) -> Callable[..., Any]:
    optimizer = optax.adam(1e-3)

    def step(params: Any, tokens: Any) -> Any:
        state = optimizer.init(params)
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def _one_line(loss: Loss) -> Callable[..., Any]:
    optimizer = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3), **_SETTINGS)

    def step(params: Any, tokens: Any) -> Any:
        return optimizer.minimize(loss, params, optimizer.init(params), tokens)

    return step


FORMS: dict[str, tuple[Callable[[Loss], Callable[..., Any]], str, float]] = {
    "float32": (jax.value_and_grad, "", 0.0),
    "float32, Adam": (_plain_step, "", 0.0),
    "autocast(value_and_grad(f))": (
        lambda loss: duotone.autocast(jax.value_and_grad(loss), **_SETTINGS),
        "float32",
        1.6,
    ),
    "duotone.value_and_grad(f)": (
        lambda loss: duotone.value_and_grad(loss, **_SETTINGS),
        "float32",
        1.6,
    ),
    "value_and_grad(autocast(f))": (
        lambda loss: jax.value_and_grad(duotone.autocast(loss, **_SETTINGS)),
        "float32",
        2.0,
    ),
    "the one line, Adam": (_one_line, "float32, Adam", 1.5),
}
"""By name: makes a step of a loss; the step it is compared with; the most that it may take."""


def lowering_seconds(layers: int, rounds: int) -> dict[str, float]:
    """Returns the processor time to trace and lower each form: the median of some rounds."""
    found: dict[str, list[float]] = {name: [] for name in FORMS}
    loss, shapes = unrolled_gpt(layers)
    for _ in range(rounds):
        for name, (form, _, _) in FORMS.items():
            jax.clear_caches()
            step = jax.jit(form(lambda *args: loss(*args)))
            found[name].append(seconds(lambda step=step: step.trace(*shapes).lower())[1])
    return {name: statistics.median(spent) for name, spent in found.items()}


def measure_layers(rounds: dict[int, int]) -> tuple[list[Bar], str, dict[str, Any]]:
    """Returns limits, a table and data.

    Args:
        rounds: the numbers of layers, and how often each is measured.
    """
    lowering_seconds(2, 1)  # imports and first calls belong to no round
    spent = {layers: lowering_seconds(layers, count) for layers, count in rounds.items()}
    bars, rows = [], []
    for name, (_, base, most) in FORMS.items():
        rows.append([name, *[spent[layers][name] for layers in rounds]])
        if base:
            ratios = {layers: spent[layers][name] / spent[layers][base] for layers in rounds}
            rows.append([f"  over {base}", *ratios.values()])
            bars += [
                Bar(f"lowering {name}, {layers} layers", ratio, most, "times float32")
                for layers, ratio in ratios.items()
            ]
    head = ["layers: processor seconds to trace and lower", *map(str, rounds)]
    return bars, table(head, rows), {str(layers): found for layers, found in spent.items()}
