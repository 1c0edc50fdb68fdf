"""Running: sessions of ONNX Runtime, inputs for a model, and its inner values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duotone.errors import OnnxError
from duotone.measuring import inputs
from duotone.measuring.generate import collapsed_sides, generate
from duotone.measuring.inputs import Asked, Generated, Shapes, is_size
from duotone.measuring.libraries import library
from duotone.onnx import files
from duotone.onnx.exposing import with_all_values
from duotone.onnx.protos import ModelProto

_NUMPY: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint64)": np.uint64,
    "tensor(uint32)": np.uint32,
    "tensor(uint16)": np.uint16,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
_FOLDER = "session.model_external_initializers_file_folder_path"


def session(model: ModelProto | Path, *, folder: Path | None = None) -> Any:
    """Returns a session of ONNX Runtime on the CPU that fuses no operations, to compare nodes.

    Args:
        model: a file, or a message.
        folder: the folder of a message's external data.

    Raises:
        MissingExtraError: ONNX Runtime is not installed.
        OnnxError: ONNX Runtime refuses the model.
    """
    onnxruntime = library("onnxruntime", "running an ONNX model", "onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder is not None:
        options.add_session_config_entry(_FOLDER, str(folder))
    try:
        given = str(model) if isinstance(model, Path) else model.SerializeToString()
        return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common public class
        raise OnnxError(f"ONNX Runtime refuses the model: {_one_line(error)}") from error


def run(opened: Any, outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
    """Runs a session.

    Raises:
        OnnxError: ONNX Runtime cannot run it; the message has the runtime's reason.
    """
    try:
        return opened.run(outputs, dict(feed))
    except Exception as error:
        raise OnnxError(f"ONNX Runtime cannot run the model: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def inputs_for(source: files.Source, *, seed: int = 0, shapes: Shapes | None = None) -> Generated:
    """Makes random inputs with which a model runs.

    Returns:
        The inputs, with sizes that were tried for sides that the model leaves open.

    Raises:
        ArgumentError: a shape does not fit the model, or it runs with none of the sizes.
    """
    model, sides = with_all_values(source.model)
    opened = session(model, folder=source.folder)
    is_open = {name: shape for name, shape in sides.items() if not all(map(is_size, shape[1:]))}
    results = [value.name for value in source.model.graph.output]
    names = list(dict.fromkeys([*is_open, *results]))

    def collapsed(feed: Mapping[str, Any]) -> int:
        arrays = dict(zip(names, run(opened, names, feed), strict=True))
        return sum(collapsed_sides(shape, arrays[name].shape) for name, shape in is_open.items())

    return generate(asked_by(opened), collapsed, shapes=shapes, seed=seed)


def asked_by(opened: Any) -> list[Asked]:
    """Returns the inputs that a session asks for."""
    return [
        Asked(one.name, _NUMPY.get(one.type), tuple(one.shape), one.type)
        for one in opened.get_inputs()
    ]


def fitted(opened: Any, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs in the dtypes that a session asks for; see :func:`duotone.measuring.inputs.fitted`."""
    return inputs.fitted(asked_by(opened), feed)
