"""The compiled programs in a trace, operation by operation.

A trace holds each program as the compiler left it. JAX turns it into text, which
:func:`duotone.cost.hlo.parse` reads; the names of its operations are those of the events.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping

import jax

from duotone.cost.arithmetic import backend_config, dots_of
from duotone.cost.hlo import Computation, Instruction, Program, parse
from duotone.errors import ProgramTextError
from duotone.profiling.name_scopes import scope_and_primitive, source_lines
from duotone.profiling.shapes import Product, product_of

CONTAINERS = frozenset({"while", "conditional", "call"})
"""Operations that only run others, which are measured themselves."""
_CASTS = frozenset({"convert", "parameter", "bitcast", "copy", "reshape", "transpose", "tuple"})
_CONTAINER_NAME = re.compile(r"(while|conditional|call)(\.\d+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """One operation, as the compiled program describes it.

    Attributes:
        kind: ``fusion``, ``fusion(dot)``, ``dot``, ``copy``, a custom call's target, …
        scope: name scopes of the user's, joined by ``/``; empty without.
        primitive: of JAX; of a fusion, that of its result.
        source: ``file:line``; empty where not known.
        dtype: of a dot or convolution its types, ``"f16×f16→f32"``; else that of the result.
        flops: of dots and convolutions in one run.
        products: its dots and convolutions.
        exact: whether one of them is to calculate in float32 or float64 proper.
        emitter: what the compiler says of how a fusion is carried out, ``__triton_gemm`` ….
        loop: the loops around it, outermost first, in its program.
        only_casts: whether nothing but dtypes, shapes and places of elements are changed.
    """

    kind: str
    scope: str
    primitive: str
    source: str
    dtype: str
    flops: float
    products: tuple[Product, ...]
    exact: bool
    emitter: str
    loop: tuple[str, ...]
    only_casts: bool

    @property
    def is_container(self) -> bool:
        """True if it only runs other operations."""
        return self.kind in CONTAINERS


Facts = Mapping[str, Fact]
"""Facts of one program, by operation."""


def is_container_name(operation: str) -> bool:
    """True if the name of an operation is one of those that only run others."""
    return _CONTAINER_NAME.fullmatch(operation) is not None


def read_programs(
    programs: Mapping[int, bytes], wanted: Iterable[int]
) -> tuple[dict[int, Facts], list[str]]:
    """The facts of some programs.

    Args:
        programs: ``HloModuleProto``, serialised, by number.
        wanted: numbers; those that are not there are left out.

    Returns:
        Facts by number of the program, and notes on what could not be read.
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
    """JAX's class of compiled programs, which has no public name: asked of a program."""
    compiled = jax.jit(lambda: 0).lower().compile()
    executable = compiled.runtime_executable()
    assert executable is not None, "a program that was compiled here"
    return type(executable.hlo_modules()[0])


def facts_of(text: str) -> dict[str, Fact]:
    """The facts of a program as text.

    Args:
        text: what ``jax.stages.Compiled.as_text()`` gives.

    Returns:
        One for each operation that runs by itself.

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
    program: Program,
    loop: tuple[str, ...],
    source: Callable[[str], str],
) -> Fact:
    inside = _inside(instruction, program)
    dots = list(dots_of(instruction, computation, program))
    told = next((i for i in (instruction, *reversed(inside)) if i.source), instruction)
    scope, primitive = scope_and_primitive(told.source)
    config = backend_config(instruction)
    return Fact(
        kind=_kind(instruction, bool(dots)),
        scope=scope,
        primitive=primitive,
        source=source(told.attributes),
        dtype=", ".join(dict.fromkeys(dot.types for dot in dots)) or _dtype(instruction),
        flops=sum(dot.flops for dot in dots),
        products=tuple(_products(instruction, computation, program)),
        exact=any(dot.math in ("f32", "f64") for dot in dots),
        emitter=str(config.get("fusion_backend_config", {}).get("kind", "")),
        loop=loop,
        only_casts=_only_casts(instruction, inside),
    )


def _inside(instruction: Instruction, program: Program) -> tuple[Instruction, ...]:
    """The operations of a fusion."""
    if instruction.opcode != "fusion":
        return ()
    return tuple(
        nested
        for name in instruction.called
        for nested in program.computations[name].instructions.values()
    )


def _products(
    instruction: Instruction, computation: Computation, program: Program
) -> Iterable[Product]:
    if instruction.opcode != "fusion":
        found = product_of(instruction, computation)
        return [found] if found else []
    return [
        product
        for name in instruction.called
        for nested in program.computations[name].instructions.values()
        for product in _products(nested, program.computations[name], program)
    ]


def _kind(instruction: Instruction, has_dots: bool) -> str:
    if instruction.opcode == "fusion" and has_dots:
        return "fusion(dot)"
    if instruction.opcode == "custom-call":
        return instruction.target or "custom-call"
    return instruction.opcode


def _dtype(instruction: Instruction) -> str:
    """The dtype of the largest result."""
    if not instruction.arrays:
        return ""
    return max(instruction.arrays, key=lambda array: array.bytes).dtype


def _only_casts(instruction: Instruction, inside: tuple[Instruction, ...]) -> bool:
    opcodes = {i.opcode for i in inside} or {instruction.opcode}
    return "convert" in opcodes and opcodes <= _CASTS
