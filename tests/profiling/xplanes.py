"""Traces made by hand: an XSpace written field by field, as JAX's profiler names things.

``tsl/profiler/protobuf/xplane.proto`` has the numbers of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duotone.profiling.wire import _as_varint, message


class Event(NamedTuple):
    name: str
    start: float  # microseconds
    duration: float
    stats: Mapping[str, Any] = {}


Lines = Mapping[str, Sequence[Event]]


def number(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _as_varint(value % (1 << 64))


class _Names:
    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids) + 1)

    def fields(self, field: int) -> bytes:
        return b"".join(
            message(field, number(1, i) + message(2, number(1, i) + message(2, name.encode())))
            for name, i in self.ids.items()
        )


def _stats(field: int, stats: Mapping[str, Any], names: _Names) -> bytes:
    written = b""
    for name, value in stats.items():
        content = number(1, names(name))
        if isinstance(value, str):
            content += message(7 - 2, value.encode())
        else:
            content += number(3 if value >> 63 else 4, value)  # unsigned, signed
        written += message(field, content)
    return written


def plane(name: str, lines: Lines, stats: Mapping[str, Any] = {}) -> bytes:
    events, stat_names = _Names(), _Names()
    content = number(1, 1) + message(2, name.encode())
    for index, (title, happened) in enumerate(lines.items()):
        line = number(1, index + 1) + message(2, title.encode()) + number(3, 0)
        for event in happened:
            line += message(
                4,
                number(1, events(event.name))
                + number(2, round(event.start * 1e6))
                + number(3, round(event.duration * 1e6))
                + _stats(4, event.stats, stat_names),
            )
        content += message(3, line + number(9, 10**12))
    own = _stats(6, stats, stat_names)
    return message(1, content + events.fields(4) + stat_names.fields(5) + own)


def gpu(lines: Lines, index: int = 0, major: int = 9, minor: int = 0) -> bytes:
    capability = {"compute_cap_major": major, "compute_cap_minor": minor}
    return plane(f"/device:GPU:{index}", lines, capability)


def kernel(
    name: str, start: float, duration: float, operation: str, module: str = "jit_step"
) -> Event:
    """A kernel, with the stats that CUPTI's annotations become."""
    about = {"hlo_op": operation, "hlo_module": module, "program_id": 7, "correlation_id": 1}
    return Event(name, start, duration, about)


def write(path: Path, *planes: bytes) -> Path:
    path.write_bytes(b"".join(planes))
    return path


def programs(modules: Mapping[int, tuple[str, bytes]]) -> bytes:
    """The metadata plane: compiled programs (``HloModuleProto``) by number, each with its name."""
    content = number(1, 1) + message(2, b"/host:metadata")
    for index, (program, (name, module)) in enumerate(modules.items()):
        proto = message(6, message(1, module))  # the bytes of a stat: an HloProto
        told = message(2, f"{name}({program})".encode()) + message(5, number(1, 1) + proto)
        content += message(4, number(1, index + 1) + message(2, number(1, index + 1) + told))
    return message(1, content)
