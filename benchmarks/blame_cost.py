# python -m benchmarks.blame_cost
"""How much longer does a step take when ``duotone.blame`` looks at it?

Whole steps of value and gradient of models of the zoo in float16, and the same under ``blame``,
whose program runs each value twice, in half and in float32, and notes what becomes of it. One step
overflows, as those do for which blame is called; one is finite, and there blame runs a second
program for the errors. The compiled programs run in turn; a figure is the median over rounds of
their ratio. The compile time of the first look is next to it.
"""

from __future__ import annotations

from typing import Any

import jax

import duotone
from benchmarks._common import Bar, Result, median, seconds, table, take_no_options, write
from benchmarks.zoo import MODELS

QUESTION = "How much longer does a step take when blame looks at it?"
COMMAND = "python -m benchmarks.blame_cost"
NAMES = ("resnet50", "gpt2", "unet")
"""The models of the zoo, at their smallest size."""
ROUNDS = 11
_LIMIT = 3.0
_OVERFLOWS = 1e9
KINDS = {"overflow": _OVERFLOWS, "finite": 1.0}
"""By what the loss is multiplied."""


def measure(name: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds of a step, plain and looked at, and of their first calls.

    The first look at a step that is finite compiles the second program: it comes after a look at
    one that overflows.
    """
    case = MODELS[name](None, "tiny")
    params = case.init(jax.random.key(0))
    batch = case.batch(jax.random.key(1), "ordinary")
    scaled = duotone.value_and_grad(
        lambda params, batch, factor: factor * case.loss(params, batch), dtype="float16"
    )
    step = jax.jit(scaled)

    def plain(factor: float) -> float:
        return seconds(lambda: jax.block_until_ready(step(params, batch, factor)))[0]

    def looked(factor: float) -> float:
        return seconds(lambda: duotone.blame(step, params, batch, factor))[0]

    first = {"plain": plain(_OVERFLOWS), "overflow": looked(_OVERFLOWS), "finite": looked(1.0)}
    found: dict[str, Any] = {f"first {kind}": took for kind, took in first.items()}
    for kind, factor in KINDS.items():
        verdict = duotone.blame(step, params, batch, factor).verdict
        if (verdict == "finite") != (kind == "finite"):
            raise AssertionError(f"{name}: the {kind} step is {verdict}")
        pairs = [(plain(factor), looked(factor)) for _ in range(rounds)]
        found[kind] = {
            "plain": median([pair[0] for pair in pairs]),
            "looked": median([pair[1] for pair in pairs]),
            "ratio": median([b / a for a, b in pairs]),
        }
    return found


def main() -> None:
    """Measures each model and writes the table."""
    take_no_options(QUESTION)
    found = {name: measure(name) for name in NAMES}
    rows, bars = [], []
    for name, row in found.items():
        for kind in KINDS:
            spent, first = row[kind], row["first overflow"]
            first += row["first finite"] if kind == "finite" else 0
            cells = [f"{1e3 * spent[key]:.1f}" for key in ("plain", "looked")]
            cells += [f"{spent['ratio']:.2f}", f"{row['first plain']:.1f}", f"{first:.1f}"]
            rows.append([f"{name}, {kind}", *cells])
            told = f"{name}, {kind}: a step under blame over a plain one"
            bars.append(Bar(told, spent["ratio"], _LIMIT, "times"))
    head = ["float16", "step ms", "looked ms", "ratio", "first call s", "first look s"]
    write(Result("blame_cost", QUESTION, COMMAND, bars, table(head, rows), found))


if __name__ == "__main__":
    main()
