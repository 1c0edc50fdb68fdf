"""Reads the compiled programs in a trace, operation by operation.

A trace contains each program after compilation. JAX converts it to text, which
:func:`duotone.cost.hlo.parse` reads. Its operations have the names of the events.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping

import jax

from duotone.cost.arithmetic import backend_config, dots_of
from duotone.cost.hlo import CompiledProgram, Computation, Instruction, parse
from duotone.errors import ProgramTextError
from duotone.profiling.name_scopes import scope_and_primitive, source_lines
from duotone.profiling.shapes import MatrixProduct, product_of
from duotone.profiling.trace_events import EventKind

_CONTAINER_NAME = re.compile(r"(while|conditional|call)(\.\d+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """One operation, as the compiled program describes it; other fields as in ``OperationRow``.

    Attributes:
        flops: FLOPs of dots and convolutions in one run.
        products: its dots and convolutions.
        exact: whether one of them must compute in exact float32 or float64.
        emitter: the compiler's emitter of a fusion, ``__triton_gemm`` ….
        loop: the enclosing loops in its program, outermost first.
        only_casts: whether it casts and otherwise only moves elements.
    """

    kind: str
    scope: str
    primitive: str
    source: str
    dtype: str
    flops: float
    products: tuple[MatrixProduct, ...]
    exact: bool
    emitter: str
    loop: tuple[str, ...]
    only_casts: bool

    @property
    def is_container(self) -> bool:
        """True if it only runs other operations."""
        return self.kind in ("while", "conditional", "call")


Facts = Mapping[str, Fact]
"""The facts of one program, by operation."""


def fact_of(kind: EventKind, facts: Mapping[int, Facts]) -> Fact | None:
    """Returns the fact of an event's operation, if its program is known."""
    return facts.get(kind.program, {}).get(kind.operation) if kind.program is not None else None


def is_container_name(operation: str) -> bool:
    """Returns True if an operation with this name only runs others."""
    return _CONTAINER_NAME.fullmatch(operation) is not None


def read_programs(
    programs: Mapping[int, bytes], wanted: Iterable[int]
) -> tuple[dict[int, Facts], list[str]]:
    """Reads the facts of some programs.

    Returns:
        Facts by number of the program, and notes on unreadable programs.
    """
    found: dict[int, Facts] = {}
    notes = []
    module_type = None
    for number in sorted(set(wanted) & set(programs)):
        module_type = module_type or _module_type()
        try:
            text = module_type.from_serialized_hlo_module_proto(programs[number]).to_string()
            found[number] = facts_of(text)
        except (ProgramTextError, RuntimeError, ValueError) as error:
            notes.append(f"the compiled program {number} cannot be read: {str(error)[:200]}")
    return found, notes


def _module_type() -> type:
    """Returns JAX's class of compiled programs, which has no public name, from a program."""
    compiled = jax.jit(lambda: 0).lower().compile()
    executable = compiled.runtime_executable()
    assert executable is not None, "a program that was compiled here"
    return type(executable.hlo_modules()[0])


def facts_of(text: str) -> dict[str, Fact]:
    """Reads the facts of a program in text form.

    Raises:
        ProgramTextError: the text cannot be read.
    """
    program = parse(text)
    source = source_lines(text)
    found: dict[str, Fact] = {}
    waiting: list[tuple[Computation, tuple[str, ...]]] = [(program.entry, ())]
    seen = {program.entry.name}
    while waiting:
        computation, loop = waiting.pop()
        for instruction in computation.instructions.values():
            found[instruction.name] = _fact(instruction, computation, program, loop, source)
            if instruction.opcode == "fusion":
                continue
            around = (*loop, instruction.name) if instruction.opcode == "while" else loop
            for name in instruction.called:
                if name in program.computations and name not in seen:
                    seen.add(name)
                    waiting.append((program.computations[name], around))
    return found


def _fact(
    instruction: Instruction,
    computation: Computation,
    program: CompiledProgram,
    loop: tuple[str, ...],
    source: Callable[[str], str],
) -> Fact:
    pairs = list(program.inside(instruction, computation))
    inside = [nested for nested, _ in pairs]
    dots = list(dots_of(instruction, computation, program))
    named = next((i for i in (instruction, *reversed(inside)) if i.source), instruction)
    scope, primitive = scope_and_primitive(named.source)
    config = backend_config(instruction)
    return Fact(
        kind=instruction.kind(bool(dots)),
        scope=scope,
        primitive=primitive,
        source=source(named.attributes),
        dtype=", ".join(dict.fromkeys(dot.types for dot in dots)) or _dtype(instruction),
        flops=sum(dot.flops for dot in dots),
        products=tuple(found for pair in pairs if (found := product_of(*pair)) is not None),
        exact=any(dot.math in ("f32", "f64") for dot in dots),
        emitter=str(config.get("fusion_backend_config", {}).get("kind", "")),
        loop=loop,
        only_casts=_only_casts({nested.opcode for nested in inside}),
    )


def _dtype(instruction: Instruction) -> str:
    """Returns the dtype of the largest result."""
    if not instruction.arrays:
        return ""
    return max(instruction.arrays, key=lambda array: array.bytes).dtype


def _only_casts(opcodes: set[str]) -> bool:
    moves = {"parameter", "bitcast", "copy", "reshape", "transpose", "tuple"}
    return "convert" in opcodes and opcodes <= {"convert", *moves}
