"""Computes the cost of a compiled program.

This walks the program once. A loop's body counts as often as it runs, a branch as its most
expensive form, an asynchronous pair once. Each remaining instruction is a kernel, and
:mod:`duotone.cost.roofline` gives its seconds. It needs no device and no JAX.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from duotone.cost.arithmetic import CompiledDot, dots_of, oversized_window
from duotone.cost.collectives import sendings_of
from duotone.cost.compiled_record import Collective, Kernel
from duotone.cost.hlo import CompiledProgram, Computation, Instruction
from duotone.cost.roofline import kernel_seconds, peak_of
from duotone.cost.traffic import bytes_moved, is_free
from duotone.cost.trips import Trips, written_trips
from duotone.devices.specifications import Target
from duotone.errors import plural

_BODIES = frozenset({"call", "async-start"})


class KernelTotals(NamedTuple):
    """The sums over the kernels of a program; fields as in ``ProgramCost``."""

    bytes: int
    flops: dict[str, float]
    dots: dict[str, int]
    kernel_count: int
    casts: int
    seconds: float
    kernels: tuple[Kernel, ...]
    notes: tuple[str, ...]
    devices: int
    collectives: tuple[Collective, ...]


def cost_of(program: CompiledProgram, target: Target) -> KernelTotals:
    """Returns the bytes, FLOPs and seconds of a program."""
    walk = _Walk(program, target)
    kernels = tuple(walk.kernels(program.entry, 1))
    if walk.windows:
        largest = "x".join(map(str, max(walk.windows, key=math.prod)))
        walk.notes.append(
            f"cuDNN takes far longer than this where a window (up to {largest}) is larger than the "
            f"result: {plural(len(walk.windows), 'convolution')}"
        )
    flops: Counter[str] = Counter()
    dots: Counter[str] = Counter()
    for types, runs, operations in walk.dots:
        flops[types] += operations * runs  # pyright: ignore[reportArgumentType]
        dots[types] += runs
    return KernelTotals(
        bytes=sum(kernel.total_bytes for kernel in kernels),
        flops=dict(flops),
        dots=dict(dots),
        kernel_count=sum(kernel.runs for kernel in kernels),
        casts=sum(kernel.casts * kernel.runs for kernel in kernels),
        seconds=sum(kernel.total_seconds for kernel in kernels),
        kernels=kernels,
        notes=tuple(dict.fromkeys(walk.notes)),
        devices=program.partitions,
        collectives=tuple(walk.collectives),
    )


class _Walk:
    """The walk over a program, with the collected kernels."""

    def __init__(self, program: CompiledProgram, target: Target) -> None:
        self.program, self.target = program, target
        self.trips = Trips(program)
        self.notes: list[str] = []
        self.windows: list[list[int]] = []
        self.dots: list[tuple[str, int, float]] = []
        self.collectives: list[Collective] = []
        self._channels: set[str] = set()

    def kernels(self, computation: Computation, runs: int) -> Iterator[Kernel]:
        """Yields the kernels of a computation that runs ``runs`` times."""
        for instruction in computation.instructions.values():
            op = instruction.opcode
            if op == "while":
                yield from self._loop(instruction, computation, runs)
            elif op == "conditional":
                yield from self._most_expensive_branch(instruction, runs)
            elif op in _BODIES and instruction.called:
                for name in instruction.called:
                    yield from self.kernels(self.program.computations[name], runs)
            elif not (is_free(instruction) or op.endswith(("-start", "-update")) or _ends(op)):
                yield self._kernel(instruction, computation, runs)
            elif _ends(op):
                yield from self._finished(instruction, computation, runs)

    def _loop(self, loop: Instruction, computation: Computation, runs: int) -> Iterator[Kernel]:
        """Yields the kernels of a loop; an unknown trip count adds those of its condition."""
        body, condition = (self.trips.called(loop, key) for key in ("body", "condition"))
        trips = self.trips.of(loop, computation)
        if trips is None:
            trips = 1
            self.notes.append(f"how often {loop.name} runs is not known: counted once")
        if written_trips(loop) is None:
            yield from self.kernels(condition, runs * (trips + 1))
        yield from self.kernels(body, runs * trips)

    def _finished(self, done: Instruction, computation: Computation, runs: int) -> Iterator[Kernel]:
        """Yields the kernel of an asynchronous pair such as ``copy-start``, ``copy-done``."""
        start = computation.operand(done, 0)
        while start.opcode.endswith("-update"):
            start = computation.operand(start, 0)
        if start.opcode in _BODIES or not start.opcode.endswith("-start"):
            return
        op = start.opcode.removesuffix("-start")
        joined = dataclasses.replace(
            start, name=done.name, opcode=op, arrays=done.arrays, is_tuple=done.is_tuple
        )
        yield self._kernel(joined, computation, runs)

    def _kernel(self, instruction: Instruction, computation: Computation, runs: int) -> Kernel:
        operands = [computation.instructions[name] for name in instruction.operands]
        read, written = bytes_moved(instruction, operands, self.program)
        dots = list(dots_of(instruction, computation, self.program))
        self.dots += [(dot.types, runs, dot.flops) for dot in dots]
        if window := oversized_window(instruction):
            self.windows.append(window)
        moved = round(read + written)
        sent = self._sent(instruction, computation, runs)
        return Kernel(
            name=instruction.name,
            op=instruction.kind(bool(dots)),
            bytes=moved,
            flops=sum(dot.flops for dot in dots),
            dtype=", ".join(dict.fromkeys(dot.types for dot in dots)),
            seconds=self._seconds(moved, dots, sent),
            runs=runs,
            source=instruction.source or self._source_inside(instruction),
            casts=self._casts(instruction, computation),
            sent=sent,
        )

    def _sent(self, instruction: Instruction, computation: Computation, runs: int) -> int:
        """Returns the bytes that one run sends; a split collective counts at its first piece."""
        total = 0
        for sending in sendings_of(instruction, computation, self.program):
            apart = self.target.platform != "tpu"  # channels of `shard_map` all have one number
            if sending.channel in self._channels and not apart:
                continue
            self._channels |= {sending.channel} - {""}
            kind, dtype, devices, sent, _ = dataclasses.astuple(sending)
            source = instruction.source or self._source_inside(instruction)
            self.collectives.append(Collective(kind, dtype, devices, sent, runs, source))
            total += sent
        return total

    def _seconds(self, moved: int, dots: list[CompiledDot], sent: int) -> float:
        if not self.target.bandwidth:
            return 0.0
        computing = sum(dot.flops * dot.passes / peak_of(self.target, dot.math) for dot in dots)
        return kernel_seconds(self.target, moved, computing, sent)

    def _source_inside(self, instruction: Instruction) -> str:
        """Returns the source of a fusion's root, for a fusion without a source of its own."""
        if instruction.opcode != "fusion":
            return ""
        inside = self.program.computations[instruction.called[0]]
        sources = [i.source for i in reversed(tuple(inside.instructions.values())) if i.source]
        return sources[0] if sources else ""

    def _casts(self, instruction: Instruction, computation: Computation) -> int:
        """Counts an instruction's conversions between float32 and half, except of constants."""
        if instruction.opcode == "convert":
            given = computation.operand(instruction, 0)
            pair = {instruction.arrays[0].dtype, given.arrays[0].dtype}
            while given.opcode in ("broadcast", "bitcast", "reshape"):
                given = computation.operand(given, 0)
            counts = pair & {"f16", "bf16"} and pair & {"f32", "f64"} and given.opcode != "constant"
            return int(bool(counts))
        if instruction.opcode != "fusion":
            return 0
        inside = self.program.computations[instruction.called[0]]
        return sum(self._casts(nested, inside) for nested in inside.instructions.values())

    def _most_expensive_branch(self, instruction: Instruction, runs: int) -> Iterator[Kernel]:
        choices = []
        for name in instruction.called:
            before, sent = len(self.dots), len(self.collectives)
            kernels = list(self.kernels(self.program.computations[name], runs))
            choices.append((kernels, self.dots[before:], self.collectives[sent:]))
            del self.dots[before:], self.collectives[sent:]
        kernels, dots, collectives = max(choices, key=lambda c: sum(k.total_bytes for k in c[0]))
        self.dots += dots
        self.collectives += collectives
        if len(choices) > 1:
            self.notes.append("for a branch, the form that moves the most bytes is counted")
        yield from kernels


def _ends(op: str) -> bool:
    return op.endswith("-done")
