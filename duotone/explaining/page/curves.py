"""Curves of a training for the page, from numbers or a CSV file.

The page marks numbers that are not finite. It samples a long curve and keeps the least, the
greatest and one non-finite number of each part.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from duotone._checks import path_of
from duotone.errors import ArgumentError, ArgumentTypeError, shown

MOST_PARTS = 500
"""The number of parts of a long curve; each keeps at most three points."""
_LOG_FROM = 100.0
"""A positive curve has a logarithmic axis if its range is at least this ratio."""
_TIMES = ("wall time", "wall_time")
"""Columns of TensorBoard's CSV files that are not curves."""


def curves_of(history: Mapping[str, Any] | str | PathLike[str]) -> list[dict[str, Any]]:
    """Converts curves to the data that the page draws.

    Args:
        history: a dict from names to sequences of numbers, the first of which is step 0, or of
            pairs (step, number); or a CSV file with the names in its first line.

    Returns:
        For each curve ``name``, ``steps``, ``values`` (``None`` if not finite) and ``log``
        (whether the axis is logarithmic). The unsampled curve has ``count`` numbers, of which
        ``lost`` are not finite; ``last``, ``least`` and ``greatest`` are pairs (step, number) or
        ``None``.

    Raises:
        ArgumentTypeError: ``history`` is neither, or a curve holds something that is not a number.
        ArgumentError: the file cannot be read, or is not a CSV file with numbers.

    Example:
        >>> curves_of({"loss": [2.0, float("nan"), 1.0]})[0]["values"]
        [2, None, 1]
    """
    if isinstance(history, str | PathLike):
        history = _read(path_of("report", "history", history))
    if not isinstance(history, Mapping):
        raise ArgumentTypeError(
            f"history is {shown(history)}; pass a dict of numbers by name, or the name of a CSV "
            "file"
        )
    return [_curve(str(name), *_points(str(name), points)) for name, points in history.items()]


def _points(name: str, points: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps and numbers of a curve, sorted by step."""
    try:
        found = np.asarray(points, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"history[{name!r}] holds something that is not a number; pass numbers, or "
            "pairs (step, number)"
        ) from error
    if found.ndim == 1:
        return np.arange(len(found), dtype=np.float64), found
    if found.ndim != 2 or found.shape[1] != 2 or not np.isfinite(found[:, 0]).all():
        raise ArgumentTypeError(
            f"history[{name!r}] has the shape {found.shape}; pass numbers, or pairs (step, number)"
        )
    found = found[np.argsort(found[:, 0], kind="stable")]
    return found[:, 0], found[:, 1]


def _curve(name: str, steps: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    finite = np.flatnonzero(np.isfinite(values))
    least = greatest = None
    log = False
    if len(finite):
        low, high = finite[values[finite].argmin()], finite[values[finite].argmax()]
        least, greatest = _point(steps, values, low), _point(steps, values, high)
        log = bool(values[low] > 0 and values[high] >= _LOG_FROM * values[low])
    kept = _kept(values)
    return {
        "name": name,
        "steps": [_short(step) for step in steps[kept]],
        "values": [_short(value) if np.isfinite(value) else None for value in values[kept]],
        "log": log,
        "count": len(values),
        "lost": len(values) - len(finite),
        "last": _point(steps, values, finite[-1]) if len(finite) else None,
        "least": least,
        "greatest": greatest,
    }


def _kept(values: np.ndarray) -> np.ndarray:
    """Returns the indices of the sampled points."""
    if len(values) <= 3 * MOST_PARTS:
        return np.arange(len(values))
    kept = {0, len(values) - 1}
    for part in np.array_split(np.arange(len(values)), MOST_PARTS):
        finite = part[np.isfinite(values[part])]
        if len(finite):
            kept |= {int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])}
        if len(finite) < len(part):
            kept.add(int(part[~np.isfinite(values[part])][0]))
    return np.array(sorted(kept))


def _point(steps: np.ndarray, values: np.ndarray, index: int) -> list[int | float]:
    return [_short(steps[index]), _short(values[index])]


def _short(number: float) -> int | float:
    """Rounds a number to six digits, more than a screen shows."""
    short = float(f"{number:.6g}") if abs(number) < 1e15 and number != int(number) else number
    return int(short) if short == int(short) and abs(short) < 1e15 else float(short)


def _read(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Reads the curves of a CSV file; a curve has no number at an empty cell."""
    curves: dict[str, list[tuple[float, float]]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file, strict=True)
            names = list(lines.fieldnames or ())
            step_of = next((name for name in names if name.strip().lower() == "step"), None)
            drawn = [n for n in names if n != step_of and n.strip().lower() not in _TIMES]
            if not drawn:
                raise ArgumentError(f"{path}: its first line must name the curves: step,loss")
            for number, line in enumerate(lines):
                step = number if step_of is None else _number(line, step_of, path, lines.line_num)
                for name in drawn:
                    if (line[name] or "").strip():
                        value = _number(line, name, path, lines.line_num)
                        curves.setdefault(name.strip(), []).append((step, value))
    except OSError as error:
        raise ArgumentError(
            f"cannot read the curves of {path}: {error.strerror}. Name a CSV file."
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(f"{path} is not a CSV file: {error}") from error
    return curves


def _number(line: Mapping[str, str | None], name: str, path: Path, number: int) -> float:
    try:
        return float(line[name] or "")
    except ValueError as error:
        raise ArgumentError(
            f"{path}, line {number}: {name} is {line[name]!r}, which is not a number"
        ) from error
