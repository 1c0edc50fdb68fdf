"""Reads from a trace of JAX's profiler which operation ran where and when.

A trace has these planes::

    /host:metadata   the compiled programs, and the versions of JAX
    /host:CPU        operations of CPUs (events with the stat hlo_op); compilations
    /device:GPU:n    kernels and copies of a GPU, on the lines "Stream …"
    /device:TPU:n    operations of a TPU, on the line "XLA Ops"; programs, on "XLA Modules"

On a CPU an operation may run longer than the event of its launch. It then ends where the event
``end: name`` with the same number begins. If a GPU or TPU ran anything, operations on the host are
left out.
"""

from __future__ import annotations

import array
import dataclasses
import gzip
import mmap
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from jax.profiler import ProfileData

from duotone.errors import TraceError
from duotone.profiling import wire
from duotone.profiling.metadata import PROGRAM, programs_in, stats_of
from duotone.profiling.trace_events import EventKind, Trace

_METADATA, _HOST = "/host:metadata", "/host:CPU"
_DEVICE = re.compile(r"/device:(GPU|TPU):(\d+)$")
_NAME = re.compile(r"[\w.\-]+")
_COMPILES = re.compile(r"backend_compile\w*")
_ENDS = "end: "
_SIGNED = (1 << 63) - 1
"""The bits of a signed column; the numbers in traces are unsigned."""
_SKIP, _OPERATION, _END, _COMPILE = range(4)


def read_trace(path: Path) -> Trace:
    """Reads the events of a trace by time; the file may be compressed (``….xplane.pb.gz``).

    Raises:
        TraceError: the file is empty or no trace.
        OSError: the file cannot be read.
    """
    with _content(path) as data, warnings.catch_warnings():
        # JAX 0.12 warns about its own types, which kills the process if warnings are errors.
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
        if len(data) == 0:
            raise TraceError(f"the trace {path} is empty: the profiler wrote nothing. {_REMEDY}")
        reader = _Reader()
        try:
            for plane in wire.planes(data):
                reader.read(data, plane)
        except (wire.WireError, RuntimeError) as error:
            raise TraceError(
                f"{path} is not a trace of JAX's profiler that this JAX can read ({error}). "
                f"{_REMEDY}"
            ) from error
        if not reader.planes_seen:
            raise TraceError(f"{path} is not a trace of JAX's profiler: it has no plane. {_REMEDY}")
    return reader.finish()


_REMEDY = "Profile again, or name the .xplane.pb below plugins/profile of a run."


