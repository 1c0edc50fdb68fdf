"""Parser of scheduled HLO text, the compiled form of a program.

XLA prints a compiled program as computations of instructions, one a line::

    %fused (p: f32[8,4]) -> f16[8,4] {
      %p = f32[8,4]{1,0} parameter(0)
      ROOT %c = f16[8,4]{1,0} convert(%p), metadata={op_name="jit(f)/cast"}
    }

:func:`parse` reads it into frozen values; :mod:`duotone.cost.traffic` and
:mod:`duotone.cost.cost_of_program` compute costs. An unknown attribute stays text, a line that
is not an instruction is skipped, and an unreadable instruction is an error that shows the line.

References:
    XLA, ``xla/hlo/ir/hlo_instruction.cc`` (``HloInstruction::ToString``) and
    ``xla/hlo/parser/hlo_parser.cc``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping

from duotone.errors import ProgramTextError

BITS = {"pred": 8, "bf16": 16, "token": 0, "opaque": 0}
"""Sizes of element types whose name does not end in their number of bits."""
_CALLS = tuple(
    "calls body condition branch_computations true_computation false_computation".split()
)
"""Attributes that name computations."""


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """The type of one array: ``f32[8,4]{1,0}``.

    Attributes:
        dtype: XLA's name of the element type: ``f32``, ``bf16``, ``s32``, ``pred`` ….
        shape: sizes of the dimensions.
        space: memory space of the buffer: 0 is the device's main memory; on TPUs 1 is the vector
            memory on the chip.
    """

    dtype: str
    shape: tuple[int, ...]
    space: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes in memory, without padding of the layout."""
        return math.ceil(self.size * bits_of(self.dtype) / 8)


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: without ``%``.
        opcode: ``fusion``, ``dot``, ``custom-call`` ….
        arrays: types of the results; a tuple is flattened.
        is_tuple: whether the result is a tuple.
        operands: names of the operands.
        literal: the text between the parentheses: a parameter's number, a constant's value.
        attributes: the rest of the line, as text.
        root: whether this is the computation's result.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    is_tuple: bool
    operands: tuple[str, ...]
    literal: str
    attributes: str
    root: bool

    @property
    def size(self) -> int:
        """Elements of all results."""
        return sum(array.size for array in self.arrays)

    def kind(self, has_dots: bool) -> str:
        """Returns its opcode for display: ``fusion(dot)``, or the target of a custom call."""
        if self.opcode == "fusion" and has_dots:
            return "fusion(dot)"
        return (self.opcode == "custom-call" and self.target) or self.opcode

    def attribute(self, name: str) -> str:
        """Returns the text of ``name=…``; empty if absent."""
        found = _attribute_pattern(name).search(self.attributes)
        return found[1] if found else ""

    def numbers(self, name: str) -> tuple[int, ...]:
        """Returns the numbers of an attribute such as ``dimensions={0,2}``."""
        return tuple(int(number) for number in re.findall(r"-?\d+", self.attribute(name)))

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that run with this instruction, without the regions that it applies."""
        keys = (*_CALLS, "to_apply") if self.opcode in ("call", "async-start") else _CALLS
        names = (re.findall(r"[\w.\-]+", self.attribute(key)) for key in keys)
        return tuple(itertools.chain.from_iterable(names))

    @property
    def target(self) -> str:
        """The target of a custom call."""
        return self.attribute("custom_call_target").strip('"')

    @property
    def source(self) -> str:
        """The name that JAX gave the operation: name stack and primitive."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """A list of instructions in the order in which they run.

    Attributes:
        name: without ``%``.
        instructions: by name, in order.
        root: the result.
    """

    name: str
    instructions: Mapping[str, Instruction]
    root: Instruction

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """The parameters, by number."""
        found = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda i: int(i.literal)))

    def operand(self, instruction: Instruction, position: int) -> Instruction:
        """Returns the instruction that makes an operand."""
        return self.instructions[instruction.operands[position]]


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A compiled program.

    Attributes:
        computations: by name.
        entry: the computation in which it starts.
        partitions: devices that run it, each on its part of the arrays.
    """

    computations: Mapping[str, Computation]
    entry: Computation
    partitions: int = 1

    def inside(
        self, instruction: Instruction, computation: Computation
    ) -> Iterator[tuple[Instruction, Computation]]:
        """Yields an instruction and its computation; for a fusion, the instructions inside it."""
        if instruction.opcode != "fusion":
            yield instruction, computation
            return
        for name in instruction.called:
            inner = self.computations[name]
            for nested in inner.instructions.values():
                yield from self.inside(nested, inner)


