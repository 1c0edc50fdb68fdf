"""Weights: the elements of constant tensors, their magnitudes, and their conversion to half.

A tensor contains its elements, or refers to a file in the model's folder (*external data*, for
models above 2 GB). Either way they are read in pieces, never all at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duotone.errors import OnnxError
from duotone.graph.elements import in_half, magnitude_of
from duotone.graph.graph import HalfType, bytes_of
from duotone.graph.magnitude import Magnitude
from duotone.onnx.protos import DTYPES, FLOAT, ONNX, TensorProto, dtype_of

PIECE = 2**22
"""The largest number of elements in memory at a time."""


def is_external(tensor: TensorProto) -> bool:
    """Returns True if the elements are external data."""
    return tensor.data_location == ONNX.TensorProto.EXTERNAL


def count(tensor: TensorProto) -> int:
    """Returns the number of elements."""
    return math.prod(tensor.dims)


def data_range(tensor: TensorProto, folder: Path | None) -> tuple[Path, int, int]:
    """Returns the file, offset and length in bytes of external data.

    Raises:
        OnnxError: the file or the range does not exist.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    where = entries.get("location", "")
    if folder is None:
        raise OnnxError(
            f"tensor {tensor.name!r} is in the file {where!r} in the folder of the model: give the "
            "path of the model, not the model."
        )
    path = folder / where
    if not where or Path(where).is_absolute() or ".." in Path(where).parts:
        raise OnnxError(
            f"tensor {tensor.name!r} says that it is in {where!r}, which is not in the model's "
            "folder; such a file is not read."
        )
    if folder.resolve() not in path.resolve().parents or not path.is_file():
        raise OnnxError(
            f"tensor {tensor.name!r} says that it is in {where!r}, and there is no such file "
            f"in {folder}: put it in the folder of the model."
        )
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or bytes_in(tensor))
    except ValueError as error:
        raise OnnxError(
            f"tensor {tensor.name!r}: its offset or length is not a number: {error}."
        ) from error
    size = path.stat().st_size
    if offset < 0 or length < 0 or offset + length > size or length != bytes_in(tensor):
        raise OnnxError(
            f"tensor {tensor.name!r} has {bytes_in(tensor)} bytes by its shape, but its external "
            f"data is {length} bytes at {offset} of {where!r}, which has {size}."
        )
    return path, offset, length


def bytes_in(tensor: TensorProto) -> int:
    """Returns the bytes of the elements of a tensor, by its shape and type."""
    dtype = dtype_of(tensor.data_type)
    small = {"int4": 2, "uint4": 2, "float4e2m1": 2, "int2": 4, "uint2": 4}.get(dtype)
    if small:
        return -(-count(tensor) // small)
    return count(tensor) * (bytes_of(dtype) or 1)


def check(tensor: TensorProto, folder: Path | None) -> None:
    """Raises unless a tensor has as many elements as its shape.

    Raises:
        OnnxError: it has fewer or more, or its external data does not exist.
    """
    if tensor.data_type not in DTYPES:
        raise OnnxError(f"tensor {tensor.name!r} has no known element type: {tensor.data_type}.")
    if any(size < 0 for size in tensor.dims):
        raise OnnxError(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}.")
    if is_external(tensor):
        data_range(tensor, folder)
    elif tensor.HasField("raw_data") and len(tensor.raw_data) != bytes_in(tensor):
        raise OnnxError(
            f"tensor {tensor.name!r} has {bytes_in(tensor)} bytes by its shape, but has "
            f"{len(tensor.raw_data)}: the file was cut off or damaged."
        )
    elif tensor.data_type == FLOAT and not tensor.HasField("raw_data"):
        if len(tensor.float_data) == count(tensor):
            return
        raise OnnxError(
            f"tensor {tensor.name!r} has {count(tensor)} elements by its shape, but has "
            f"{len(tensor.float_data)}: the file was cut off or damaged."
        )


def external_pieces(tensor: TensorProto, folder: Path | None) -> Iterator[bytes]:
    """Yields the bytes of external data, at a time those of :data:`PIECE` float32 numbers."""
    path, offset, length = data_range(tensor, folder)
    with path.open("rb") as file:
        file.seek(offset)
        while length > 0:
            read = file.read(min(length, 4 * PIECE))
            if not read:
                raise OnnxError(f"tensor {tensor.name!r}: {path} became shorter.")
            length -= len(read)
            yield read


def pieces(tensor: TensorProto, folder: Path | None) -> Iterator[Any]:
    """Yields the elements of a float32 tensor, in arrays of at most :data:`PIECE`."""
    if is_external(tensor):
        yield from (np.frombuffer(read, "<f4") for read in external_pieces(tensor, folder))
        return
    if tensor.HasField("raw_data"):
        whole = np.frombuffer(tensor.raw_data, "<f4")
    else:
        whole = np.asarray(tensor.float_data, np.float32)
    for start in range(0, len(whole), PIECE):
        yield whole[start : start + PIECE]


def magnitude(tensor: TensorProto, folder: Path | None, dims: Sequence[int] = ()) -> Magnitude:
    """Returns the magnitude of the elements of a float32 tensor.

    Args:
        tensor: the tensor, or the elements of a sparse one that it stores.
        folder: the folder of its external data.
        dims: the dimensions; more elements than ``tensor`` has are zeros.
    """
    shape = dims or tensor.dims
    zeros = [np.zeros(1, np.float32)] if math.prod(shape) > count(tensor) else []
    return magnitude_of(itertools.chain(zeros, pieces(tensor, folder)), shape)


def half_pieces(tensor: TensorProto, folder: Path | None, half: HalfType) -> Iterator[bytes]:
    """Yields the elements of a float32 tensor in half; too large numbers are saturated."""
    for piece in pieces(tensor, folder):
        yield in_half(piece, half).tobytes()


def as_tensor(node: Any) -> TensorProto | None:
    """Returns the float32 tensor of a ``Constant`` node; ``None`` for any other."""
    for found in node.attribute:
        if found.name == "value" and found.t.data_type == FLOAT:
            return found.t
        if found.name == "value_float":
            return ONNX.numpy_helper.from_array(np.asarray(found.f, np.float32))
        if found.name == "value_floats":
            return ONNX.numpy_helper.from_array(np.asarray(found.floats, np.float32))
    return None
