# python -m benchmarks.cpu_memory
"""Does a painted training step ever need more memory on this CPU than in float32?

Every model of the zoo at CPU size, both halves, its whole training step compiled in float32, with
``duotone.autocast(step)`` and with ``value_and_grad(autocast(loss))``, each with the defaults; no
step is run. "Temporary" is what the compiler sets aside for values between arguments and results;
"whole" adds arguments and results, less what is shared: what the step holds. The training state is
donated, as training loops do. If it is not, the results are buffers of their own: the compiler puts
one temporary value at a time into each until its result is made, and counts these values nowhere.
A float32 step may then have next to no temporaries, and a half value wastes half of such a buffer.
``--only gpt2 vit`` prints some models and writes nothing. Run it once for each version of JAX.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import jax
from rich.progress import track

from benchmarks._common import THIS_VERSION, Bar, Result, table, with_part, write
from benchmarks.cpu_steps import steps
from benchmarks.zoo import MODELS

QUESTION = "Does a painted training step ever need more memory on this CPU than in float32?"
WAYS = ("duotone", "value_and_grad(autocast)")
_LIMIT = 1.05


def measure(name: str, size: str = "cpu") -> dict[str, dict[str, int]]:
    """Bytes of each way's compiled step, ``temporary`` and ``whole``."""
    case = MODELS[name](None, size)
    state = jax.eval_shape(case.start, jax.random.key(0))
    batch = jax.eval_shape(lambda key: case.batch(key, "ordinary"), jax.random.key(1))
    found = {}
    for way, step in steps(MODELS[name], size).items():
        if way not in ("float32", *WAYS):
            continue
        donated = jax.jit(step, donate_argnums=0)
        seen: Any = donated.lower(state, batch).compile().memory_analysis()
        held = seen.argument_size_in_bytes + seen.output_size_in_bytes - seen.alias_size_in_bytes
        temporary = seen.temp_size_in_bytes
        found[way] = {"temporary": temporary, "whole": temporary + held}
    jax.clear_caches()
    return found


def ratios(row: dict[str, dict[str, int]], kind: str) -> list[float]:
    """Each way's bytes over float32's."""
    return [row[way][kind] / row["float32"][kind] for way in WAYS if way in row]


def text_of(rows: dict[str, dict[str, dict[str, int]]], version: str) -> str:
    """The table of one version of JAX."""
    head = [version, "float32 MB", *(f"{way}, {kind}" for kind in KINDS for way in WAYS)]
    body = []
    for name, row in rows.items():
        absent = [""] * len([way for way in WAYS if way not in row])
        cells = [x for kind in KINDS for x in [*ratios(row, kind), *absent]]
        body.append([name, row["float32"]["whole"] / 1e6, *(_two(cell) for cell in cells)])
    return table(head, body)


KINDS = ("temporary", "whole")


def _two(cell: Any) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else cell


def bars(rows: dict[str, dict[str, dict[str, int]]], version: str) -> list[Bar]:
    """The largest ratio of each kind, and the mean."""
    worst = [
        Bar(
            f"{version}: {kind} memory over float32's, {name}",
            round(max(ratios(row, kind)), 2),
            _LIMIT,
            "times",
        )
        for kind in KINDS
        for name, row in [max(rows.items(), key=lambda item: max(ratios(item[1], kind)))]
    ]
    every = [ratio for row in rows.values() for ratio in ratios(row, "whole")]
    mean = statistics.geometric_mean(every)
    return [*worst, Bar(f"{version}: whole memory, geometric mean", mean, 1.0, "times")]


def main() -> None:
    """Compiles the zoo and writes the tables."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", nargs="+", choices=list(MODELS))
    only = parser.parse_args().only
    rows = {name: measure(name) for name in track(only or list(MODELS), "models")}
    if only:
        print(text_of(rows, THIS_VERSION))
        return
    found = with_part("cpu_memory", rows)
    text = "\n\n".join(text_of(part, version) for version, part in found.items())
    every = [bar for version, part in found.items() for bar in bars(part, version)]
    write(Result("cpu_memory", QUESTION, "python -m benchmarks.cpu_memory", every, text, found))


if __name__ == "__main__":
    main()
