"""Calibrate: the ranges of a model's values on data, measured in ONNX Runtime.

It does not measure values inside ``If``, ``Loop`` and ``Scan``, which cannot be results of the
model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from duotone.errors import CalibrationError
from duotone.graph.graph import HALF_TYPES
from duotone.measuring.inputs import read_inputs
from duotone.onnx import files, running
from duotone.onnx.exposing import with_all_values
from duotone.precision.ranges.find import Measured


def calibrate(model: Any, data: Any) -> dict[str, Measured]:
    """Measures the float32 values of a model.

    Args:
        model: the path of a model, or an ``onnx.ModelProto``.
        data: inputs by name, a list of such, or an ``.npz`` file of them.

    Returns:
        The range of each value of the outermost graph, by name.

    Raises:
        CalibrationError: the model cannot be measured, or not with this data.
        OnnxError: the model is damaged, or ONNX Runtime cannot run it.
    """
    return measured(files.read(model), data)


def measured(source: files.Source, data: Any) -> dict[str, Measured]:
    """Measures a model that was read; see :func:`calibrate`."""
    found: dict[str, Measured] = {}
    for values in measured_runs(source, read_inputs(data)):
        found |= {name: _joined(found.get(name), seen) for name, seen in values.items()}
    return found


def measured_runs(
    source: files.Source, feeds: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Measured]]:
    """Measures the float32 values of a model in one run for each feed.

    Raises:
        CalibrationError: an input has no finite number.
        OnnxError: ONNX Runtime cannot run the model.
    """
    model, names = with_all_values(source.model)
    opened = running.session(model, folder=source.folder)
    inputs = [value.name for value in opened.get_inputs() if value.type == "tensor(float)"]
    for feed in feeds:
        given = running.fitted(opened, feed)
        for name in inputs:
            if given[name].size and not np.isfinite(given[name]).any():
                raise CalibrationError(
                    f"the input {name!r} to calibrate with has no finite number; give data that "
                    "the model is used with."
                )
        values = dict(zip(names, running.run(opened, list(names), given), strict=True))
        values |= {name: given[name] for name in inputs}
        seen = {name: _measure(array) for name, array in values.items()}
        yield {name: one for name, one in seen.items() if one is not None}


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
