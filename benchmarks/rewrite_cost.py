# python -m benchmarks.rewrite_cost
"""What does painting cost at compile time, and does it grow linearly?

Four tables. The first takes the value-and-grad step of GPT-2 small (shapes only: nothing runs) and
compares the time that tracing takes with and without duotone, as a share of what the float32 step
takes to trace, lower and compile for the CPU. The second takes unrolled nets of up to 100,000
equations through the pipeline, stage by stage. The third lowers the step of an unrolled transformer
in each form that users write, and compares it with the float32 step. The last one loads the same
steps in new processes that find their programs in JAX's persistent cache.

``python -m benchmarks.rewrite_cost --gpt2``, ``--growth``, ``--layers`` or ``--second`` measures
one of the four only, and writes nothing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks import _second_process
from benchmarks._common import Bar, Result, equations, medians, seconds, table, write
from benchmarks._deep_nets import ROUNDS, measure_layers, unrolled_net
from benchmarks._stages import STAGES, stage_seconds
from benchmarks.zoo import MODELS
from benchmarks.zoo.case import Case

QUESTION = "What does painting cost at compile time, and does it grow linearly?"
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
PAINTING = ("build", "classify", "ranges", "safety rules", "paint", "plan", "check")
_FRAMES, _PERIOD = 10, 150
"""Frames by which a round is deeper than the one before; as many as fill a piece of CPython's
stack begin anew."""
_POLICY = duotone.Policy(ignore_performance=True)

ORDERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "float32": jax.value_and_grad,
    "autocast(value_and_grad(loss))": lambda loss: duotone.autocast(
        jax.value_and_grad(loss), dtype=jnp.bfloat16, policy=_POLICY
    ),
    "value_and_grad(autocast(loss))": lambda loss: jax.value_and_grad(
        duotone.autocast(loss, dtype=jnp.bfloat16, policy=_POLICY)
    ),
}
"""The step as it is, and painted on either side of the derivative."""


def _fresh(loss: Callable[..., Any]) -> Callable[..., Any]:
    """``loss`` under another identity: JAX has traced the old one."""
    return lambda *args: loss(*args)


def step_round(case: Case, turn: int) -> dict[str, float]:
    """One round: each order traced and lowered once, in an order that turns with the rounds.

    The depth of the call in the stack varies too: at some depths CPython asks for memory at every
    call of a loop, and tracing takes half as long again (``duotone/jaxpr/running/interpreter.py``).
    Then the float32 step is compiled (what is traced right after that takes longer), and the
    painted step goes through the pipeline stage by stage.
    """
    shapes, found, lowered = case.shapes(), {}, {}
    for name in _turned(list(ORDERS), turn):
        jax.clear_caches()
        step = ORDERS[name](_fresh(case.loss))
        traced = _at_depth(
            turn * _FRAMES % _PERIOD,
            lambda name=name, step=step: _timed(
                found, f"trace {name}", lambda: jax.jit(step).trace(*shapes)
            ),
        )
        lowered[name] = _timed(found, f"lower {name}", traced.lower)
    _timed(found, "compile float32", lowered["float32"].compile)
    jax.clear_caches()
    by_stage, _ = stage_seconds(jax.value_and_grad(_fresh(case.loss)), shapes)
    found.update({f"stage {name}": spent for name, spent in by_stage.items()})
    return found


def _at_depth(frames: int, function: Callable[[], Any]) -> Any:
    """``function()``, so many frames deeper in the stack."""
    return function() if frames == 0 else _at_depth(frames - 1, function)


def _timed(found: dict[str, float], name: str, function: Callable[[], Any]) -> Any:
    found[name], found[f"{name} (processor)"], result = seconds(function)
    return result


def _turned(names: list[str], turn: int) -> list[str]:
    turn %= len(names)
    return names[turn:] + names[:turn]


CLOCKS = {"by the clock": "", "processor time": " (processor)"}


def step_figures(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Medians of the rounds, and of each round's ratios."""
    for figures in rounds:
        for suffix in CLOCKS.values():
            whole = sum(figures[f"{x} float32{suffix}"] for x in ("trace", "lower", "compile"))
            figures[f"float32 trace + lower + compile{suffix}"] = whole
            for name in list(ORDERS)[1:]:
                added, lowered = (
                    figures[f"{x} {name}{suffix}"] - figures[f"{x} float32{suffix}"]
                    for x in ("trace", "lower")
                )
                figures[f"added % {name}{suffix}"] = 100 * added / whole
                figures[f"added with lowering % {name}{suffix}"] = 100 * (added + lowered) / whole
    return medians(rounds)


def step_text(figures: dict[str, float]) -> str:
    """The tables of the GPT-2 step."""
    tables = []
    for clock, suffix in CLOCKS.items():
        parts = ("trace", "lower", "compile", "added %", "added with lowering %")
        rows = [
            [name, *[figures.get(f"{part} {name}{suffix}", "-") for part in parts]]
            for name in ORDERS
        ]
        tables.append(table([f"GPT-2 small, seconds {clock}", *parts], rows))
    whole = figures["float32 trace + lower + compile (processor)"]
    stages = [[name, spent := figures[f"stage {name}"], 100 * spent / whole] for name in STAGES]
    head = ["stage of autocast(value_and_grad(loss))", "processor seconds", "% of float32"]
    return "\n\n".join([*tables, table(head, stages)])


