"""Collective operations of a compiled program: the bytes that devices send each other.

The bytes are the least that one device sends, as in a ring of ``n`` devices::

    all-gather          (n - 1) / n × result
    reduce-scatter      (n - 1) / n × operand
    all-reduce          2 × (n - 1) / n × operand
    all-to-all          (n - 1) / n × operand
    collective-permute, collective-broadcast          operand

TPU compilers overlap a collective with fusions and split it into pieces, which all appear in the
text. The pieces of one channel are one collective. Their ``all-reduce-scatter`` is a fusion of an
all-reduce of which each device keeps a slice, so it counts as a reduce-scatter.

References:
    NCCL tests, ``doc/PERFORMANCE.md``: bus bandwidth, the same factors.
    XLA, ``xla/hlo/ir/replica_group.cc`` and ``xla/hlo/ir/mesh_and_axis.cc``: how groups are
    printed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

from duotone.cost.hlo import CompiledProgram, Computation, Instruction

_SENT = {
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: n - 1,  # of the result, an n-th of the operand
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
    "collective-broadcast": lambda n: 1.0,
}
"""For each kind, the bytes that one of ``n`` devices sends, divided by the bytes of the result."""
_GROUPS = re.compile(
    r"replica_groups=(?:mesh\[(?P<mesh>[^\]]*)\]\s*\{(?P<axes>[^}]*)\}"
    r"|\{\{(?P<first>[^}]*)\}|\[\d+,(?P<size>\d+)\])"
)
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_NAMED = re.compile(r"'([^']+)'(?::\(\d+\)(\d+))?")


@dataclasses.dataclass(frozen=True, slots=True)
class Sending:
    """One run of a collective; fields as in ``Collective``, and its channel, empty for none."""

    kind: str
    dtype: str
    devices: int
    bytes: int
    channel: str


def sendings_of(
    instruction: Instruction, computation: Computation, program: CompiledProgram
) -> Iterator[Sending]:
    """Yields the collectives of an instruction, including those inside its fusion."""
    for nested, inner in program.inside(instruction, computation):
        if nested.opcode in _SENT:
            yield _sending(nested, inner, program)


def _sending(
    instruction: Instruction, computation: Computation, program: CompiledProgram
) -> Sending:
    kind, share = instruction.opcode, 1.0
    count = _devices(instruction, program)
    if kind == "all-reduce" and _keeps_a_slice(instruction, computation):
        kind, share = "reduce-scatter", 1 / count
    sent = sum(array.bytes for array in instruction.arrays) * share * _SENT[kind](count)
    dtype = ", ".join(dict.fromkeys(array.dtype for array in instruction.arrays))
    return Sending(kind, dtype, count, round(sent), instruction.attribute("channel_id"))


def _keeps_a_slice(instruction: Instruction, computation: Computation) -> bool:
    """Returns True if only slices of a result are read."""
    read = [
        reader
        for reader in computation.instructions.values()
        if instruction.name in reader.operands and reader.operands[0] == instruction.name
    ]
    through = [r for r in read if r.opcode in ("bitcast", "get-tuple-element")]
    rest = [r for r in read if r not in through]
    if not read or instruction.root:
        return False
    return all(r.opcode == "dynamic-slice" for r in rest) and all(
        _keeps_a_slice(r, computation) for r in through
    )


def _devices(instruction: Instruction, program: CompiledProgram) -> int:
    """Returns the number of devices in each group; all devices if no groups are named."""
    found = _GROUPS.search(instruction.attributes)
    if found is None:
        return program.partitions
    if found["size"]:
        return int(found["size"])
    if found["first"] is not None:
        return len(found["first"].split(","))
    sizes = {name: int(size) for name, size in _AXIS.findall(found["mesh"])}
    named = _NAMED.findall(found["axes"])
    return math.prod(int(part) if part else sizes[name] for name, part in named)
