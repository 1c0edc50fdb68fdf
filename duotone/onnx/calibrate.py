"""Calibrate: the ranges of a model's values on data, measured in ONNX Runtime.

It does not measure values inside ``If``, ``Loop`` and ``Scan``, which cannot be results of the
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from duotone.measuring.inputs import read_inputs
from duotone.measuring.ranges import check_inputs, over_runs, ranges_of
from duotone.onnx import files, running
from duotone.onnx.exposing import with_all_values
from duotone.precision.ranges.find import Measured


def calibrate(model: Any, data: Any) -> dict[str, Measured]:
    """Measures the float32 values of a model.

    Args:
        model: the path of a model, or an ``onnx.ModelProto``.
        data: inputs by name, a list of such, or an ``.npz`` file of them.

    Returns:
        By the name of each value of the outermost graph: ``low`` and ``high``, the least and
        greatest finite element, and ``small``, the share of nonzero elements below float16's normal
        numbers.

    Raises:
        ArgumentError: the data has no array for an input, or one of another shape.
        CalibrationError: an input has no finite number.
        OnnxError: the model is damaged, or ONNX Runtime cannot run it.

    Example:
        >>> import numpy as np, duotone.onnx
        >>> from onnx import parser
        >>> model = parser.parse_model('''
        ... <ir_version: 8, opset_import: ["" : 17]>
        ... f (float[2] x) => (float[2] y) { y = Exp(x) }
        ... ''')
        >>> measured = duotone.onnx.calibrate(model, {"x": np.array([0.0, 12.0], np.float32)})
        >>> round(float(measured["y"].high))
        162755
    """
    return measured(files.read(model), data)


def measured(source: files.Source, data: Any) -> dict[str, Measured]:
    """Measures a model that was read; see :func:`calibrate`."""
    return over_runs(measured_runs(source, read_inputs(data)))


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
        floats = {name: given[name] for name in inputs}
        check_inputs(floats)
        values = dict(zip(names, running.run(opened, list(names), given), strict=True))
        yield ranges_of(values | floats)
