"""Calibrate: the ranges of a graph's values on data, measured in TensorFlow.

It does not measure values inside functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from duotone.errors import CalibrationError
from duotone.measuring.inputs import fitted, read_inputs
from duotone.measuring.ranges import check_inputs, over_runs, ranges_of
from duotone.precision.ranges.find import Measured
from duotone.tensorflow import files, running


def calibrate(path: str | Path, data: Any) -> dict[str, Measured]:
    """Measures the float32 values of a frozen graph in TensorFlow.

    Args:
        path: a GraphDef without variables.
        data: inputs by name, a list of such, or an ``.npz`` file of them.

    Returns:
        By the name of each port (``"node:0"``): ``low`` and ``high``, the least and greatest finite
        element, and ``small``, the share of nonzero elements below float16's normal numbers.

    Raises:
        ArgumentError: the data has no array for an input, or one of another shape.
        CalibrationError: the file is not a GraphDef, or an input has no finite number.
        GraphDefError: TensorFlow cannot load or run the graph.
        MissingExtraError: TensorFlow is not installed.

    Example:
        >>> import tempfile, numpy as np, duotone.tensorflow
        >>> from pathlib import Path
        >>> graph = '''
        ... node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }
        ... node { name: "y" op: "MatMul" input: ["x", "x"]
        ...        attr { key: "T" value { type: DT_FLOAT } } }
        ... node { name: "z" op: "Identity" input: "y" attr { key: "T" value { type: DT_FLOAT } } }
        ... '''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "graph.pbtxt")
        ...     _ = file.write_text(graph)
        ...     found = duotone.tensorflow.calibrate(file, {"x": np.full((8, 8), 200, np.float32)})
        >>> found["y:0"].high  # float16 holds numbers up to 65504
        320000.0
    """
    return measured(files.read(path), data)


def measured(source: files.GraphFile, data: Any) -> dict[str, Measured]:
    """Measures a graph that was read; see :func:`calibrate`."""
    if source.kind != "GraphDef":
        raise CalibrationError(
            f"{source.path} is a {source.kind}, whose values are inside functions: calibrate a "
            "frozen GraphDef."
        )
    return over_runs(_runs(source, data))


def _runs(source: files.GraphFile, data: Any) -> Iterator[dict[str, Measured]]:
    loaded = running.load(source)
    for feed in read_inputs(data):
        given = fitted(loaded.asked, feed)
        floats = {name: array for name, array in given.items() if array.dtype == np.float32}
        check_inputs(floats)
        with running.explained(source, "run"):
            arrays = running.run(loaded, [*loaded.values.values()], given)
        values = dict(zip(loaded.values, arrays, strict=True))
        yield ranges_of(values | {f"{name}:0": array for name, array in floats.items()})
