# python -m benchmarks.painter_error
"""Are the gradients of the zoo, painted, as good as those with dtypes set by hand?

The measure and the hostile inputs of :mod:`benchmarks.gradient_error`, on every model of the zoo at
the size that float64 can follow here. Of the models that read whole numbers an embedding is
hostile. Each model is measured in a process of its own and written as soon as it is there;
``--resume`` leaves out those that were.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._common import RESULTS, Bar, Result, write
from benchmarks.gradient_error import HALF_TYPES, PAINTED, SEEDS, errors, summary, text_of
from benchmarks.zoo import MODELS

QUESTION = "Are the gradients of the zoo, painted, as good as with dtypes set by hand?"
COMMAND = "python -m benchmarks.painter_error"
_ROOT = Path(__file__).parent.parent

Rows = Mapping[str, Any]
"""By half type, the rows of :func:`benchmarks.gradient_error.summary`."""


def measure(model: str, seeds: int) -> dict[str, Any]:
    """Errors of one model."""
    found = errors(functools.partial(MODELS[model], size="tiny"), seeds)
    return {half: summary(found, half) for half in HALF_TYPES}


def measured_apart(model: str, seeds: int) -> dict[str, Any]:
    """:func:`measure` in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.painter_error", "--measure", model]
        command += ["--seeds", str(seeds), "--into", str(into)]
        subprocess.run(command, cwd=_ROOT, check=True)
        return json.loads(into.read_text())


def bars_of(data: Mapping[str, Rows]) -> list[Bar]:
    """The limit of every model, half type, input distribution and side of ``grad``."""
    return [
        Bar(
            f"{model}, {row['inputs']}: {half} {way} over by hand",
            round(float(row[f"{way} ratio"]), 2),
            1.0,
            "times",
        )
        for model in data
        for half in HALF_TYPES
        for row in data[model][half]
        for way in PAINTED
        if not math.isnan(float(row[f"{way} ratio"]))
    ]


def result_of(data: Mapping[str, Rows], seeds: int) -> Result:
    """What :func:`~benchmarks._common.write` writes."""
    texts = [text_of(model, half, data[model][half]) for model in data for half in HALF_TYPES]
    texts.append(
        "Errors are medians over the seeds. Ratios are painted over by hand, seed by seed: the\n"
        "geometric mean, and after */ its standard error as a factor.\n"
        f"not finite: by hand/{'/'.join(PAINTED)}, of {seeds} seeds."
    )
    figures = {"seeds": seeds, "models": dict(data)}
    return Result("painter_error", QUESTION, COMMAND, bars_of(data), "\n\n".join(texts), figures)


def load(folder: Path = RESULTS) -> dict[str, Rows]:
    """The models that have been measured; numbers that JSON cannot hold are their names there."""
    file = folder / "painter_error.json"
    if not file.exists():
        return {}
    models = json.loads(file.read_text())["figures"]["models"]
    return {
        model: {half: [_numbers(row) for row in rows] for half, rows in halves.items()}
        for model, halves in models.items()
    }


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: float(value) if isinstance(value, str) and key != "inputs" else value
        for key, value in row.items()
    }


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", default=",".join(MODELS), help="models, divided by commas")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--resume", action="store_true", help="leave out what was measured")
    parser.add_argument("--measure", choices=[*MODELS])
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    if options.measure:
        options.into.write_text(json.dumps(measure(options.measure, options.seeds)))
        return
    models = options.only.split(",")
    if unknown := [model for model in models if model not in MODELS]:
        raise SystemExit(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    for model in models:
        if options.resume and model in load():
            continue
        print(model, file=sys.stderr)
        rows = measured_apart(model, options.seeds)
        found = {**load(), model: {half: [_numbers(row) for row in rows[half]] for half in rows}}
        ordered = {name: found[name] for name in MODELS if name in found}
        with contextlib.redirect_stdout(io.StringIO()):
            write(result_of(ordered, options.seeds))
    write(result_of(load(), options.seeds))


if __name__ == "__main__":
    main()
