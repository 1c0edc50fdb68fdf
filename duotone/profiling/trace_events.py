"""A trace as data: which operation ran where and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class EventKind:
    """A kernel or operation that ran on a device, once or more.

    Attributes:
        device: name of the device, such as ``GPU:0``.
        kernel: name of the event; on a GPU the name of the kernel or copy.
        operation: the operation in the compiled program; empty if it belongs to no program.
        module: name of the compiled program; empty if it belongs to no program.
        program: number of the program in this trace.
    """

    device: str
    kernel: str
    operation: str
    module: str
    program: int | None


@dataclasses.dataclass(frozen=True)
class Trace:
    """The events of a trace, sorted by time.

    Attributes:
        kinds: the distinct kinds of events.
        kind: index into ``kinds`` of each event, ``int32[events]``.
        start: start of each event in nanoseconds, ``float64[events]``.
        end: end of each event in nanoseconds, ``float64[events]``.
        compilations: start and end of each compilation in nanoseconds, ``[compilations, 2]``.
        programs: compiled programs (``HloModuleProto``, serialised) by number.
        devices: the stats of each device.
        versions: versions of JAX and the platforms.
        notes: notes on missing data.
    """

    kinds: tuple[EventKind, ...]
    kind: np.ndarray
    start: np.ndarray
    end: np.ndarray
    compilations: np.ndarray
    programs: Mapping[int, bytes]
    devices: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def platform(self) -> str:
        """``GPU``, ``TPU`` or ``CPU``; empty if nothing ran."""
        return self.kinds[0].device.partition(":")[0] if self.kinds else ""
