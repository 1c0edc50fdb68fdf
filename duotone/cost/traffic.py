"""The bytes that one instruction of a compiled program reads from and writes to memory.

A kernel reads its operands and writes its results, with two exceptions. A fusion that slices an
operand reads only the elements that it needs. A ``dynamic-update-slice`` or ``scatter`` that works
in place writes only the changed elements. Values inside a fusion are not in memory.

::

    demand(root) = its elements
    for each instruction of the fusion, last to first:
        demand(operand) += the elements of it that the demanded part of the result needs
    bytes read = sum over operands of min(demand, size) × element size

Buffers outside the main memory (the vector memory of a TPU) move nothing.

References:
    XLA, ``xla/service/hlo_cost_analysis.cc`` and
    ``xla/service/gpu/model/gpu_hlo_cost_analysis.cc``, which also count operand utilization.
"""

from __future__ import annotations

from collections.abc import Iterator

from duotone.cost.hlo import Array, CompiledProgram, Computation, Instruction, bits_of

FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all add-dependency domain "
    "opt-barrier optimization-barrier partition-id replica-id get-dimension-size".split()
)
"""Instructions that name a buffer and move nothing."""

_FREE_CALLS = frozenset(
    "AllocateBuffer Sharding SPMDFullToShardShape SPMDShardToFullShape LayoutConstraint "
    "AssumeGatherIndicesInBound annotate_device_placement ConcatBitcast GlobalConstant "
    "Pin Unpin CreateBuffer".split()
)
_LIBRARY_CALLS = ("__cublas$", "__cudnn$", "__onednn$")
"""Calls whose last result, of bytes, is workspace."""
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})


def is_free(instruction: Instruction) -> bool:
    """Returns True if an instruction is not a kernel."""
    if instruction.opcode == "custom-call":
        return instruction.target in _FREE_CALLS
    return instruction.opcode in FREE


def bytes_moved(
    instruction: Instruction, operands: list[Instruction], program: CompiledProgram
) -> tuple[float, float]:
    """Returns the bytes that one run of a kernel reads, and those that it writes."""
    if instruction.opcode == "fusion":
        return _of_fusion(instruction, operands, program)
    return _of_single(instruction, operands)


def _main_memory(arrays: tuple[Array, ...]) -> int:
    return sum(array.bytes for array in arrays if array.space == 0)


def _of_single(instruction: Instruction, operands: list[Instruction]) -> tuple[float, float]:
    op, results = instruction.opcode, instruction.arrays
    sizes = [_main_memory(operand.arrays) for operand in operands]
    written = _main_memory(_without_workspace(instruction))
    if op == "dynamic-update-slice":
        return sum(sizes[1:]), sizes[1] if results[0].space == 0 else 0
    if op in _SLICES:
        return min(results[0].bytes, sizes[0]) + sum(sizes[1:]), written
    if op == "scatter":
        count = (len(operands) - 1) // 2
        updates = sum(sizes[count + 1 :])
        return 2 * updates + sizes[count], updates
    return sum(sizes), written


def _without_workspace(instruction: Instruction) -> tuple[Array, ...]:
    arrays = instruction.arrays
    library = instruction.opcode == "custom-call" and instruction.target.startswith(_LIBRARY_CALLS)
    if library and len(arrays) > 1 and bits_of(arrays[-1].dtype) == 8:
        return arrays[:-1]
    return arrays


def _of_fusion(
    instruction: Instruction, operands: list[Instruction], program: CompiledProgram
) -> tuple[float, float]:
    fused = program.computations[instruction.called[0]]
    demands = _demands(fused, program)
    read = 0.0
    for operand, parameter in zip(operands, fused.parameters, strict=True):
        demand = min(demands.get(parameter.name, 0.0), parameter.size)
        total = _main_memory(operand.arrays)
        read += total * (demand / parameter.size) if parameter.size else 0.0
    written = 0.0
    for result, made in zip(instruction.arrays, _results(fused), strict=False):
        if result.space == 0:
            changed = _changed_in_place(fused, made)
            written += result.bytes if changed is None else changed
    return read, written


def _results(fused: Computation) -> list[Instruction]:
    """Returns the instructions whose results a computation returns, tuples taken apart."""

    def flat(instruction: Instruction) -> Iterator[Instruction]:
        if instruction.opcode != "tuple":
            yield instruction
            return
        for name in instruction.operands:
            yield from flat(fused.instructions[name])

    return list(flat(fused.root))


def _behind(fused: Computation, instruction: Instruction) -> Instruction:
    """Returns the instruction upstream of bitcasts."""
    views = ("bitcast", "reshape", "get-tuple-element")
    while instruction.opcode in views and instruction.operands:
        instruction = fused.operand(instruction, 0)
    return instruction


def _in_place(fused: Computation, made: Instruction) -> Instruction | None:
    """Returns the update that a result is, if it changes an operand of the fusion in place."""
    update = _behind(fused, made)
    if update.opcode not in ("dynamic-update-slice", "scatter"):
        return None
    target = _behind(fused, fused.operand(update, 0))
    return update if target.opcode == "parameter" else None


def _changed_in_place(fused: Computation, made: Instruction) -> float | None:
    update = _in_place(fused, made)
    if update is None:
        return None
    position = 1 if update.opcode == "dynamic-update-slice" else len(update.operands) - 1
    changed = fused.operand(update, position).size
    return changed * bits_of(update.arrays[0].dtype) / 8


def _demands(fused: Computation, program: CompiledProgram) -> dict[str, float]:
    """Returns how many elements of each value a computation needs to make its results."""
    demands: dict[str, float] = {}
    in_place = set()
    for made in _results(fused):
        demands[made.name] = float(made.size)
        if (update := _in_place(fused, made)) is not None:
            in_place.add(update.name)
    for instruction in reversed(tuple(fused.instructions.values())):
        demand = min(demands.get(instruction.name, 0.0), float(instruction.size))
        if demand and instruction.operands and instruction.opcode != "tuple":
            needed = _needed_of(instruction, demand, fused, program, instruction.name in in_place)
            for name, elements in zip(instruction.operands, needed, strict=True):
                demands[name] = demands.get(name, 0.0) + elements
    return demands


def _needed_of(
    instruction: Instruction,
    demand: float,
    fused: Computation,
    program: CompiledProgram,
    in_place: bool,
) -> list[float]:
    """Returns the elements of each operand that ``demand`` elements of the result need."""
    sizes = [float(fused.instructions[name].size) for name in instruction.operands]
    op = instruction.opcode
    if op in _SLICES:
        return [demand, *sizes[1:]]
    if op == "dynamic-update-slice":
        kept = 0.0 if in_place else max(demand - sizes[1], 0.0)
        return [kept, min(sizes[1], demand), *sizes[2:]]
    if op == "scatter":
        return [sizes[-1] if in_place else demand, *sizes[1:]]
    if op == "fusion":
        nested = program.computations[instruction.called[0]]
        inner = _demands(nested, program)
        return [inner.get(parameter.name, 0.0) for parameter in nested.parameters]
    if op in ("dot", "convolution", "sort", "custom-call", "call", "cholesky"):
        return sizes
    if op in ("pad", "broadcast", "get-tuple-element"):
        return [min(size, demand) for size in sizes]
    share = demand / instruction.size
    return [size * share for size in sizes]
