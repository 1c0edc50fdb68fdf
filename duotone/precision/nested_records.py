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
from duotone.graph.products import flops_of
from duotone.ops.traits import Trait
from duotone.precision.node_facts import (
    filled_of,
    leaves_of,
    maker_of,
    makers,
    shape_of,
    sizes_of,
)
from duotone.precision.record import CastRecord, OperationRecord, Record, summarize
from duotone.precision.rules import Rule

_CALLED = re.compile(r"(?:^|/)jit\([^/]*\)")


@dataclasses.dataclass(frozen=True, slots=True)
class Joined:
    """The record of a program, with the records of the programs inside of it.

    Attributes:
        record: the record of one run.
        entering: for each argument, the indices of the operations that read it.
        leaving: for each result, the indices of the operations that make it.
        arguments: by number of a value, the position of the argument that it is.
    """

    record: Record
    entering: tuple[tuple[int, ...], ...]
    leaving: tuple[tuple[int, ...], ...]
    arguments: Mapping[int, int]

    def makers(self, position: int, call: Node) -> tuple[int, ...]:
        """Returns the operations that make one result of a call of the program.

        If duotone wrapped the program, so that the call has other results, it returns the
        operations of all results.
        """
        if len(self.leaving) == len(call.outputs):
            return self.leaving[position]
        return tuple(dict.fromkeys(index for some in self.leaving for index in some))


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


def _entering(graph: Graph, argument: int) -> tuple[list[int], set[int]]:
    """Returns the operations that read an argument, and the values that it is inside bodies."""
    found: set[int] = set()
    seen = {argument}
    waiting = [argument]
    while waiting:
        for reader, _ in graph.consumers[waiting.pop()]:
            node = graph.nodes[reader]
            if Trait.STRUCTURAL not in node.traits:
                found.add(reader)
                continue
            waiting.extend(value for value in node.outputs if value not in seen)
            seen.update(node.outputs)
    return sorted(found), seen


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
    rounded = Trait.EINSUM in node.traits and all(_was_half(value, casts) for value in ins)
    stored = any(value.dtype == half for value in outs) or _rounded_by_all(graph, outs, casts)
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
        flops=flops_of(node) * runs,
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
        leaves=leaves_of(graph, node.outputs),
        filled=filled_of(graph, node),
    )


def _was_half(value: Value, casts: set[int]) -> bool:
    return value.dtype == FULL_DTYPE and value.producer in casts


def _rounded_by_all(graph: Graph, outs: Sequence[Value], casts: set[int]) -> bool:
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
    numbers = _Numbers(record, graph, insides)
    operations: list[OperationRecord] = []
    casts = [_renumbered(cast, numbers.begins, numbers.ends) for cast in record.casts]
    for operation in record.operations:
        inside, own = insides.get(operation.index), numbers.own[operation.index]
        if inside is None:
            (number,) = own[operation.index]
            reads = numbers.makers(graph.nodes[operation.index].inputs)
            operations.append(dataclasses.replace(operation, index=number, reads=reads))
            continue
        outer = [(v, numbers.makers((v,))) for v in graph.nodes[operation.index].inputs]
        left = leaves_of(graph, graph.nodes[operation.index].outputs)
        operations += [
            _moved(o, inside, own, outer, left) for o in inside.program.record.operations
        ]
        casts += [
            dataclasses.replace(_renumbered(cast, own, own), runs=cast.runs * inside.runs)
            for cast in inside.program.record.casts
        ]
    made = tuple(operations), tuple(casts)
    entering = [_entering(graph, argument) for argument in graph.inputs]
    return Joined(
        Record(*made, summarize(*made, record.summary.half_dtype)),
        tuple(_all(numbers.begins, readers) for readers, _ in entering),
        tuple(numbers.makers((value,)) for value, _ in graph.outputs),
        {v: position for position, (_, values) in enumerate(entering) for v in values},
    )


class _Numbers:
    """The new numbers of the operations of a program and of the programs inside.

    Attributes:
        own: by operation of the program around, the new numbers of its own operations.
        begins: by operation of the program around, the operations that read an argument of it.
        ends: by operation of the program around, the operations that make a result of it.
    """

    def __init__(self, record: Record, graph: Graph, insides: Mapping[int, Inside]) -> None:
        self._graph, self._insides = graph, insides
        self.own: dict[int, dict[int, tuple[int, ...]]] = {}
        self.begins: dict[int, tuple[int, ...]] = {}
        self.ends: dict[int, tuple[int, ...]] = {}
        count = 0
        for operation in record.operations:
            index = operation.index
            inside = insides.get(index)
            if inside is None:
                own = {index: (count if insides else index,)}
                self.begins |= own
                self.ends |= own
            else:
                inner = inside.program
                own = {o.index: (count + k,) for k, o in enumerate(inner.record.operations)}
                self.begins[index] = _all(own, [i for some in inner.entering for i in some])
                self.ends[index] = _all(own, [i for some in inner.leaving for i in some])
            self.own[index] = own
            count += len(own)

    def makers(self, values: Sequence[int]) -> tuple[int, ...]:
        """Returns the operations that make some values, and skips those that are not in the record.

        Inside a nested program it returns only the operations that make the results that are read.
        """
        found: dict[int, None] = {}
        seen: set[int] = set()
        waiting = list(values)[::-1]
        while waiting:
            value = waiting.pop()
            producer = self._graph.values[value].producer
            if producer < 0 or value in seen:
                continue
            seen.add(value)
            node, inside = self._graph.nodes[producer], self._insides.get(producer)
            if inside is not None:
                made = inside.program.makers(node.outputs.index(value), node)
                found |= dict.fromkeys(_all(self.own[producer], made))
            elif producer in self.ends:
                found |= dict.fromkeys(self.ends[producer])
            else:
                waiting.extend(reversed(node.inputs))
        return tuple(found)


def _moved(
    inner: OperationRecord,
    inside: Inside,
    numbers: Mapping[int, tuple[int, ...]],
    outer: Sequence[tuple[int, tuple[int, ...]]],
    left: tuple[str, ...],
) -> OperationRecord:
    """Returns an operation of a program inside, as an operation of the program around.

    Args:
        inner: the operation.
        inside: the program inside.
        numbers: the new numbers of its operations.
        outer: for each of its arguments, the value around and the operations that make it.
        left: how the results of the program inside leave the program around.
    """
    runs, program = inside.runs, inside.program
    arguments = zip(program.entering, outer, strict=True)
    entered = [i for readers, (_, made) in arguments if inner.index in readers for i in made]
    given = []
    for number, size in inner.given:
        position = program.arguments.get(number)
        value, made = (-1 - numbers[inner.index][0], ()) if position is None else outer[position]
        if not made:
            given.append((value, size))
    return dataclasses.replace(
        inner,
        index=numbers[inner.index][0],
        scope="/".join(part for part in (inside.scope, inner.scope) if part),
        runs=inner.runs * runs,
        flops=inner.flops * runs,
        bytes=inner.bytes * runs,
        bytes_full=inner.bytes_full * runs,
        given=tuple(given),
        reads=tuple(dict.fromkeys((*entered, *_all(numbers, inner.reads)))),
        rewritten=True,
        leaves=tuple(name for name in inner.leaves if name != "output")
        + (left if "output" in inner.leaves else ()),
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