class _content:  # noqa: N801  (a context)
    """The bytes of a file, mapped into memory unless it is compressed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mapped: mmap.mmap | None = None

    def __enter__(self) -> wire.Buffer:
        if self._path.suffix == ".gz":
            try:
                return gzip.decompress(self._path.read_bytes())
            except (EOFError, gzip.BadGzipFile) as error:
                raise TraceError(
                    f"{self._path} is not a whole .gz file ({error}). {_REMEDY}"
                ) from error
        with self._path.open("rb") as file:
            if self._path.stat().st_size == 0:
                return b""
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._mapped

    def __exit__(self, *problem: object) -> None:
        if self._mapped is not None:
            self._mapped.close()


class _Reader:
    """The columns read so far."""

    def __init__(self) -> None:
        self.planes_seen = 0
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._kind = array.array("i")
        self._start = array.array("d")
        self._end = array.array("d")
        self._number = array.array("q")
        self._ended_number = array.array("q")
        self._ended = array.array("d")
        self._compilations: list[tuple[float, float]] = []
        self._modules: dict[str, list[tuple[float, float, str]]] = {}
        self._programs: dict[int, bytes] = {}
        self._devices: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, str] = {}
        self._notes: list[str] = []
        self._what: dict[str, int] = {}

    def read(self, data: wire.Buffer, plane: wire.Plane) -> None:
        """Reads one plane."""
        self.planes_seen += 1
        if plane.cut_short:
            self._notes.append(
                f"the trace is cut short inside {plane.name or 'a plane'}: the events after that "
                "are missing"
            )
        device = _DEVICE.search(plane.name)
        if plane.name == _METADATA:
            self._programs.update(programs_in(data, plane))
            self._versions.update(
                (name, str(value))
                for name, value in stats_of(plane).items()
                if name.endswith("_version") and not name.startswith(str(value))
            )
        elif plane.name == _HOST:
            self._read_lines(data, plane, self._host_line)
        elif device is not None:
            name = f"{device[1]}:{device[2]}"
            self._devices[name] = stats_of(plane)
            line = self._gpu_line if device[1] == "GPU" else self._tpu_line
            self._read_lines(data, plane, lambda events, title: line(events, title, name))

    def _read_lines(self, data: wire.Buffer, plane: wire.Plane, take: Any) -> None:
        for piece in wire.pieces(data, plane):
            for part in ProfileData.from_serialized_xspace(piece).planes:
                for line in part.lines:
                    take(line.events, line.name)

    def _host_line(self, events: Any, title: str) -> None:
        """Reads a line of the host. The time for a large trace is mostly this loop.

        If an operation ended within its launch, its end event comes next, and the loop need not
        compare the numbers of the two events.
        """
        what_is = self._what
        launched, launched_end, launched_name = None, 0.0, ""
        for event in events:
            name = event.name
            what = what_is.get(name)
            if what is None:
                what = what_is[name] = _what(name)
            if what == _OPERATION:
                if (index := self._host_kind(event.stats)) < 0:
                    continue
                if launched is not None:
                    self._number.append(_number(launched, "_p"))
                start = event.start_ns
                launched, launched_end = event, start + event.duration_ns
                launched_name = _ENDS + name
                self._kind.append(index)
                self._start.append(start)
                self._end.append(launched_end)
            elif what == _END:
                if launched is None or name != launched_name or event.start_ns > launched_end:
                    self._ended_number.append(_number(event, "_c"))
                    self._ended.append(event.start_ns)
                else:
                    self._number.append(-1)
                    launched = None
            elif what == _COMPILE:
                self._compilations.append((event.start_ns, event.start_ns + event.duration_ns))
        if launched is not None:
            self._number.append(_number(launched, "_p"))

    def _host_kind(self, stats: Any) -> int:
        """Returns the index of an operation's kind, or -1 if the event is not an operation."""
        operation, module, program, device = None, "", None, 0
        for name, value in stats:
            if name == "hlo_op":
                operation = value
            elif name == "hlo_module":
                module = value
            elif name == "program_id":
                program = value
            elif name == "device_ordinal":
                device = value
                break
        if operation is None:
            return -1
        return self._kinds.setdefault((device, operation, program, module), len(self._kinds))

    def _gpu_line(self, events: Any, title: str, device: str) -> None:
        """Reads the events of one stream of a GPU; other lines repeat them by scope."""
        if not title.startswith("Stream"):
            return
        for event in events:
            stats = dict(event.stats)
            kind = EventKind(
                device,
                event.name,
                str(stats.get("hlo_op", "")).rpartition("::")[2],  # the innermost of several
                str(stats.get("hlo_module", "")),
                _as_number(stats.get("program_id")),
            )
            self._add(kind, event)

    def _tpu_line(self, events: Any, title: str, device: str) -> None:
        """Reads the operations of a TPU, or the runs of its programs."""
        if title == "XLA Modules":
            runs = [(e.start_ns, e.start_ns + e.duration_ns, e.name) for e in events]
            self._modules.setdefault(device, []).extend(runs)
        elif title == "XLA Ops":
            for event in events:
                name = _NAME.match(event.name.lstrip("%"))
                operation = name[0] if name else event.name
                self._add(EventKind(device, operation, operation, "", None), event)

    def _add(self, kind: EventKind, event: Any) -> None:
        index = self._kinds.setdefault((kind,), len(self._kinds))
        self._kind.append(index)
        self._start.append(event.start_ns)
        self._end.append(event.start_ns + event.duration_ns)
        self._number.append(-1)

    def finish(self) -> Trace:
        """Returns the trace, sorted by time."""
        kinds = [_kind_of(key) for key in self._kinds]
        kind = np.array(self._kind, np.int32)
        start, end = np.array(self._start), np.array(self._end)
        end = np.maximum(end, self._later_ends(end))
        for device, runs in self._modules.items():
            kinds, kind = _named_by_module(kinds, kind, start, device, runs)
        chosen = _on_accelerators(kinds, kind)
        order = chosen[np.argsort(start[chosen], kind="stable")]
        kinds, kind = _used(kinds, kind[order])
        if not len(kind):
            self._notes.append("no operation of JAX ran on a device while the trace was taken")
        return Trace(
            kinds=tuple(kinds),
            kind=kind,
            start=start[order],
            end=end[order],
            compilations=np.array(sorted(self._compilations)).reshape(-1, 2),
            programs=self._programs,
            devices=self._devices,
            versions=self._versions,
            notes=tuple(self._notes),
        )

    def _later_ends(self, end: np.ndarray) -> np.ndarray:
        """Replaces ends of operations that ran longer than their launch."""
        numbers, ended = np.array(self._ended_number), np.array(self._ended)
        if not len(numbers):
            return end
        order = np.argsort(numbers)
        numbers, ended = numbers[order], ended[order]
        own = np.array(self._number)
        index = np.minimum(np.searchsorted(numbers, own), len(numbers) - 1)
        return np.where(numbers[index] == own, ended[index], end)


