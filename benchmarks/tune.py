# python -m benchmarks.tune
"""What does ``duotone.tune`` gain over duotone's own choice, with a device's compiler as the judge?

Whole training steps of the zoo's second half, tuned for a device that need not be here (extras
``cuda``, ``tpu``) within ``--minutes`` a model, for bytes moved. What the steps with dtypes set by
hand move is taken from ``results/painter.json``; what is not there is compiled. Each model is
written as soon as it is there, beside what was measured before; ``--resume`` leaves out what was.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks import painter
from benchmarks._common import RESULTS, Bar, Result, chosen_names, table, write
from benchmarks._painter_rows import Job
from benchmarks.ablation import geometric_mean
from benchmarks.zoo import MODELS, Size, names_of
from duotone.errors import MissingExtraError
from duotone.targets import find_target

QUESTION = "What does duotone.tune gain over duotone's own choice?"
COMMAND = "python -m benchmarks.tune"
BY_HAND = "by hand"
LIMIT = 0.88
"""Bytes over by hand's, geometric mean, with ten minutes a model on two cores."""
HALF_TYPES = ("float16", "bfloat16")
Records = Mapping[str, Mapping[str, Any]]
"""By ``model/target/half type``."""


def measure(
    model: str, target: str, half: str, minutes: float, size: Size = "full", folder: Path = RESULTS
) -> dict[str, Any]:
    """Tunes one step.

    Args:
        model: name in the zoo.
        target: name of a target.
        half: half type.
        minutes: that the search may take.
        size: of the model.
        folder: of the painter's results, for the step with dtypes set by hand.

    Returns:
        Bytes and temporary memory by hand, of duotone's own choice and tuned, and the trials.
    """
    case = MODELS[model](None, size)
    found = duotone.tune(
        jax.jit(case.step, donate_argnums=0),
        *case.step_shapes(),
        target=target,
        dtype=jnp.dtype(half),
        minutes=minutes,
        by="bytes",
    )
    own, best = found.trials[0], [trial for trial in found.trials if trial.kept][-1]
    return {
        "by hand": by_hand(model, target, half, size, folder),
        "own": own.bytes,
        "own temporary": own.temporary_bytes,
        "tuned": best.bytes,
        "tuned temporary": best.temporary_bytes,
        "minutes": minutes,
        "trials": len(found.trials),
        "kept": [trial.change for trial in found.trials[1:] if trial.kept],
    }


def by_hand(model: str, target: str, half: str, size: Size, folder: Path) -> float:
    """Bytes of the step with dtypes set by hand: measured by the painter's benchmark, or here."""
    known = painter.load(folder).get(Job(model, target, BY_HAND, half).key, {})
    if size == "full" and "bytes" in known:
        return known["bytes"]
    case = MODELS[model](jnp.dtype(half), size)
    step = jax.jit(case.step, donate_argnums=0)
    return duotone.compile_for(step, *case.step_shapes(), target=target).bytes


def columns_of(records: Records) -> list[tuple[str, str]]:
    """The targets and half types that something was measured for, in order."""
    return sorted({(key.split("/")[1], key.split("/")[2]) for key in records})


def rows_of(records: Records, target: str, half: str) -> dict[str, Mapping[str, Any]]:
    """The records of a target and a half type, by model, in the order of the zoo."""
    keys = {model: f"{model}/{target}/{half}" for model in MODELS}
    return {model: records[key] for model, key in keys.items() if key in records}


def means_of(rows: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    """Geometric means of bytes over by hand's: of duotone's own choice, and tuned."""
    own, tuned = (
        geometric_mean([row[way] / row["by hand"] for row in rows.values()])
        for way in ("own", "tuned")
    )
    return own, tuned


def bars_of(records: Records) -> list[Bar]:
    """The limit on the mean; no tuned step may move more, or need more memory, than the own one."""
    bars = []
    for target, half in columns_of(records):
        rows = rows_of(records, target, half)
        name = f"{target}, {half}: tuned bytes over by hand, geometric mean of {len(rows)}"
        bars.append(Bar(name, means_of(rows)[1], LIMIT, "times"))
        worse = sum(
            row["tuned"] > row["own"] or row["tuned temporary"] > row["own temporary"]
            for row in rows.values()
        )
        bars.append(Bar(f"{target}, {half}: models that are worse tuned", worse, 0, ""))
    return bars


def text_of(records: Records) -> str:
    """A table for each target and half type."""
    texts = []
    for target, half in columns_of(records):
        rows = rows_of(records, target, half)
        head = [f"{target}, {half}", "own", "tuned", "memory", "trials", "minutes", "changes kept"]
        lines: list[list[Any]] = []
        for model, row in rows.items():
            kept = row["tuned temporary"] / max(row["own temporary"], 1)
            changes = ", ".join(row["kept"]) or "-"
            ratios = [f"{row[way] / row['by hand']:.3f}" for way in ("own", "tuned")]
            lines.append([model, *ratios, f"{kept:.3f}", row["trials"], row["minutes"], changes])
        means = [f"{mean:.3f}" for mean in means_of(rows)]
        lines.append([f"geometric mean of {len(rows)}", *means, "", "", "", ""])
        texts.append(table(head, lines))
    texts.append(
        "Bytes moved between kernels, over those with dtypes set by hand: duotone's own choice,\n"
        "tuned; temporary memory tuned, over that of the own choice. No time was measured."
    )
    return "\n\n".join(texts)


def result_of(records: Records) -> Result:
    """What :func:`~benchmarks._common.write` writes."""
    figures = {"records": dict(records)}
    return Result("tune", QUESTION, COMMAND, bars_of(records), text_of(records), figures)


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The records that have been written."""
    file = folder / "tune.json"
    return json.loads(file.read_text())["figures"]["records"] if file.exists() else {}


def run(
    todo: Sequence[tuple[str, str, str]],
    minutes: float,
    folder: Path = RESULTS,
    size: Size = "full",
) -> None:
    """Tunes, one model after another, and writes after each."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(todo))
        for model, target, half in todo:
            key = f"{model}/{target}/{half}"
            progress.update(task, description=key)
            record = measure(model, target, half, minutes, size, folder)
            with contextlib.redirect_stdout(io.StringIO()):
                write(result_of({**load(folder), key: record}), folder)
            gained = record["tuned"] / record["own"]
            said = f"{key}: {gained:.3f} of its own choice in {record['trials']} trials"
            progress.console.print(said, markup=False, highlight=False)
            progress.advance(task)
            jax.clear_caches()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    second = ",".join(names_of("second"))
    parser.add_argument("--only", default=second, help="models, divided by commas")
    parser.add_argument("--dtype", default="bfloat16", help="half types, likewise")
    parser.add_argument("--target", default="h200", help="to compile for")
    parser.add_argument("--minutes", type=float, default=10.0, help="a model (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="leave out what was measured")
    options = parser.parse_args(arguments)
    target = find_target(options.target).name
    known = load() if options.resume else {}
    todo = [
        (model, target, half)
        for half in chosen_names(options.dtype, HALF_TYPES, "half type")
        for model in chosen_names(options.only, list(MODELS), "model")
        if f"{model}/{target}/{half}" not in known
    ]
    try:
        run(todo, options.minutes)
    except MissingExtraError as reason:
        print(f"not measured: {reason}", file=sys.stderr)
        return
    write(result_of(load()))


if __name__ == "__main__":
    main()
