# python -m benchmarks.tensorflow_graphs
"""TensorFlow graphs in half precision: duotone's painter next to TensorFlow's and minimum cut.

``python -m benchmarks.tensorflow_graphs FOLDER`` measures and writes the result; ``--print`` writes
none, ``--only TEXT`` takes the models whose names contain the text.

The models are the observed graphs of ``tests/data/tensorflow_amp`` that have no variables, Keras
exports, and what the folder holds: SavedModels and checkpoints of TensorFlow 1, unpacked from PyPI
packages (basic-pitch, guesslang, musicnn). Each is rewritten as a file and runs in TensorFlow on
the CPU without Grappler, which computes every half value in half. The error is that of the worst
result, relative to its largest element: the median over the seeds of random inputs. Bytes are those
of the rewritten file over those of the given one; the weights of a SavedModel are in another file.
It needs TensorFlow, which the environment of ``make test-tensorflow`` has.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._common import Bar, Result, table, write
from benchmarks._tensorflow_models import exported, inputs_of, observed, packaged
from duotone.errors import DuotoneError
from duotone.tensorflow import BodyResult, compare, files, rewrite_file

QUESTION = "Are real TensorFlow graphs as accurate, as small and as clean by each painter?"
COMMAND = "python -m benchmarks.tensorflow_graphs FOLDER"
PAINTERS = ("duotone", "tensorflow", "mincut")
NO_KERNEL = "this machine has no kernel"
SEEDS = range(3)
BYTES = 0.55
SMALLEST = 100_000
"""The bytes of a file from which its weights count, and not its nodes."""
NOISE = 1.1
ERROR = 5e-3
"""Errors up to this are those of rounding, where the order of two painters follows from the seed;
above it, one is larger than another from a tenth on."""


def measure(
    path: Path, fetch: Sequence[str] | None, data: dict[str, Any] | None, folder: Path
) -> dict[str, Any]:
    """What each painter made of one model: error, nodes in half, casts, bytes, seconds."""
    source = files.read(path)
    size = source.file.stat().st_size
    found: dict[str, Any] = {
        "nodes": sum(map(_size, source.graphs())),
        "frozen": path.is_file() and size >= SMALLEST,
    }
    for painter in PAINTERS:
        out = folder / f"{path.stem}.{painter}{path.suffix}"
        start = time.process_time()
        done = rewrite_file(path, out, fetch=fetch, painter=painter, overwrite=True)
        spent = time.process_time() - start
        bodies = [b for g in done.graphs for b in (g.result, *g.result.functions.values())]
        found[painter] = {
            "half": sum(map(_half, bodies)),
            "casts": sum(len(body.casts) for body in bodies),
            "bytes": files.read(out).file.stat().st_size / size,
            "seconds": spent,
        }
        try:
            errors = [compare(path, out, data, seed=seed).error for seed in SEEDS]
            found[painter]["error"] = statistics.median(errors)
        except DuotoneError as error:
            found[painter]["failed"] = str(error).replace(f"{folder}/", "")
    return found


def _size(graph: Any) -> int:
    return len(graph.node) + sum(len(function.node_def) for function in graph.library.function)


def _half(body: BodyResult) -> int:
    """The nodes with a half type."""
    return len({d.node for d in body.decisions if d.precision != "f32"})


def _models(source: Path | None, folder: Path) -> Iterator[tuple[str, Path, list[str] | None]]:
    yield from observed(folder)
    for name, path in exported(folder):
        yield name, path, None
    if source is not None:
        for name, path in packaged(source, folder):
            yield name, path, None


def bars_of(records: dict[str, dict[str, Any]]) -> list[Bar]:
    """Failures, errors against those of TensorFlow's painter, and bytes, over all models."""
    failed, worse, large, ratios = 0, 0, 0, []
    for one in records.values():
        ours, theirs = one["duotone"], one["tensorflow"]
        if NO_KERNEL in ours.get("failed", ""):
            continue
        error, other = (each.get("error", math.inf) for each in (ours, theirs))
        failed += not math.isfinite(error)
        worse += error > max(NOISE * other, ERROR)
        large += one["frozen"] and ours["bytes"] > BYTES
        ratios += [error / other] if error and other < math.inf else []
    mean = statistics.geometric_mean(ratios or [1.0])
    return [
        Bar("graphs that do not run or are not finite", failed, 0, "graphs"),
        Bar(f"graphs with an error above {ERROR:g} and TensorFlow's painter's", worse, 0, "graphs"),
        Bar("error over that of TensorFlow's painter, geometric mean", mean, 1.0, "times"),
        Bar(f"frozen models that keep more than {BYTES} of their bytes", large, 0, "graphs"),
    ]


def _cells(one: dict[str, Any]) -> list[Any]:
    missing = "no kernel" if NO_KERNEL in one.get("failed", "") else "does not run"
    error = f"{one['error']:.1e}" if "error" in one else missing
    return [error, one["half"], one["casts"], one["bytes"], one["seconds"]]


def text_of(records: dict[str, dict[str, Any]]) -> str:
    """The table: a row for each model, five columns for each painter."""
    columns = ("error", "half", "casts", "bytes", "s")
    heads = [f"{painter} {column}" for painter in PAINTERS for column in columns]
    rows = [
        [name, one["nodes"], *(cell for painter in PAINTERS for cell in _cells(one[painter]))]
        for name, one in records.items()
    ]
    return table(["model", "nodes", *heads], rows)


def main() -> None:
    """Measures every model and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="of SavedModels and checkpoints")
    parser.add_argument("--print", action="store_true", help="write no result, as without FOLDER")
    parser.add_argument("--only", default="", metavar="TEXT", help="models with it in their names")
    asked = parser.parse_args()
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")
    logging.disable(logging.WARNING)
    records: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path, fetch in _models(asked.folder, Path(folder)):
            if asked.only in name:
                records[name] = measure(path, fetch, inputs_of(name), Path(folder))
                print(name, json.dumps(records[name]), flush=True)
    bars, text = bars_of(records), text_of(records)
    print(text)
    if asked.folder and not (asked.print or asked.only):  # a part never replaces the whole
        write(Result("tensorflow_graphs", QUESTION, COMMAND, bars, text, {"models": records}))


if __name__ == "__main__":
    main()
