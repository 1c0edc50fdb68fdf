"""Running: sessions of ONNX Runtime, inputs for a model, and its inner values."""

from __future__ import annotations

import itertools
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from duotone.errors import ArgumentError, MissingExtraError, OnnxError, shown
from duotone.onnx import files
from duotone.onnx.protos import FLOAT, NUMBERS, ONNX, ModelProto

_SIDES = (1, 32, 64, 48, 320, 16, 128, 512)
"""The sizes to try for an unknown dimension; an unknown first dimension is a batch of 1."""
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
_BF16 = np.dtype(ml_dtypes.bfloat16)
_FLOATS = (FLOAT, NUMBERS["float16"])


def session(model: ModelProto | Path, *, optimize: bool = False) -> Any:
    """Returns a session of ONNX Runtime on the CPU.

    Args:
        model: a file, or a message without external data.
        optimize: whether the runtime may fuse operations; False to compare nodes.

    Raises:
        MissingExtraError: ONNX Runtime is not installed.
        OnnxError: ONNX Runtime refuses the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("running an ONNX model", "onnxruntime", "onnx") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    try:
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


def inputs_for(opened: Any, seed: int = 0) -> dict[str, Any]:
    """Returns random inputs with which a session runs.

    It tries sizes for unknown dimensions: 1 for a batch, several numbers for the others.

    Raises:
        OnnxError: the session runs with none of them.
    """
    error: OnnxError | None = None
    for side, last, most in itertools.product(_SIDES, (False, True), (8, 2)):
        feed = {}
        for asked in opened.get_inputs():
            generator = np.random.default_rng([seed, len(feed)])
            feed[asked.name] = _random(asked, _shape(asked.shape, side, last), most, generator)
        try:
            run(opened, None, feed)
        except OnnxError as found:
            error = error or found
            continue
        return feed
    raise OnnxError(
        f"no inputs were found that the model runs with; give some as an .npz file. {error}"
    )


def _shape(asked: Sequence[Any], side: int, last: bool) -> list[int]:
    """Returns a shape with ``side`` for all but the first unknown axis, or only the last."""
    free = {len(asked) - 1} if last else set(range(1, len(asked)))
    return [
        size if isinstance(size, int) and size > 0 else side if axis in free else 1
        for axis, size in enumerate(asked)
    ]


def _random(asked: Any, shape: list[int], most: int, generator: np.random.Generator) -> Any:
    dtype = _NUMPY.get(asked.type)
    if dtype is None:
        raise OnnxError(f"the input {asked.name!r} is {asked.type}; give it as an .npz file.")
    if np.issubdtype(dtype, np.floating):
        return generator.standard_normal(shape).astype(dtype)
    if dtype is np.bool_:
        return generator.integers(0, 2, shape).astype(dtype)
    if not shape:  # a rate or a length
        return np.asarray(16000 if asked.name in ("sr", "sample_rate") else 1, dtype)
    return generator.integers(0, most, shape).astype(dtype)


def read_inputs(data: Any) -> list[dict[str, Any]]:
    """Returns the user's inputs: from a mapping, a list of mappings, or an ``.npz`` file.

    Raises:
        ArgumentError: the data is none of these.
    """
    if isinstance(data, str | Path):
        return [_read_file(Path(data))]
    if isinstance(data, Mapping):
        return [dict(data)]
    if isinstance(data, Sequence) and data and all(isinstance(one, Mapping) for one in data):
        return [dict(one) for one in data]
    raise ArgumentError("give inputs as a mapping from names to arrays, a list of such, or .npz.")


def _read_file(path: Path) -> dict[str, Any]:
    """Returns the arrays of an ``.npz`` file by name.

    Raises:
        ArgumentError: it is none.
    """
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if not isinstance(found, np.ndarray):
                return {name: found[name] for name in found.files}
        problem, cause = "it has one array without a name", None
    except FileNotFoundError as error:
        problem, cause = "there is no such file", error
    except IsADirectoryError as error:
        problem, cause = "it is a folder", error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        problem, cause = "it is damaged, or its contents are not numbers", error
    raise ArgumentError(
        f"{path} is not an .npz file of arrays by input name: {problem}. numpy.savez writes one: "
        "numpy.savez('inputs.npz', x=array)."
    ) from cause


def fitted(opened: Any, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns inputs in the dtypes that a session asks for.

    Raises:
        ArgumentError: one is missing, or of another shape or kind than the model takes.
    """
    found = {}
    for asked in opened.get_inputs():
        if asked.name not in feed:
            raise ArgumentError(
                f"the model asks for the input {asked.name!r}; given are "
                f"{', '.join(map(repr, feed)) or 'none'}."
            )
        dtype = _NUMPY.get(asked.type)
        array = np.asarray(feed[asked.name])
        is_number = array.dtype.kind in "biuf" or array.dtype == _BF16
        if not _fits(array, asked.shape) or (dtype is not None and not is_number):
            raise ArgumentError(
                f"the model takes {_type_text(asked)} as input {asked.name!r}; given is "
                f"{shown(array)}."
            )
        found[asked.name] = array if dtype is None else array.astype(dtype)
    return found


def _fits(array: np.ndarray, asked: Sequence[Any]) -> bool:
    """Checks that no dimension differs; a session's empty shape may mean unknown, so it fits."""
    if not asked:
        return True
    pairs = zip(array.shape, asked, strict=False)
    return array.ndim == len(asked) and all(
        not isinstance(side, int) or side < 0 or size == side for size, side in pairs
    )


def _type_text(asked: Any) -> str:
    sides = ", ".join("?" if side is None else str(side) for side in asked.shape)
    return f"{asked.type}[{sides}]" if asked.shape else str(asked.type)


def with_all_values(model: ModelProto) -> tuple[ModelProto, list[str]]:
    """Returns a model that also returns the float values of its outermost graph, and their names.

    Values of unknown type are left out.
    """
    from duotone.onnx.pipeline import inferred

    made = ONNX.ModelProto()
    made.CopyFrom(model)
    shapes = inferred(model)
    types = {} if shapes is None else {v.name: v for v in (*shapes.value_info, *shapes.output)}
    have = {value.name for value in made.graph.output}
    names = []
    for node in made.graph.node:
        for name in node.output:
            info = types.get(name)
            if not name or info is None or info.type.tensor_type.elem_type not in _FLOATS:
                continue
            names.append(name)
            if name not in have:
                made.graph.output.add().name = name
                made.graph.output[-1].type.tensor_type.elem_type = info.type.tensor_type.elem_type
    return made, names


def in_memory(source: files.Source) -> ModelProto | Path:
    """Returns the path of a model with external data, else the message: a session takes both."""
    if source.external and source.path is not None:
        return source.path
    return source.model
