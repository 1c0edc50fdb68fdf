# python -m benchmarks.estimate
"""How near is what ``duotone.compare`` estimates to the program that a compiler makes?

For each model of the zoo, its whole training step in float32 and painted: the roofline time that is
estimated without a compiler next to that of the program compiled for an H200, which
``benchmarks.painter`` has written down. Nothing is compiled, so it needs no extra.
"""

from __future__ import annotations

import json
from typing import Any

import jax

import duotone
from benchmarks._common import RESULTS, Bar, Result, write
from benchmarks.zoo import MODELS

QUESTION = "How near is the estimate of duotone.compare to the compiled program?"
MOST = 2.0
"""By which factor a time, and a speed-up, may be wrong."""
_HEAD = (
    f"{'h200, float16, ms':<18}{'float32':>9}{'compiled':>10}{'duotone':>9}{'compiled':>10}"
    f"{'speed-up':>10}{'compiled':>10}"
)


def estimated(name: str) -> tuple[float, float]:
    """Seconds of a model's step, in float32 and painted."""
    case = MODELS[name](None, "full")
    key = jax.random.key(0)
    state = jax.eval_shape(case.start, key)
    batch = jax.eval_shape(lambda k: case.batch(k, "ordinary"), key)
    seen = duotone.compare(case.step, state, batch, targets="h200", dtype="float16", exact=False)
    return seen.row("h200", "float32").seconds, seen.row("h200").seconds


def compiled(name: str, records: dict[str, Any]) -> tuple[float, float]:
    """The same of the compiled programs, as ``benchmarks.painter`` has them."""
    ways = f"{name}/h200/float32", f"{name}/h200/float16/duotone"
    full, half = (records[way]["seconds"] for way in ways)
    return full, half


def main() -> None:
    """Estimates each step, prints and writes the table."""
    records = json.loads((RESULTS / "painter.json").read_text())["figures"]["records"]
    lines, figures = [_HEAD], {}
    for name in MODELS:
        (full, half), (true_full, true_half) = estimated(name), compiled(name, records)
        lines.append(
            f"{name:<18}{1e3 * full:>9.2f}{1e3 * true_full:>10.2f}{1e3 * half:>9.2f}"
            f"{1e3 * true_half:>10.2f}{full / half:>10.2f}{true_full / true_half:>10.2f}"
        )
        figures[name] = {
            "float32": full / true_full,
            "duotone": half / true_half,
            "speed-up": (full / half) / (true_full / true_half),
        }
    bars = [
        Bar(f"{what}, {name}: wrong by", max(ratio, 1 / ratio), MOST, "times")
        for name, ratios in figures.items()
        for what, ratio in ratios.items()
    ]
    worst = [
        max((b for b in bars if b.name.startswith(w)), key=lambda b: b.value)
        for w in ("float32", "duotone", "speed-up")
    ]
    command = "python -m benchmarks.estimate"
    write(Result("estimate", QUESTION, command, worst, "\n".join(lines), figures))


if __name__ == "__main__":
    main()