def layers_for(count: int) -> int:
    """Layers with which the unrolled net's value-and-grad step has about ``count`` equations."""
    few, many = (_equations_of(layers) for layers in (4, 8))
    per_layer = (many - few) / 4
    return max(1, round((count - few) / per_layer) + 4)


def _equations_of(layers: int) -> int:
    loss, shapes = unrolled_net(layers)
    return equations(jax.make_jaxpr(jax.value_and_grad(loss))(*shapes))


def growth_row(count: int, repeats: int) -> dict[str, float]:
    """One size: medians of each stage's seconds, and the number of equations."""
    loss, shapes = unrolled_net(layers_for(count))
    rounds: list[dict[str, float]] = []
    count = 0
    for _ in range(repeats):
        jax.clear_caches()
        spent, jaxpr = stage_seconds(jax.value_and_grad(_fresh(loss)), shapes)
        spent["painting"] = sum(spent[name] for name in PAINTING)
        spent["all"] = sum(spent[name] for name in STAGES)
        rounds.append(spent)
        count = equations(jaxpr)
    return {"equations": count, **medians(rounds)}


def exponent(rows: Sequence[dict[str, float]], name: str) -> float:
    """Slope of a line through (log equations, log seconds): 1 is linear growth."""
    xs = [math.log(row["equations"]) for row in rows]
    ys = [math.log(row[name]) for row in rows]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    below = sum((x - x0) ** 2 for x in xs)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / below


def growth_text(rows: Sequence[dict[str, float]]) -> str:
    """The table of the unrolled nets."""
    names = (*STAGES, "painting", "all")
    cells = [[int(row["equations"]), *[row[name] for name in names]] for row in rows]
    cells.append(["growth exponent", *[exponent(rows, name) for name in names]])
    return table(["unrolled net, processor seconds", *names], cells)


def measure(
    *,
    gpt2: bool,
    growth: bool,
    layers: bool,
    second: bool,
    rounds: int,
    sizes: Sequence[int] = SIZES,
) -> tuple[list[Bar], list[str], dict[str, Any]]:
    """Measures what is asked for; returns bars, tables and data."""
    bars, texts, data = [], [], {}
    if gpt2:
        case = MODELS["gpt2"](None, "full")
        count = equations(jax.make_jaxpr(jax.value_and_grad(case.loss))(*case.shapes()))
        step_round(MODELS["gpt2"](None, "tiny"), 0)  # imports and first calls belong to no round
        figures = step_figures([step_round(case, turn) for turn in range(rounds)])
        data["step"] = {"equations": count, "rounds": rounds, **figures}
        texts.append(f"{count} equations, {rounds} rounds\n{step_text(figures)}")
        bars += [
            Bar(f"GPT-2 small, added by {name}, {clock}", figures[key], 15.0, "%")
            for clock, suffix in CLOCKS.items()
            for name in list(ORDERS)[1:]
            for key in [f"added % {name}{suffix}"]
        ]
    if growth:
        rows = [growth_row(count, 3 if count <= 10_000 else 1) for count in sizes]
        data["growth"] = {"rows": rows, "exponent": exponent(rows, "painting")}
        texts.append(f"painting = {' + '.join(PAINTING)}\n{growth_text(rows)}")
        last = rows[-1]
        bars.append(
            Bar(f"painting {int(last['equations']):,} equations", last["painting"], 20.0, "s")
        )
        bars.append(Bar("growth exponent of painting", data["growth"]["exponent"], 1.15, ""))
    if layers:
        found, text, data["layers"] = measure_layers(ROUNDS)
        bars += found
        texts.append(text)
    if second:
        found, text, data["second"] = _second_process.measure(_second_process.CHILDREN)
        bars += found
        texts.append(text)
    return bars, texts, data


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--gpt2", action="store_true", help="only the GPT-2 step; writes nothing")
    parser.add_argument("--growth", action="store_true", help="only the growth; writes nothing")
    parser.add_argument("--layers", action="store_true", help="only the layers; writes nothing")
    parser.add_argument(
        "--second", action="store_true", help="only second processes; writes nothing"
    )
    parser.add_argument("--rounds", type=int, default=15, help="of the GPT-2 step (default 15)")
    options = parser.parse_args()
    every = not (options.gpt2 or options.growth or options.layers or options.second)
    bars, texts, data = measure(
        gpt2=every or options.gpt2,
        growth=every or options.growth,
        layers=every or options.layers,
        second=every or options.second,
        rounds=options.rounds,
    )
    if not every:
        print("\n\n".join(texts))
        return
    command = "python -m benchmarks.rewrite_cost"
    write(Result("rewrite_cost", QUESTION, command, bars, "\n\n".join(texts), data))


if __name__ == "__main__":
    main()
