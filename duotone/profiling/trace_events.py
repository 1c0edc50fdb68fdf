"""A trace as data: which operation ran where, from when to when.

Made by :mod:`duotone.profiling.read_trace`; everything behind it works with this alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """Something that ran on a device, once or often.

    Attributes:
        device: such as ``GPU:0``.
        kernel: name of the event: on a GPU the kernel or the copy.
        operation: of the compiled program; empty if it belongs to none.
        module: name of the compiled program; empty likewise.
        program: its number in this trace.
    """

    device: str
    kernel: str
    operation: str
    module: str
    program: int | None


@dataclasses.dataclass(frozen=True)
class Trace:
    """The content of a trace, in the order of time.

    Attributes:
        kinds: the distinct things that ran.
        kind: index into ``kinds`` of each event; all arrays are of one length.
        start: when each began, in nanoseconds.
        end: when it ended.
        compilations: one row for each, with its start and its end, in nanoseconds.
        programs: compiled programs (``HloModuleProto``, serialised) by number.
        devices: what the trace says of each device.
        versions: of JAX and the platforms, as the trace says.
        notes: what is missing.
    """

    kinds: tuple[Kind, ...]
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
        """``GPU``, ``TPU`` or ``CPU``; empty where nothing ran."""
        return self.kinds[0].device.partition(":")[0] if self.kinds else ""