@functools.cache
def bits_of(dtype: str) -> int:
    """Returns the bits of one element.

    Example:
        >>> bits_of("bf16"), bits_of("f8e4m3fn"), bits_of("s4")
        (16, 8, 4)
    """
    if dtype in BITS:
        return BITS[dtype]
    found = re.match(r"[a-z]+(\d+)", dtype)
    if not found:
        raise ProgramTextError(f"element type {dtype!r}", dtype)
    return int(found[1])


@functools.cache
def _attribute_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|[ ,]){re.escape(name)}=(\{{[^}}]*\}}|\"[^\"]*\"|[^,\s]+)")


_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_SPACE = re.compile(r"S\((\d+)\)")
_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")
_OPERAND = re.compile(r"%([\w.\-]+)")


def parse(text: str) -> CompiledProgram:
    """Reads a program from the text of ``jax.stages.Compiled.as_text()``.

    Raises:
        ProgramTextError: the text is not a compiled program, or a line cannot be read.

    Example:
        >>> program = parse('''HloModule m, is_scheduled=true
        ... ENTRY %main (x: f32[4]) -> f16[4] {
        ...   %x = f32[4]{0} parameter(0)
        ...   ROOT %c = f16[4]{0} convert(%x)
        ... }''')
        >>> program.entry.root.opcode, program.entry.root.arrays[0].bytes
        ('convert', 8)
    """
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    name, is_entry, lines = "", False, []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            is_entry, name, lines = bool(header[1]), header[2], []
        elif line.startswith("}") and name:
            computations[name] = _computation(name, lines)
            entry = computations[name] if is_entry else entry
            name = ""
        elif name and _LINE.match(line):
            lines.append(line)
    if entry is None:
        raise ProgramTextError("a program without an ENTRY computation", text[:80])
    partitions = _PARTITIONS.search(text[: text.find("\n")])
    return CompiledProgram(computations, entry, int(partitions[1]) if partitions else 1)


def _computation(name: str, lines: list[str]) -> Computation:
    instructions = [_instruction(line) for line in lines]
    roots = [instruction for instruction in instructions if instruction.root]
    if len(roots) != 1:
        raise ProgramTextError(f"computation {name} with {len(roots)} roots", name)
    return Computation(name, {i.name: i for i in instructions}, roots[0])


def _instruction(line: str) -> Instruction:
    head = _LINE.match(line)
    assert head is not None, "the caller has seen it match"
    rest = _COMMENT.sub("", line[head.end() :])
    type_text, rest = _split_type(rest, line)
    opcode, bracket, rest = rest.lstrip().partition("(")
    if not bracket:
        raise ProgramTextError("an instruction without operands", line)
    inside, rest = _until_closed(rest, line)
    operands = () if opcode in ("constant", "parameter") else tuple(_OPERAND.findall(inside))
    return Instruction(
        name=head[2],
        opcode=opcode.strip(),
        arrays=tuple(_arrays(type_text)),
        is_tuple=type_text.startswith("("),
        operands=operands,
        literal=inside if not operands else "",
        attributes=rest.lstrip(", "),
        root=bool(head[1]),
    )


def _arrays(type_text: str) -> list[Array]:
    found = []
    for dtype, shape, layout in _ARRAY.findall(type_text):
        space = _SPACE.search(layout)
        sizes = tuple(int(n.lstrip("<=")) for n in shape.split(",") if n)
        found.append(Array(dtype, sizes, int(space[1]) if space else 0))
    return found


def _split_type(text: str, line: str) -> tuple[str, str]:
    """Returns the type at the start of ``text``, and what follows it."""
    if text.startswith("("):
        inside, rest = _until_closed(text[1:], line)
        return f"({inside})", rest
    type_text, space, rest = text.partition(" ")
    if not space:
        raise ProgramTextError("an instruction without a type", line)
    return type_text, rest


_BRACKET_OR_QUOTE = re.compile(r'[()"]')


def _until_closed(text: str, line: str) -> tuple[str, str]:
    """Returns the text up to the parenthesis that closes one opened before, and the rest."""
    depth, position = 1, 0
    while found := _BRACKET_OR_QUOTE.search(text, position):
        position = found.end()
        if found[0] == '"':
            end = text.find('"', position)
            position = len(text) if end < 0 else end + 1
        else:
            depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return text[: position - 1], text[position:]
    raise ProgramTextError("an instruction whose parentheses do not close", line)
