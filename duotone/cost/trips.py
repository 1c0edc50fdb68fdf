"""How often a loop of a compiled program runs, read from its text.

GPU and CPU compilers annotate a loop with its trip count. A TPU's does not, but the trip count
follows from the text::

    condition   slot < 10           a slot of the loop's carry, and a constant
    before      slot is 2           the initial value of the slot
    body        slot becomes slot + 1

The constant may pass through copies, fusions, calls, and outer loops that carry it unchanged. If it
cannot be traced, the trip count is unknown. This module never guesses.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from duotone.cost.arithmetic import backend_config
from duotone.cost.hlo import CompiledProgram, Computation, Instruction

_MOVES = frozenset({"bitcast", "copy", "copy-done", "copy-start", "opt-barrier", "reshape"})
_WHOLE_NUMBERS = re.compile(r"[su]\d+")
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}

Path = tuple[int, ...]
"""The index path of a value in nested tuples."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Number:
    """A constant, or what a loop carries in a slot, plus a constant."""

    slot: Path | None
    plus: int


class Trips:
    """The loops of one program.

    Example:
        >>> from duotone.cost.hlo import parse
        >>> program = parse('''HloModule m
        ... %condition (s: (s32[])) -> pred[] {
        ...   %s = (s32[]) parameter(0)
        ...   %i = s32[] get-tuple-element(%s), index=0
        ...   %n = s32[] constant(10)
        ...   ROOT %less = pred[] compare(%i, %n), direction=LT
        ... }
        ... %body (b: (s32[])) -> (s32[]) {
        ...   %b = (s32[]) parameter(0)
        ...   %j = s32[] get-tuple-element(%b), index=0
        ...   %three = s32[] constant(3)
        ...   %next = s32[] add(%j, %three)
        ...   ROOT %t = (s32[]) tuple(%next)
        ... }
        ... ENTRY %main () -> (s32[]) {
        ...   %zero = s32[] constant(0)
        ...   %start = (s32[]) tuple(%zero)
        ...   ROOT %loop = (s32[]) while(%start), condition=%condition, body=%body
        ... }''')
        >>> Trips(program).of(program.entry.root, program.entry)
        4
    """

    def __init__(self, program: CompiledProgram) -> None:
        self._program = program

    def of(self, loop: Instruction, around: Computation) -> int | None:
        """Returns how often the body of a loop runs, or ``None`` if the text does not say."""
        written = written_trips(loop)
        if written is not None:
            return written
        compared = self._compared(loop, around)
        if compared is None:
            return None
        direction, slot, offset, limit = compared
        body = self.called(loop, "body")
        start = self._number(around.operand(loop, 0), around, slot, None)
        step = self._number(body.root, body, slot, loop)
        if start is None or start.slot is not None or step is None or step.slot != slot:
            return None
        return _count(start.plus + offset, step.plus, direction, limit)

    def _compared(
        self, loop: Instruction, around: Computation
    ) -> tuple[str, Path, int, int] | None:
        """Returns direction, slot, increment and limit of a loop's condition."""
        condition = self.called(loop, "condition")
        found = self._made_by(condition.root, condition)
        if found is None or found[0].opcode != "compare":
            return None
        compare, computation = found
        direction = compare.attribute("direction")
        sides = [
            self._number(computation.operand(compare, n), computation, (), loop) for n in (0, 1)
        ]
        left, right = (side and self._constant(side, loop, around) for side in sides)
        if left is None or right is None or direction not in _MIRRORED:
            return None
        if left.slot is None:
            left, right, direction = right, left, _MIRRORED[direction]
        if left.slot is None or right.slot is not None:
            return None
        return direction, left.slot, left.plus, right.plus

    def _made_by(
        self, instruction: Instruction, computation: Computation
    ) -> tuple[Instruction, Computation] | None:
        """Returns the instruction that makes a result, inside fusions and upstream of copies."""
        while True:
            if instruction.opcode in _MOVES:
                instruction = computation.operand(instruction, 0)
            elif instruction.opcode in ("fusion", "call") and len(instruction.called) == 1:
                computation = self._program.computations[instruction.called[0]]
                instruction = computation.root
            else:
                return instruction, computation

    def _constant(self, number: _Number, loop: Instruction, around: Computation) -> _Number:
        """Returns the number itself, or the one that a loop takes in its slot and keeps."""
        given = None if number.slot is None else self._kept(loop, around, number.slot, None)
        if given is None or given.slot is not None:
            return number
        return _Number(None, given.plus + number.plus)

    def _kept(
        self, made: Instruction, around: Computation, slot: Path, loop: Instruction | None
    ) -> _Number | None:
        """Returns the number in a slot of a loop that its body passes on unchanged."""
        body = self.called(made, "body")
        if self._number(body.root, body, slot, made) != _Number(slot, 0):
            return None
        return self._number(around.operand(made, 0), around, slot, loop)

    def _number(
        self, made: Instruction, computation: Computation, path: Path, loop: Instruction | None
    ) -> _Number | None:
        """Returns the number at ``path`` in a result.

        Args:
            made: the instruction that makes it.
            computation: the computation of that instruction.
            path: empty for the result itself.
            loop: the loop whose carries stay slots; the carries of outer loops are followed.
        """
        op = made.opcode
        if op == "get-tuple-element":
            path = (int(made.attribute("index")), *path)
            return self._number(computation.operand(made, 0), computation, path, loop)
        if op == "tuple":
            return self._number(computation.operand(made, path[0]), computation, path[1:], loop)
        if op in _MOVES:
            return self._number(computation.operand(made, 0), computation, path, loop)
        if op in ("fusion", "call") and len(made.called) == 1:
            inside = self._program.computations[made.called[0]]
            return self._number(inside.root, inside, path, loop)
        if op == "while":
            return self._kept(made, computation, path, loop)
        if op == "parameter":
            return self._given(made, computation, path, loop)
        if path or not _WHOLE_NUMBERS.fullmatch(made.arrays[0].dtype):
            return None
        if op == "constant":
            return _Number(None, int(made.literal)) if made.arrays[0].shape == () else None
        if op not in ("add", "subtract"):
            return None
        left = self._number(computation.operand(made, 0), computation, (), loop)
        right = left and self._number(computation.operand(made, 1), computation, (), loop)
        if left is None or right is None:
            return None
        if op == "add" and left.slot is None:
            left, right = right, left
        if right.slot is not None:
            return None
        return _Number(left.slot, left.plus + (right.plus if op == "add" else -right.plus))

    def _given(
        self, parameter: Instruction, computation: Computation, path: Path, loop: Instruction | None
    ) -> _Number | None:
        """Returns the number at ``path`` in a parameter, which its only caller passes."""
        callers = self._callers.get(computation.name, [])
        if len(callers) != 1:
            return None
        caller, around = callers[0]
        if caller is loop:
            return _Number(path, 0)
        if caller.opcode == "while":
            return self._kept(caller, around, path, loop)
        if caller.opcode not in ("fusion", "call"):
            return None
        operand = around.operand(caller, int(parameter.literal))
        return self._number(operand, around, path, loop)

    def called(self, loop: Instruction, key: str) -> Computation:
        """Returns the body or the condition of a loop."""
        return self._program.computations[loop.attribute(key).lstrip("%")]

    @functools.cached_property
    def _callers(self) -> dict[str, list[tuple[Instruction, Computation]]]:
        """The instructions that run each computation, and their computations."""
        found: dict[str, list[tuple[Instruction, Computation]]] = {}
        for computation in self._program.computations.values():
            for instruction in computation.instructions.values():
                for name in dict.fromkeys(instruction.called):
                    found.setdefault(name, []).append((instruction, computation))
        return found


def written_trips(loop: Instruction) -> int | None:
    """Returns how often the compiler says that a loop runs, if it does."""
    written = backend_config(loop).get("known_trip_count", {}).get("n")
    return None if written is None else int(written)


def _count(first: int, step: int, direction: str, limit: int) -> int | None:
    """Counts how many of ``first``, ``first + step`` … lie on one side of a limit."""
    if direction in ("GT", "GE"):
        first, step, limit = -first, -step, -limit
    if direction in ("LE", "GE"):
        limit += 1
    if direction == "NE":
        whole = step != 0 and (limit - first) % step == 0 and (limit - first) // step >= 0
        return (limit - first) // step if whole else None
    if first >= limit:
        return 0
    return -((first - limit) // step) if step > 0 else None
