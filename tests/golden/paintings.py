"""Paintings of the small models as text: what the golden files hold.

One file for each model and program. Its first part has a line for each operation and a column for
each painting (``=`` where a column says what the column to its left says; ``again`` where readers
far downstream recompute a value); then come the casts and the totals of each painting. No source
lines: they change with every edit.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax

import duotone
from duotone.precision.record import OperationRecord, Record
from tests.models import MODELS

PAINTINGS = tuple((p, h) for p in ("duotone", "tensorflow") for h in ("float16", "bfloat16"))
PROGRAMS = ("forward", "value_and_grad")
CASES = tuple((model, program) for model in MODELS for program in PROGRAMS)


def version() -> tuple[int, int]:
    """Of JAX: its tracing differs a little from version to version."""
    major, minor = jax.__version__.split(".")[:2]
    return int(major), int(minor)


def own_file(model: str, program: str) -> Path:
    """The golden file of one program for this version of JAX alone."""
    major, minor = version()
    return Path(__file__).parent / f"jax-{major}.{minor}" / f"{model}.{program}.txt"


def golden(model: str, program: str, *, own: bool = True) -> str:
    """The golden text: of this version, or of the newest older one that has a file.

    A version's folder holds only what differs from the versions before it.

    Args:
        model: name of the model.
        program: name of the program.
        own: whether this version's own file counts.
    """
    found = ""
    for folder in sorted(Path(__file__).parent.glob("jax-*"), key=_version_of):
        path = folder / f"{model}.{program}.txt"
        older = _version_of(folder) < version() or (own and _version_of(folder) == version())
        if older and path.exists():
            found = path.read_text()
    return found


def _version_of(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.removeprefix("jax-").split("."))


def render(model: str, program: str) -> str:
    """The paintings of one program."""
    records = {f"{p} {h}": _record(model, program, p, h) for p, h in PAINTINGS}
    title = f"{model}, {program}. Written by scripts/update_goldens.py."
    parts = [title, _operations(records)]
    for name, record in records.items():
        parts += [f"{name}\n{_casts(record)}\n{_totals(record)}"]
    return "\n\n".join(parts) + "\n"


def _record(model: str, program: str, painter: Any, half: str) -> Record:
    chosen = MODELS[model]
    params, inputs, labels = jax.eval_shape(chosen.example)
    policy = duotone.Policy(painter=painter)
    if program == "forward":
        return duotone.explain(chosen.forward, params, *inputs, dtype=half, policy=policy)
    step = jax.value_and_grad(chosen.loss)
    return duotone.explain(step, params, inputs, labels, dtype=half, policy=policy)


_AGAIN = {"recompute", "recompute_very_expensive", "normalized_softmax"}


def _precision(operation: OperationRecord) -> str:
    paint, stored = operation.paint, operation.stored
    again = " again" if {name for name, _ in operation.optimizations} & _AGAIN else ""
    return f"{paint if paint == stored else f'{paint}>{stored}'} {operation.rule}{again}"


def _operations(records: dict[str, Record]) -> str:
    rows = [["operation", "result", "scope", *records]]
    for same in zip(*(record.operations for record in records.values()), strict=True):
        first = same[0]
        precisions = [_precision(operation) for operation in same]
        shown = [
            "=" if position and precision == precisions[position - 1] else precision
            for position, precision in enumerate(precisions)
        ]
        result = f"{first.dtype}[{','.join(first.shape)}]"
        rows.append([first.operation, result, first.scope or "-", *shown])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _casts(record: Record) -> str:
    lines = Counter(
        f"  to {cast.to} [{','.join(cast.shape)}] of {cast.maker} for {', '.join(cast.readers)}"
        + (f", {cast.runs} times" if cast.runs > 1 else "")
        for cast in record.casts
    )
    return "\n".join(line + (f" (x {n})" if n > 1 else "") for line, n in lines.items())


def _totals(record: Record) -> str:
    s = record.summary
    return (
        f"  = {s.casts_inserted} casts; {s.operations_half} operations half, "
        f"{s.operations_full} full; allow {s.allow_half}/{s.allow_total}; "
        f"FLOPs half {s.flops_half_share:.1%}; bytes {s.bytes_half + s.bytes_full} "
        f"of {s.bytes_original}" + (f"; unlisted {s.unlisted}" if s.unlisted else "")
    )
