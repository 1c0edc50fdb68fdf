"""Cuts the file of a trace into pieces that fit into memory.

``jax.profiler.ProfileData`` needs ten times the size of a file in memory. This module parses only
field numbers and lengths of the outer levels, and makes small files from pieces of a plane::

    XSpace:  planes = 1
    XPlane:  id = 1, name = 2, lines = 3, event_metadata = 4, stat_metadata = 5, stats = 6
    XLine:   id = 1, name = 2, timestamp_ns = 3, events = 4, and more

References:
    https://protobuf.dev/programming-guides/encoding; ``tsl/profiler/protobuf/xplane.proto``.
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterator

Buffer = bytes | mmap.mmap

PIECE_BYTES = 12 << 20
"""The most bytes of events in a piece, unless a single event is larger."""
_EVENTS = 0x22
"""Tag of an event in a line: field 4, with a length."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class WireError(ValueError):
    """Bytes that are not a protobuf message."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    Attributes:
        number: the field number.
        start: offset of the tag.
        inside: offset of the content.
        end: offset after the field.
        value: the value of a varint; 0 for other fields.
        is_message: whether the content has a length: a text, bytes or a message.
        whole: whether the field ends inside the buffer.
    """

    number: int
    start: int
    inside: int
    end: int
    value: int
    is_message: bool
    whole: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Plane:
    """One plane of a trace: a device, the host, or metadata of programs.

    Attributes:
        name: its name, such as ``/device:GPU:0``.
        head: the bytes of all fields except lines and event metadata.
        metadata: its event metadata, one field for each entry.
        lines: start and end offsets of its lines.
        cut_short: whether the file ends inside the plane.
    """

    name: str
    head: bytes
    metadata: tuple[Field, ...]
    lines: tuple[tuple[int, int], ...]
    cut_short: bool


def varint(data: Buffer, at: int) -> tuple[int, int]:
    """Reads the number at an offset; returns it and the offset after it.

    Example:
        >>> varint(bytes([0xAC, 0x02]), 0)
        (300, 2)
    """
    value = 0
    for shift in range(_LONGEST_VARINT):
        byte = data[at + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise WireError(f"a number without an end at byte {at}")


def fields(data: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yields the fields of the message between two offsets; ``end`` may cut the last one short.

    Example:
        >>> [(f.number, f.value) for f in fields(bytes([0x08, 0x05, 0x12, 0x01, 0x41]), 0, 5)]
        [(1, 5), (2, 0)]
    """
    at = start
    while at < end:
        begun = at
        try:
            tag, at = varint(data, at)
            kind, value, inside = tag & 7, 0, at
            if kind == _VARINT:
                value, at = varint(data, at)
            elif kind == _LENGTH:
                size, inside = varint(data, at)
                at = inside + size
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                raise WireError(f"no field begins at byte {begun}")
        except IndexError:
            return
        if tag < 8:
            raise WireError(f"no field begins at byte {begun}")
        yield Field(tag >> 3, begun, inside, min(at, end), value, kind == _LENGTH, at <= end)


def planes(data: Buffer) -> Iterator[Plane]:
    """Yields the planes of a file.

    Raises:
        WireError: the bytes are not a trace.
    """
    read = 0
    for field in fields(data, 0, len(data)):
        read = field.end
        if field.number == 1 and field.is_message:
            yield _plane(data, field)
        elif field.number > _MOST_FIELDS:
            raise WireError(f"a trace has no field {field.number}")
    if read < len(data):
        yield Plane("", b"", (), (), cut_short=True)


_MOST_FIELDS = 15
"""A limit above all field numbers of an ``XSpace`` today."""


def _plane(data: Buffer, outer: Field) -> Plane:
    name, head, metadata, lines = "", [], [], []
    cut = not outer.whole
    for field in fields(data, outer.inside, outer.end):
        cut = cut or not field.whole
        if field.number == 3 and field.is_message:
            lines.append((field.inside, field.end))
        elif field.whole and field.number == 4:
            metadata.append(field)
        elif field.whole:
            head.append(data[field.start : field.end])
            if field.number == 2 and field.is_message:
                name = data[field.inside : field.end].decode(errors="replace")
    return Plane(name, b"".join(head), tuple(metadata), tuple(lines), cut)


def pieces(data: Buffer, plane: Plane, size: int = PIECE_BYTES) -> Iterator[bytes]:
    """Splits a plane into separate files, each with some of its events.

    Yields:
        Serialised spaces with one plane; a line may be in several of them.
    """
    head = plane.head + b"".join(data[field.start : field.end] for field in plane.metadata)
    gathered: list[bytes] = []
    bytes_gathered = 0
    for start, end in plane.lines:
        for part in _line_parts(data, start, end, size):
            gathered.append(part)
            bytes_gathered += len(part)
            if bytes_gathered >= size:
                yield _space(head, gathered)
                gathered, bytes_gathered = [], 0
    if gathered:
        yield _space(head, gathered)


def _space(head: bytes, lines: list[bytes]) -> bytes:
    return message(1, b"".join([head, *(message(3, line) for line in lines)]))


def message(number: int, content: bytes) -> bytes:
    """Encodes a field with a message, a text or bytes.

    Example:
        >>> message(2, b"A").hex()
        '120141'
    """
    return bytes([number << 3 | _LENGTH]) + _as_varint(len(content)) + content


def _as_varint(value: int) -> bytes:
    """Encodes a number as a varint.

    Example:
        >>> _as_varint(300).hex()
        'ac02'
    """
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _line_parts(data: Buffer, start: int, end: int, size: int) -> Iterator[bytes]:
    """Splits a line into parts; each has the head of the line and some of its events."""
    head, runs = _runs(data, start, end, size)
    for begun, ended in runs:
        yield head + data[begun:ended]


def _runs(data: Buffer, start: int, end: int, size: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns the fields of a line that are not events, and the offsets of runs of whole events.

    This loop visits every event of a trace, so it avoids :func:`fields` for events.
    """
    head: list[bytes] = []
    runs: list[tuple[int, int]] = []
    at = begun = start
    while at < end - 1:
        if data[at] == _EVENTS:
            length, after = data[at + 1], at + 2
            if length >= 0x80:
                length, after = _length(data, at + 1, end)
            if after + length > end:
                break
            at = after + length
            if at - begun < size:
                continue
            runs.append((begun, at))
        else:
            if at > begun:
                runs.append((begun, at))
            field = next(fields(data, at, end), None)
            if field is None or not field.whole:
                return b"".join(head), runs
            head.append(data[field.start : field.end])
            at = field.end
        begun = at
    if at > begun:
        runs.append((begun, at))
    return b"".join(head), runs


def _length(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Reads a length and the offset after it; beyond ``end`` if the file ends inside of it."""
    try:
        return varint(data, at)
    except IndexError:
        return 0, end + 1
