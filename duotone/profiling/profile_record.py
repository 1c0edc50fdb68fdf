"""The record behind ``duotone.profile``: what was found, as data.

Made by :mod:`duotone.profiling.profile_tables`, written by :mod:`duotone.profiling.profile_files`,
shown by :mod:`duotone.profiling.profile_view`. Times are in seconds. On GPUs four columns tell of
Tensor Cores; they are ``None`` on other devices. A column ``tensor_core_seconds`` counts only
kernels of eligible operations; what its name says nothing of is in ``unknown_seconds``.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

TABLES = ("iterations", "operations", "kernels", "scopes", "dtypes")
"""The tables of a record, one file each."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileSummary:
    """A profile in a few numbers, of the iterations that count.

    Attributes:
        platform: ``GPU``, ``TPU`` or ``CPU``; empty where nothing ran.
        devices: number of devices that ran anything.
        key_node: the operation that begins an iteration, as ``module/operation``.
        iterations: how many were seen.
        counted: how many of them the tables count.
        wall_seconds: of one iteration, the mean over iterations and devices.
        busy_seconds: of it, in which the device ran anything.
        idle: share of it in which the device ran nothing.
        compilations: how often something was compiled while the trace was taken.
        compile_seconds: what that took.
        flops: of dots and convolutions in one iteration of one device.
        eligible_seconds: of one iteration, in operations that Tensor Cores could calculate.
        tensor_core_seconds: of these, in kernels that use them.
        unknown_seconds: of these, in kernels of which the name does not tell.
        tensor_core_efficiency: share of the eligible time, as far as it is known, in kernels that
            use Tensor Cores.
        versions: of JAX and the platform, as the trace has them.
    """

    platform: str = ""
    devices: int = 0
    key_node: str = ""
    iterations: int = 0
    counted: int = 0
    wall_seconds: float = 0.0
    busy_seconds: float = 0.0
    idle: float = 0.0
    compilations: int = 0
    compile_seconds: float = 0.0
    flops: float = 0.0
    eligible_seconds: float | None = None
    tensor_core_seconds: float | None = None
    unknown_seconds: float | None = None
    tensor_core_efficiency: float | None = None
    versions: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class IterationRow:
    """One iteration on one device.

    Attributes:
        device: such as ``GPU:0``.
        iteration: its number, from 0.
        start: seconds after the first operation of the trace.
        seconds: until the next one.
        busy_seconds: in which the device ran anything.
        idle: share in which it ran nothing.
        kernels: number of kernels, or operations, that began.
        compiled: whether something was compiled meanwhile.
        counted: whether the other tables count it.
        eligible_seconds: in operations that Tensor Cores could calculate.
        tensor_core_seconds: of these, in kernels that use them.
        unknown_seconds: of these, in kernels of which the name does not tell.
    """

    device: str
    iteration: int
    start: float
    seconds: float
    busy_seconds: float
    idle: float
    kernels: int
    compiled: bool
    counted: bool
    eligible_seconds: float | None
    tensor_core_seconds: float | None
    unknown_seconds: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation of a compiled program, over all counted iterations and devices.

    Attributes:
        module: the program.
        operation: its name there; of what belongs to no program, the kernel's.
        kind: ``fusion``, ``fusion(dot)``, ``dot``, ``copy``, a custom call's target, …
        scope: name scopes, joined by ``/``.
        primitive: of JAX; of a fusion, that of its result.
        source: ``file:line``, where it is known.
        dtype: of a dot or convolution ``"f16×f16→f32"``; else that of the result.
        calls: how often it ran; of several kernels each counts.
        seconds: all of it together.
        share: of the time of all operations.
        flops: of dots and convolutions, all calls together.
        eligible: whether Tensor Cores could calculate it.
        tensor_core_seconds: in kernels that use them.
        unknown_seconds: in kernels of which the name does not tell.
    """

    module: str
    operation: str
    kind: str
    scope: str
    primitive: str
    source: str
    dtype: str
    calls: int
    seconds: float
    share: float
    flops: float
    eligible: bool
    tensor_core_seconds: float | None
    unknown_seconds: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel, over all operations that launch it; fields as in :class:`OperationRow`.

    Attributes:
        kernel: its name; on CPUs and TPUs that of the operation, without its number.
        operations: how many operations launch it.
        calls: how often it ran.
        seconds: all of it together.
        share: of the time of all kernels.
        eligible_seconds: for operations that Tensor Cores could calculate.
        tensor_cores: ``"yes"``, ``"no"`` or ``"unknown"``; ``None`` where there are none.
    """

    kernel: str
    operations: int
    calls: int
    seconds: float
    share: float
    eligible_seconds: float | None
    tensor_cores: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class ScopeRow:
    """A name scope with all that is inside of it.

    Attributes:
        scope: names joined by ``/``; empty for what stands in none.
        depth: number of names.
        calls: of operations inside.
        seconds: all of it together.
        share: of the time of all operations; those of one depth add up to 1 at most.
        flops: of dots and convolutions.
        eligible_seconds: in operations that Tensor Cores could calculate.
        tensor_core_seconds: of these, in kernels that use them.
        unknown_seconds: of these, in kernels of which the name does not tell.
    """

    scope: str
    depth: int
    calls: int
    seconds: float
    share: float
    flops: float
    eligible_seconds: float | None
    tensor_core_seconds: float | None
    unknown_seconds: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class DtypeRow:
    """All operations of one dtype; other fields as in :class:`ScopeRow`.

    Attributes:
        dtype: of dots and convolutions ``"f16×f16→f32"``; of others that of the result; empty for
            what belongs to no program, such as copies between host and device.
        calls: how often they ran.
        seconds: all of it together.
        share: of the time of all operations.
        flops: of dots and convolutions.
        eligible_seconds: in operations that Tensor Cores could calculate.
        tensor_core_seconds: of these, in kernels that use them.
        unknown_seconds: of these, in kernels of which the name does not tell.
    """

    dtype: str
    calls: int
    seconds: float
    share: float
    flops: float
    eligible_seconds: float | None
    tensor_core_seconds: float | None
    unknown_seconds: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileRecord:
    """All that a profile found.

    Attributes:
        summary: in a few numbers.
        iterations: by device and time, all that were seen.
        operations: the most expensive first, as in the tables that follow.
        kernels: likewise.
        scopes: a scope before what is inside of it, else the most expensive first.
        dtypes: the most expensive first.
        advice: what stands out, in sentences.
        notes: what is missing or was not as asked for, in sentences.
    """

    summary: ProfileSummary
    iterations: tuple[IterationRow, ...] = ()
    operations: tuple[OperationRow, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    scopes: tuple[ScopeRow, ...] = ()
    dtypes: tuple[DtypeRow, ...] = ()
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def table(self, name: str) -> tuple[dict[str, Any], ...]:
        """The rows of a table as dictionaries.

        Args:
            name: one of ``TABLES``.
        """
        return tuple(dataclasses.asdict(row) for row in getattr(self, name))

    def with_advice(self, advice: tuple[str, ...]) -> ProfileRecord:
        """The same with advice."""
        return dataclasses.replace(self, advice=advice)

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"
