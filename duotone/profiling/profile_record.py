"""The record of ``duotone.profile``.

Times are in seconds. Four columns describe Tensor Cores on GPUs; they are ``None`` on other
devices. ``tensor_core_seconds`` counts only kernels of eligible operations. Kernels whose name
does not reveal whether they use Tensor Cores are in ``unknown_seconds``.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

TABLES = ("iterations", "operations", "kernels", "scopes", "dtypes")
"""The tables of a record, one file each."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileSummary:
    """The totals of the counted iterations of a profile.

    Attributes:
        platform: ``GPU``, ``TPU`` or ``CPU``; empty if nothing ran.
        devices: how many devices ran anything.
        key_node: the operation that begins an iteration, as ``module/operation``.
        iterations: how many iterations the trace has.
        counted: how many of them the tables count.
        wall_seconds: wall time of an iteration, the mean over iterations and devices.
        busy_seconds: the part of ``wall_seconds`` in which the device ran anything.
        idle: the share of ``wall_seconds`` in which the device ran nothing.
        compilations: how many compilations ran during the trace.
        compile_seconds: their time.
        flops: FLOPs of dots and convolutions in one iteration of one device.
        eligible_seconds: time of an iteration in operations that Tensor Cores could compute.
        tensor_core_seconds: the part of ``eligible_seconds`` in kernels that use Tensor Cores.
        unknown_seconds: the part of ``eligible_seconds`` in kernels for which this is not known.
        tensor_core_efficiency: the share of kernels that use Tensor Cores in the known eligible
            time.
        versions: versions of JAX and the platform in the trace.
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
        device: name of the device, such as ``GPU:0``.
        iteration: its number, from 0.
        start: seconds after the first operation of the trace.
        seconds: seconds until the next iteration.
        busy_seconds: seconds in which the device ran anything.
        idle: the share of ``seconds`` in which the device ran nothing.
        kernels: how many kernels, or operations, began.
        compiled: whether something was compiled during the iteration.
        counted: whether the other tables count it.
        eligible_seconds: seconds in operations that Tensor Cores could compute.
        tensor_core_seconds: the part of ``eligible_seconds`` in kernels that use Tensor Cores.
        unknown_seconds: the part of ``eligible_seconds`` in kernels for which this is not known.
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
        operation: its name in the program; the name of the kernel if it belongs to no program.
        kind: ``fusion``, ``fusion(dot)``, ``dot``, ``copy``, a custom call's target, …
        scope: name scopes, joined by ``/``.
        primitive: the JAX primitive; for a fusion, that of its result.
        source: ``file:line``, if known.
        dtype: ``"f16×f16→f32"`` for a dot or convolution; otherwise the dtype of the result.
        calls: how many kernels of it ran.
        seconds: the time of all calls.
        share: its share in the time of all operations.
        flops: FLOPs of dots and convolutions in all calls.
        eligible: whether Tensor Cores could compute it.
        tensor_core_seconds: time in kernels that use Tensor Cores.
        unknown_seconds: time in kernels for which this is not known.
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
        seconds: the time of all calls.
        share: its share in the time of all kernels.
        eligible_seconds: time for operations that Tensor Cores could compute.
        tensor_cores: ``"yes"``, ``"no"`` or ``"unknown"``; ``None`` if the device has none.
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
    """A name scope with all operations inside.

    Attributes:
        scope: names joined by ``/``; empty for operations without a scope.
        depth: how many names.
        calls: how many kernels ran.
        seconds: their time.
        share: their share in the time of all operations; the sum over one depth is at most 1.
        flops: FLOPs of dots and convolutions.
        eligible_seconds: time in operations that Tensor Cores could compute.
        tensor_core_seconds: the part of ``eligible_seconds`` in kernels that use Tensor Cores.
        unknown_seconds: the part of ``eligible_seconds`` in kernels for which this is not known.
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
        dtype: ``"f16×f16→f32"`` for dots and convolutions; otherwise the dtype of the result; empty
            for operations of no program, such as copies between host and device.
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
    """All results of a profile.

    Attributes:
        summary: the totals.
        iterations: all iterations, by device and time.
        operations: the operations, most expensive first.
        kernels: the kernels, most expensive first.
        scopes: the scopes, each before its inner ones, otherwise most expensive first.
        dtypes: the dtypes, most expensive first.
        advice: problems and remedies, in sentences.
        notes: missing data and requests that could not be met, in sentences.
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
        """Returns the rows of a table as dictionaries.

        Args:
            name: ``"iterations"``, ``"operations"``, ``"kernels"``, ``"scopes"`` or ``"dtypes"``.
        """
        return tuple(dataclasses.asdict(row) for row in getattr(self, name))

    def with_advice(self, advice: tuple[str, ...]) -> ProfileRecord:
        """Returns a copy with other advice.

        Args:
            advice: problems and remedies, in sentences.
        """
        return dataclasses.replace(self, advice=advice)

    def to_json(self) -> str:
        """Returns the record as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"
