"""The cost of a compiled program: the record that ``duotone.compile_for`` returns, as data.

:mod:`duotone.cost.cost_of_program` makes it, and :mod:`duotone.cost.cost_view` shows it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from duotone._checks import check_whole
from duotone.errors import ArgumentError, shown

_COSTS = ("bytes", "seconds", "flops")
"""The costs of a kernel that can be compared."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """One instruction of the compiled program that runs on the device.

    Attributes:
        name: its name in the program text.
        op: its kind: ``fusion``, ``dot``, ``convolution``, ``copy``, ``custom-call``, …; of a
            fusion that holds a dot or convolution, ``fusion(dot)``.
        bytes: the bytes that it reads and writes in one run.
        flops: the FLOPs of its dots and convolutions in one run.
        dtype: the types of its dots and convolutions, ``"f16×f16→f32"``; empty without any.
        seconds: the roofline time of one run; 0 if the device's speed is not known.
        runs: how often it runs in one call of the program.
        source: JAX's name of the operation it was made from: name stack and primitive.
        casts: conversions between float32 and half inside.
        sent: bytes that one device sends to others in one run.
    """

    name: str
    op: str
    bytes: int
    flops: float
    dtype: str
    seconds: float
    runs: int
    source: str
    casts: int = 0
    sent: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of all runs."""
        return self.bytes * self.runs

    @property
    def total_seconds(self) -> float:
        """Seconds of all runs."""
        return self.seconds * self.runs


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """One collective operation of a program of several devices.

    Attributes:
        kind: ``all-gather``, ``all-reduce``, ``reduce-scatter``, ``all-to-all``, ….
        dtype: XLA's name of the type that is sent: ``f32``, ``bf16``.
        devices: the number of devices in each group.
        bytes: the bytes that one device sends in one run, at least.
        runs: how often it runs in one call of the program.
        source: JAX's name of the operation it was made from.
    """

    kind: str
    dtype: str
    devices: int
    bytes: int
    runs: int
    source: str

    @property
    def total_bytes(self) -> int:
        """Bytes of all runs."""
        return self.bytes * self.runs


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """The cost of one call of a compiled program. Loops count as often as they run.

    If the program runs on several devices, the figures describe one device and its part of the
    arrays.

    Attributes:
        target: name of the target.
        device: the device, in its maker's words.
        compiled_on_device: whether it was compiled for the real device, with autotuning, and not
            for a description.
        bytes: the bytes moved between kernels and memory.
        flops: the FLOPs of dots and convolutions, by types: ``{"f16×f16→f32": 1e12}``.
        dots: number of dots and convolutions that run, by operand and result type.
        kernel_count: number of kernels that run.
        casts: conversions between float32 and half that run, those inside fusions too.
        seconds: roofline: sum over kernels of max(bytes/bandwidth, flops/peak) + launch cost; 0 if
            the device's speed is not known.
        compiler_seconds: the compiler's own estimate, if it makes one (TPU).
        argument_bytes: memory of the arguments.
        output_bytes: memory of the results.
        alias_bytes: part of the results that reuses donated arguments.
        temporary_bytes: memory in addition to arguments and results.
        compile_seconds: how long tracing, rewriting and compiling took.
        kernels: one record for each instruction that runs.
        notes: lines about anything that the figures leave out.
        text: the scheduled program.
        devices: the number of devices that run it.
        collectives: the collective operations of each device.
    """

    target: str
    device: str
    compiled_on_device: bool
    bytes: int
    flops: Mapping[str, float]
    dots: Mapping[str, int]
    kernel_count: int
    casts: int
    seconds: float
    compiler_seconds: float | None
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    compile_seconds: float
    kernels: tuple[Kernel, ...] = dataclasses.field(repr=False)
    notes: tuple[str, ...] = ()
    text: str = dataclasses.field(default="", repr=False)
    devices: int = 1
    collectives: tuple[Collective, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The peak memory of one call."""
        buffers = self.argument_bytes + self.output_bytes - self.alias_bytes
        return buffers + self.temporary_bytes

    @property
    def sent_bytes(self) -> int:
        """Bytes that one device sends to others."""
        return sum(collective.total_bytes for collective in self.collectives)

    @property
    def total_flops(self) -> float:
        """FLOPs of all dots and convolutions."""
        return sum(self.flops.values())

    @property
    def half_flops_share(self) -> float:
        """Share of the FLOPs whose operands are both float16 or bfloat16; 1 without any FLOPs."""
        half = sum(
            flops
            for types, flops in self.flops.items()
            if {"f16", "bf16"}.issuperset(types.partition("→")[0].split("×"))
        )
        return half / self.total_flops if self.total_flops else 1.0

    def largest(self, count: int = 10, by: str = "bytes") -> tuple[Kernel, ...]:
        """Returns the kernels that cost most in all their runs.

        Args:
            count: how many.
            by: ``"bytes"``, ``"seconds"`` or ``"flops"``.

        Raises:
            ArgumentError: ``by`` is none of them.
            ArgumentTypeError: ``count`` is not a whole number.
        """
        check_whole("largest", "count", count, 0)
        if not isinstance(by, str) or by not in _COSTS:
            raise ArgumentError(
                f"largest: by is {shown(by)}; it takes {', '.join(map(repr, _COSTS))}"
            )
        return tuple(
            sorted(self.kernels, key=lambda kernel: -getattr(kernel, by) * kernel.runs)[:count]
        )

    def to_dict(self, *, kernels: bool = True, text: bool = False) -> dict[str, Any]:
        """Returns plain data.

        Args:
            kernels: whether to include the kernels.
            text: whether to include the program text, which is long.
        """
        left_out = {name for name, kept in (("kernels", kernels), ("text", text)) if not kept}
        data = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in left_out
        }
        data["flops"], data["dots"] = dict(self.flops), dict(self.dots)
        data["peak_bytes"] = self.peak_bytes
        data["collectives"] = [dataclasses.asdict(found) for found in self.collectives]
        if kernels:
            data["kernels"] = [dataclasses.asdict(kernel) for kernel in self.kernels]
        return data

    def to_json(self, *, kernels: bool = True, text: bool = False) -> str:
        """Returns :meth:`to_dict` as JSON.

        Args:
            kernels: whether to include the kernels.
            text: whether to include the program text, which is long.
        """
        return json.dumps(self.to_dict(kernels=kernels, text=text), indent=1)
