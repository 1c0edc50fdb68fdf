"""Storage: stores the tensors of a written model in the message or in a file of external data.

All external data goes to one new file. Elements are read, rounded and written in pieces, so that a
model larger than memory can be rewritten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from duotone.graph.graph import HalfType
from duotone.onnx import weights
from duotone.onnx.protos import NUMBERS, ONNX, TensorProto

_ALIGNMENT = 4096
"""Bytes to which external data is aligned, so that a runtime can map it (ONNX's advice)."""


class Storage:
    """The tensors of one model.

    Args:
        folder: the folder of the external data to read.
        name: the name of the new file of external data; ``None`` to store all in the message.
    """

    def __init__(self, folder: Path | None, name: str | None = None) -> None:
        self._folder, self._name = folder, name
        self._end = 0
        self._pieces: list[Callable[[], Iterator[bytes]]] = []

    @property
    def data(self) -> list[Iterator[bytes]]:
        """The pieces of each tensor of external data, in order."""
        return [make() for make in self._pieces]

    def kept(self, tensor: TensorProto) -> TensorProto:
        """Returns an unchanged tensor; external data is moved to this storage."""
        if not weights.is_external(tensor):
            return tensor
        read = functools.partial(weights.external_pieces, tensor, self._folder)
        return self._moved(tensor, tensor.data_type, weights.bytes_in(tensor), read)

    def halved(self, tensor: TensorProto, half: HalfType) -> TensorProto:
        """Returns a float32 tensor in half."""
        read = functools.partial(weights.half_pieces, tensor, self._folder, half)
        return self._moved(tensor, NUMBERS[half.name], 2 * weights.count(tensor), read)

    def _moved(
        self,
        tensor: TensorProto,
        data_type: int,
        length: int,
        read: Callable[[], Iterator[bytes]],
    ) -> TensorProto:
        """Returns a tensor whose elements are in the file, or in the message if they were there."""
        made = ONNX.TensorProto()
        made.name, made.doc_string, made.data_type = tensor.name, tensor.doc_string, data_type
        made.dims.extend(tensor.dims)
        if self._name is None or not weights.is_external(tensor):
            made.raw_data = b"".join(read())
            return made
        gap = -self._end % _ALIGNMENT
        offset = self._end + gap
        made.data_location = ONNX.TensorProto.EXTERNAL
        for key, value in (("location", self._name), ("offset", offset), ("length", length)):
            made.external_data.add(key=key, value=str(value))
        self._end = offset + length

        def padded() -> Iterator[bytes]:
            yield bytes(gap)
            yield from read()

        self._pieces.append(padded)
        return made
