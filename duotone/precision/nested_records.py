"""Records of programs that were rewritten before, inside of a program that is explained.

:func:`read_record` reads a program that a transformation made from a rewritten one (a derivative, a
mapped program). Nobody painted it, so its types are the only source. :func:`join` inserts the
records of such programs, and of painted ones, at the operations that call them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from duotone.graph.graph import FULL_DTYPE, Graph, Node, Value
from duotone.ops.traits import Trait
from duotone.precision.record import (
    CastRecord,
    OperationRecord,
    Record,
    maker_of,
    makers,
    shape_of,
    sizes_of,
    summarize,
)
from duotone.precision.rules import Rule

_CALLED = re.compile(r"(?:^|/)jit\([^/]*\)")


@dataclasses.dataclass(frozen=True, slots=True)
class Joined:
    """The record of a program, with the records of the programs inside of it.

    Attributes:
        record: the record of one run.
        entering: indices of its operations that read an argument.
        leaving: indices of its operations that make a result.
    """

    record: Record
    entering: tuple[int, ...]
    leaving: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Inside:
    """A program inside of another one.

    Attributes:
        program: its record.
        runs: how often it is called.
        scope: the name scope of the call.
    """

    program: Joined
    runs: int
    scope: str


def _entering(graph: Graph) -> list[int]:
    """Returns the operations that read an argument, also inside bodies that it enters."""
    found: set[int] = set()
    seen: set[int] = set(graph.inputs)
    waiting = list(graph.inputs)
    while waiting:
        for reader, _ in graph.consumers[waiting.pop()]:
            node = graph.nodes[reader]
            if Trait.STRUCTURAL not in node.traits:
                found.add(reader)
                continue
            waiting.extend(value for value in node.outputs if value not in seen)
            seen.update(node.outputs)
    return sorted(found)


def read_record(
    graph: Graph,
    half: str,
    painted: Record,
    listed: Callable[[Node], str],
    aliases: Mapping[str, str],
) -> Record:
    """Reads from the types of a program which operations are half.

    Args:
        graph: the program; its values have half dtypes.
        half: the half type.
        painted: the record of the program from which it was made. An operation takes rule and
            reason from an operation of the same name, line and precision there.
        listed: returns the list that a node is on.
        aliases: names under which duotone's own operations are shown; an empty one hides it.

    Returns:
        The record; a conversion between float32 and half is a cast, no operation.
    """
    known: dict[tuple[str, str, str], list[OperationRecord]] = {}
    origins: dict[tuple[str, str], str] = {}
    for operation in painted.operations:
        line = (operation.scope, operation.source)
        known.setdefault((operation.operation, *line), []).append(operation)
        origins.setdefault(line, operation.operation)
    casts = {node.index for node in graph.nodes if _is_cast(graph, node, half)}
    operations = []
    for node in graph.nodes:
        name = aliases.get(node.op, node.op)
        if Trait.STRUCTURAL in node.traits or node.index in casts or not name:
            continue
        read = _operation(graph, node, name, half, casts, listed(node))
        line = (read.scope, read.source)
        same = (o for o in known.get((name, *line), ()) if o.paint == read.paint)
        found = next(same, None)
        if found is not None:
            read = dataclasses.replace(read, rule=found.rule, reason=found.reason, list=found.list)
        elif line in origins:
            detail = f"{Rule.REWRITTEN.words}: comes from the {origins[line]} on this line"
            read = dataclasses.replace(read, reason=detail)
        operations.append(read)
    shown = frozenset(operation.index for operation in operations)
    made = tuple(_cast(graph, graph.nodes[index], shown) for index in sorted(casts))
    return Record(tuple(operations), made, summarize(tuple(operations), made, half))


def _is_cast(graph: Graph, node: Node, half: str) -> bool:
    if Trait.CONVERTS not in node.traits:
        return False
    ends = {graph.values[node.inputs[0]].dtype, graph.values[node.outputs[0]].dtype}
    return ends == {FULL_DTYPE, half}


def _operation(
    graph: Graph, node: Node, name: str, half: str, casts: set[int], listed: str
) -> OperationRecord:
    ins = [graph.values[value] for value in node.inputs]
    outs = [graph.values[value] for value in node.outputs]
    floating = [value for value in ins if "float" in value.dtype] or outs
    # A dot whose operands were rounded to half and widened again computes with half numbers.
    rounded = Trait.EINSUM in node.traits and all(_was_half(graph, value, casts) for value in ins)
    stored = any(value.dtype == half for value in outs) or _rounded_by_all(graph, outs, casts, half)
    runs = graph.trips(node)
    first = outs[0] if outs else None
    return OperationRecord(
        index=node.index,
        operation=name,
        paint="half" if rounded or any(value.dtype == half for value in floating) else "full",
        stored="half" if stored else "full",
        rule=Rule.REWRITTEN.value,
        reason=Rule.REWRITTEN.words,
        list=listed,
        scope=_CALLED.sub("", node.scope).strip("/"),
        source=str(node.source),
        shape=shape_of(graph, first.index) if first else (),
        dtype=FULL_DTYPE if first and first.dtype == half else first.dtype if first else "none",
        runs=runs,
        flops=node.flops * runs,
        bytes=sum(value.bytes(half=False) for value in (*ins, *outs)) * runs,
        bytes_full=sum(_full_bytes(value, half) for value in (*ins, *outs)) * runs,
        casts=sum(value.producer in casts for value in ins),
        reads=_through_casts(graph, node.inputs, casts),
        rewritten=False,
        operands=tuple(half if rounded else value.dtype for value in ins),
        fixed=node.fixed,
        given=tuple(
            (v.index, v.bytes(half=False))
            for v in ins
            if v.size > 1 and not makers(graph, (v.index,))
        ),
        sizes=sizes_of(node),
    )


def _was_half(graph: Graph, value: Value, casts: set[int]) -> bool:
    return value.dtype == FULL_DTYPE and value.producer in casts


def _rounded_by_all(graph: Graph, outs: Sequence[Value], casts: set[int], half: str) -> bool:
    """Returns True if every reader of a float32 result rounds it."""
    for value in outs:
        readers = {reader for reader, _ in graph.consumers[value.index]}
        kept = any(value.index == result for result, _ in graph.outputs)
        if value.dtype != FULL_DTYPE or kept or not readers or not readers <= casts:
            return False
    return bool(outs)


def _full_bytes(value: Value, half: str) -> int:
    return value.size * 4 if value.dtype == half else value.bytes(half=False)


def _through_casts(graph: Graph, values: Sequence[int], casts: set[int]) -> tuple[int, ...]:
    found: dict[int, None] = {}
    waiting = list(makers(graph, values))[::-1]
    while waiting:
        maker = waiting.pop()
        if maker in casts:
            waiting.extend(makers(graph, graph.nodes[maker].inputs)[::-1])
        else:
            found[maker] = None
    return tuple(found)


def _cast(graph: Graph, node: Node, shown: frozenset[int]) -> CastRecord:
    (value,) = node.inputs
    readers = [reader for reader, _ in graph.consumers[node.outputs[0]]]
    left = any(node.outputs[0] == result for result, _ in graph.outputs)
    return CastRecord(
        to=graph.values[node.outputs[0]].dtype,
        shape=shape_of(graph, value),
        maker=maker_of(graph, value),
        readers=(*(graph.nodes[reader].op for reader in readers), *(["output"] if left else [])),
        runs=graph.trips(node),
        sources=tuple(maker for maker in makers(graph, (value,)) if maker in shown),
        targets=tuple(reader for reader in readers if reader in shown),
    )


def join(record: Record, graph: Graph, insides: Mapping[int, Inside]) -> Joined:
    """Inserts records at the operations that call their programs.

    Args:
        record: the record of the program around.
        graph: the program around.
        insides: the programs inside, by the index of the operation that calls each.

    Returns:
        One record; if any program is inside, its operations get new numbers.
    """
    begins: dict[int, tuple[int, ...]] = {}
    ends: dict[int, tuple[int, ...]] = {}
    numbers: dict[int, dict[int, tuple[int, ...]]] = {}
    count = 0
    for operation in record.operations:
        inside = insides.get(operation.index)
        if inside is None:
            own = {operation.index: (count if insides else operation.index,)}
            begins |= own
            ends |= own
        else:
            inner = inside.program
            own = {o.index: (count + k,) for k, o in enumerate(inner.record.operations)}
            begins[operation.index] = _all(own, inner.entering)
            ends[operation.index] = _all(own, inner.leaving)
        numbers[operation.index] = own
        count += len(own)
    operations: list[OperationRecord] = []
    casts = [_renumbered(cast, begins, ends) for cast in record.casts]
    for operation in record.operations:
        reads = _all(ends, operation.reads)
        own = numbers[operation.index]
        inside = insides.get(operation.index)
        if inside is None:
            (number,) = own[operation.index]
            operations.append(dataclasses.replace(operation, index=number, reads=reads))
            continue
        operations += [_moved(o, inside, own, reads) for o in inside.program.record.operations]
        casts += [
            dataclasses.replace(_renumbered(cast, own, own), runs=cast.runs * inside.runs)
            for cast in inside.program.record.casts
        ]
    made = tuple(operations), tuple(casts)
    return Joined(
        Record(*made, summarize(*made, record.summary.half_dtype)),
        _all(begins, _entering(graph)),
        _all(ends, makers(graph, [value for value, _ in graph.outputs])),
    )


def _moved(
    inner: OperationRecord,
    inside: Inside,
    numbers: Mapping[int, tuple[int, ...]],
    outer: tuple[int, ...],
) -> OperationRecord:
    """Returns an operation of a program inside, as an operation of the program around.

    Args:
        inner: the operation.
        inside: the program inside.
        numbers: the new numbers of its operations.
        outer: the operations that make its arguments.
    """
    runs = inside.runs
    enters = inner.index in inside.program.entering
    return dataclasses.replace(
        inner,
        index=numbers[inner.index][0],
        scope="/".join(part for part in (inside.scope, inner.scope) if part),
        runs=inner.runs * runs,
        flops=inner.flops * runs,
        bytes=inner.bytes * runs,
        bytes_full=inner.bytes_full * runs,
        # The numbers of arguments belong to the program inside; here, operations make them.
        given=()
        if enters and outer
        else tuple((-1 - numbers[inner.index][0], size) for _, size in inner.given),
        reads=(*(outer if enters else ()), *_all(numbers, inner.reads)),
        rewritten=True,
    )


def _renumbered(
    cast: CastRecord,
    begins: Mapping[int, tuple[int, ...]],
    ends: Mapping[int, tuple[int, ...]],
) -> CastRecord:
    return dataclasses.replace(
        cast, sources=_all(ends, cast.sources), targets=_all(begins, cast.targets)
    )


def _all(numbers: Mapping[int, tuple[int, ...]], indices: Sequence[int]) -> tuple[int, ...]:
    """Returns the new numbers of some operations; hidden ones are left out."""
    return tuple(dict.fromkeys(n for i in indices for n in numbers.get(i, ())))