def _what(name: str) -> int:
    """Classifies an event of the host by name; only its stats tell whether it is an operation."""
    if name.startswith(_ENDS):
        return _END
    if _COMPILES.fullmatch(name):
        return _COMPILE
    return _OPERATION if _NAME.fullmatch(name) else _SKIP


def _number(event: Any, stat: str) -> int:
    """Returns the number that a launch and its end event share; -1 if there is none."""
    for name, value in event.stats:
        if name == stat:
            return value & _SIGNED
    return -1


def _kind_of(key: tuple[Any, ...]) -> EventKind:
    if len(key) == 1:
        return key[0]
    ordinal, operation, program, module = key
    return EventKind(f"CPU:{ordinal}", operation, operation, module, _as_number(program))


def _as_number(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() else None


def _on_accelerators(kinds: list[EventKind], kind: np.ndarray) -> np.ndarray:
    """Returns the events on GPUs and TPUs, or all events if there are none."""
    accelerator = np.array([not k.device.startswith("CPU") for k in kinds], bool)
    chosen = accelerator[kind] if len(kind) else np.zeros(0, bool)
    return np.flatnonzero(chosen) if chosen.any() else np.arange(len(kind))


def _used(kinds: list[EventKind], kind: np.ndarray) -> tuple[list[EventKind], np.ndarray]:
    """Keeps the kinds that occur and renumbers them."""
    found, numbers = np.unique(kind, return_inverse=True)
    return [kinds[index] for index in found], numbers.astype(np.int32)


def _named_by_module(
    kinds: list[EventKind],
    kind: np.ndarray,
    start: np.ndarray,
    device: str,
    runs: list[tuple[float, float, str]],
) -> tuple[list[EventKind], np.ndarray]:
    """Adds to the operations of a TPU the program during whose run they began."""
    runs = sorted(runs)
    here = np.flatnonzero(np.array([k.device == device for k in kinds], bool)[kind])
    run_of = np.searchsorted([begun for begun, _, _ in runs], start[here], side="right") - 1
    inside = (run_of >= 0) & (start[here] < np.array([end for _, end, _ in runs])[run_of])
    names = [name for _, _, name in runs]
    kinds, kind, numbers = list(kinds), kind.copy(), {}
    for event, run in zip(here[inside], run_of[inside], strict=True):
        key = (int(kind[event]), names[run])
        if key not in numbers:
            found = PROGRAM.match(names[run])
            module, program = (found[1], int(found[2])) if found else (names[run], None)
            numbers[key] = len(kinds)
            kinds.append(dataclasses.replace(kinds[key[0]], module=module, program=program))
        kind[event] = numbers[key]
    return kinds, kind
