"""Ranges of arrays as calibration measures them, joined over several runs of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from duotone.errors import ArgumentTypeError, CalibrationError, shown
from duotone.graph.graph import HALF_TYPES
from duotone.precision.ranges.find import Measured

NO_MEASUREMENTS: Mapping[str, Measured] = MappingProxyType({})


def check_measured(who: str, source: str, measured: Any) -> None:
    """Raises unless an argument is a dictionary of ranges, as the function ``source`` returns."""
    values = measured.values() if isinstance(measured, Mapping) else [measured]
    if not all(isinstance(found, Measured) for found in values):
        raise ArgumentTypeError(
            f"{who}: measured is {shown(measured)}; pass what {source} returned"
        )


def ranges_of(arrays: Mapping[str, Any]) -> dict[str, Measured]:
    """Measures the float32 arrays of one run of a model, by name."""
    seen = {name: _measure(array) for name, array in arrays.items()}
    return {name: measured for name, measured in seen.items() if measured is not None}


def over_runs(runs: Iterable[Mapping[str, Measured]]) -> dict[str, Measured]:
    """Returns the range of each value over several runs, by name."""
    found: dict[str, Measured] = {}
    for values in runs:
        found |= {name: _joined(found.get(name), seen) for name, seen in values.items()}
    return found


def check_inputs(arrays: Mapping[str, Any]) -> None:
    """Raises a ``CalibrationError`` for a float32 input without finite numbers."""
    for name, array in arrays.items():
        if array.dtype == np.float32 and array.size and not np.isfinite(array).any():
            raise CalibrationError(
                f"the input {name!r} to calibrate with has no finite number; give data that "
                "the model is used with."
            )


def _measure(array: Any) -> Measured | None:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or not array.size:
        return None
    finite = array[np.isfinite(array)]
    if not finite.size:
        return None
    sizes = np.abs(finite[finite != 0])
    small = float(np.mean(sizes < HALF_TYPES["float16"].smallest_normal)) if sizes.size else 0.0
    return Measured(float(finite.min()), float(finite.max()), small)


def _joined(first: Measured | None, second: Measured) -> Measured:
    if first is None:
        return second
    return Measured(
        min(first.low, second.low),
        max(first.high, second.high),
        math.sqrt(first.small * second.small) if first.small and second.small else 0.0,
    )
