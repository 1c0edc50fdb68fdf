# python -m benchmarks.blame_cost
"""How much longer does a step take when ``duotone.blame`` looks at it?

Whole steps of value and gradient of small models in float16, and the same under ``blame``, whose
program runs each value twice, in half and in float32, and notes what becomes of it. The compiled
programs run in turn; a figure is the median over rounds of their ratio. What the first look
compiles is beside it.
"""

from __future__ import annotations

from typing import Any

import jax

import duotone
from benchmarks._common import Bar, Result, median, seconds, table, write
from benchmarks.models import small_resnet, small_transformer, small_unet

QUESTION = "How much longer does a step take when blame looks at it?"
COMMAND = "python -m benchmarks.blame_cost"
MODELS = {"resnet": small_resnet, "transformer": small_transformer, "unet": small_unet}
ROUNDS = 11
_LIMIT = 3.0


def measure(name: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds of a step, plain and looked at, and of their first calls.

    Args:
        name: a key of :data:`MODELS`.
        rounds: of both in turn.
    """
    case = MODELS[name]()
    params = case.init(jax.random.key(0))
    batch = case.batch(jax.random.key(1), "ordinary")
    step = jax.jit(duotone.value_and_grad(case.loss, dtype="float16"))

    def plain() -> None:
        jax.block_until_ready(step(params, batch))

    def looked() -> None:
        duotone.blame(step, params, batch)

    first = [seconds(call)[0] for call in (plain, looked)]
    pairs = [(seconds(plain)[0], seconds(looked)[0]) for _ in range(rounds)]
    return {
        "plain": median([pair[0] for pair in pairs]),
        "looked": median([pair[1] for pair in pairs]),
        "ratio": median([b / a for a, b in pairs]),
        "first plain": first[0],
        "first looked": first[1],
    }


def main() -> None:
    """Measures each model and writes the table."""
    found = {name: measure(name) for name in MODELS}
    rows = [
        [
            name,
            f"{1e3 * row['plain']:.1f}",
            f"{1e3 * row['looked']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['first plain']:.1f}",
            f"{row['first looked']:.1f}",
        ]
        for name, row in found.items()
    ]
    head = ["float16", "step ms", "looked ms", "ratio", "first call s", "first look s"]
    bars = [
        Bar(f"{name}: a step under blame over a plain one", row["ratio"], _LIMIT, "times")
        for name, row in found.items()
    ]
    write(Result("blame_cost", QUESTION, COMMAND, bars, table(head, rows), found))


if __name__ == "__main__":
    main()
