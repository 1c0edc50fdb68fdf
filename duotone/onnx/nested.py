"""Nested: ``If``, ``Loop``, ``Scan`` and ``SequenceMap`` as bodies of the one graph.

=============  =================================================================================
``If``         a body for each branch, a ``branch.join`` for each result
``Loop``       a body, a ``loop.carry`` for each carried value, a ``loop.stack`` for each scan
``Scan``       the same, and a ``loop.slice`` for each sliced operand
SequenceMap    a body whose inputs and results keep their types, because sequences keep theirs
=============  =================================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from duotone.errors import OnnxError
from duotone.graph.graph import BodyKind
from duotone.onnx.hints import Hints
from duotone.onnx.parts import FileStep, Part
from duotone.onnx.protos import NO_DTYPE, NodeProto, attribute, graphs_in, named
from duotone.onnx.reading import NestedReader, Reader, inner_scope

Scope = MutableMapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Nested:
    """A node with graphs inside, while it is read."""

    reader: Reader
    node: NodeProto
    inputs: list[int]
    part: Part
    scope: Scope
    hints: Hints
    position: int

    def graphs(self, count: int) -> Sequence[Any]:
        """Returns the graphs inside.

        Raises:
            OnnxError: there are not ``count`` of them.
        """
        found = graphs_in(self.node)
        if len(found) != count:
            raise OnnxError(
                f"{named(self.node)} has {len(found)} graphs inside, and needs {count}."
            )
        return found

    def enter(self, graph: Any, kind: BodyKind) -> Part:
        """Returns a new body for a graph inside."""
        return Part(graph, self.reader.add_body(self.part.body, kind))

    def step(self, *parts: Part) -> FileStep:
        """Returns the step of this node, without readers and results."""
        return FileStep(self.node, -1, self.inputs, [None] * len(self.inputs), [], [*parts])

    def inside(self, number: int = 0) -> Hints:
        """Returns the hints of a graph inside."""
        return self.hints.inside(self.position, number)

    def result(self, name: str, dtype: str) -> int:
        """Returns a new value for a result of this node."""
        return self.reader.value(name, dtype, self.hints.shape(name), self.part.body)

    def add(self, operation: str, reads: Sequence[int], outputs: Sequence[int], part: Part) -> int:
        """Returns the index of a new structural node."""
        return self.reader.node(operation, reads, outputs, part.body, self.node)

    def error(self, text: str) -> OnnxError:
        """Returns the error of this node."""
        return OnnxError(f"{named(self.node)}{text}")


def _if(nested: _Nested) -> FileStep:
    reader, node, step = nested.reader, nested.node, nested.step()
    for number, graph in enumerate(nested.graphs(2)):
        inner = nested.enter(graph, BodyKind.BARRIER)
        reader.fill(inner, inner_scope(nested.scope), nested.inside(number))
        if len(inner.outputs) != len(node.output):
            raise nested.error(
                f" has {len(node.output)} results, and a branch of it {len(inner.outputs)}."
            )
        step.parts.append(inner)
    for slot, name in enumerate(node.output):
        results = [inner.outputs[slot] for inner in step.parts]
        dtypes = {reader.values[value].dtype for value in results}
        if len(dtypes) > 1:
            both = " in one branch and ".join(sorted(dtypes))
            raise nested.error(f": its result {name!r} is {both} in the other.")
        made = nested.result(name, dtypes.pop())
        index = nested.add("branch.join", results, [made], nested.part)
        for number, inner in enumerate(step.parts):
            inner.readers[slot] = (index, number)
        step.outputs.append(made)
    return step


def _loop(nested: _Nested) -> FileStep:
    reader, carried = nested.reader, nested.inputs[2:]
    (graph,) = nested.graphs(1)
    if len(graph.input) != 2 + len(carried) or len(graph.output) < 1 + len(carried):
        raise nested.error(": its graph does not have the inputs and results of a Loop.")
    inner = nested.enter(graph, BodyKind.LOOP)
    names = inner_scope(nested.scope)
    for info, dtype in zip(graph.input[:2], ("int64", "bool"), strict=True):
        value = reader.value(info.name, dtype, (), inner.body)
        names[info.name] = value
        inner.inputs.append(value)
    step = nested.step(inner)
    carries = _carries(nested, step, graph.input[2:], carried, names, 2)
    reader.fill(inner, names, nested.inside())
    _check_results(nested, inner, len(nested.node.output) + 1)
    _close(nested, inner, carries, first=1)
    reader.bodies[inner.body] = dataclasses.replace(
        reader.bodies[inner.body], until=inner.outputs[0]
    )
    _stacks(nested, step, 1 + len(carries))
    return step


def _scan(nested: _Nested) -> FileStep:
    reader, inputs = nested.reader, nested.inputs
    (graph,) = nested.graphs(1)
    sliced = int(attribute(nested.node, "num_scan_inputs") or 0)
    split = len(inputs) - sliced
    if len(graph.input) != len(inputs) or not 0 < sliced <= len(inputs):
        raise nested.error(": its graph does not have the inputs of a Scan.")
    inner = nested.enter(graph, BodyKind.LOOP)
    inside, names, step = nested.inside(), inner_scope(nested.scope), nested.step(inner)
    carries = _carries(nested, step, graph.input[:split], inputs[:split], names, 0)
    for slot in range(split, len(inputs)):
        info = graph.input[slot]
        dtype = reader.values[inputs[slot]].dtype
        value = reader.value(info.name, dtype, inside.shape(info.name), inner.body)
        step.readers[slot] = (nested.add("loop.slice", [inputs[slot]], [value], inner), 0)
        names[info.name] = value
        inner.inputs.append(value)
    reader.fill(inner, names, inside)
    _check_results(nested, inner, len(nested.node.output))
    _close(nested, inner, carries, first=0)
    _stacks(nested, step, len(carries))
    return step


def _check_results(nested: _Nested, inner: Part, count: int) -> None:
    if len(inner.outputs) != count:
        results = len(nested.node.output)
        raise nested.error(f" has {results} results, and its graph {len(inner.outputs)}.")


def _carries(
    nested: _Nested,
    step: FileStep,
    infos: Sequence[Any],
    initial: Sequence[int],
    names: Scope,
    offset: int,
) -> list[int]:
    """Adds carry nodes without the body's results."""
    reader, node, (inner,) = nested.reader, nested.node, step.parts
    carries = []
    for number, (info, value) in enumerate(zip(infos, initial, strict=True)):
        found = reader.values[value] if value >= 0 else None
        dtype = found.dtype if found else NO_DTYPE
        shape = found.shape if found else ("?",)
        name = node.output[number] if number < len(node.output) else ""
        within = reader.value(info.name, dtype, shape, inner.body)
        outer = nested.hints.shape(name) if name else shape
        after = reader.value(name, dtype, outer, nested.part.body)
        read = [value] if value >= 0 else []
        index = nested.add("loop.carry", read, [within, after], inner)
        if read:
            step.readers[offset + number] = (index, 0)
        names[info.name] = within
        inner.inputs.append(within)
        step.outputs.append(after if name else -1)
        carries.append(index)
    return carries


def _close(nested: _Nested, inner: Part, carries: Sequence[int], first: int) -> None:
    """Adds the body's results as operands of the carry nodes."""
    reader = nested.reader
    for number, index in enumerate(carries):
        carry, slot = reader.nodes[index], first + number
        result = reader.values[inner.outputs[slot]]
        before = reader.values[carry.outputs[0]].dtype
        if NO_DTYPE not in (before, result.dtype) and before != result.dtype:
            raise nested.error(
                f": what it carries as {inner.graph.output[slot].name!r} is {before} before, and "
                f"{result.dtype} after an iteration."
            )
        inner.readers[slot] = (index, len(carry.inputs))
        reader.nodes[index] = dataclasses.replace(
            carry,
            inputs=(*carry.inputs, result.index),
            half_inputs=(*carry.half_inputs, result.paintable),
        )


def _stacks(nested: _Nested, step: FileStep, first: int) -> None:
    """Adds nodes for the stacked results of all iterations."""
    (inner,) = step.parts
    for number, result in enumerate(inner.outputs[first:]):
        name = nested.node.output[len(step.outputs)]
        made = nested.result(name, nested.reader.values[result].dtype)
        inner.readers[first + number] = (nested.add("loop.stack", [result], [made], inner), 0)
        step.outputs.append(made if name else -1)


def _sequence_map(nested: _Nested) -> FileStep:
    reader = nested.reader
    (graph,) = nested.graphs(1)
    inner = nested.enter(graph, BodyKind.LOOP)
    inside, names = nested.inside(), inner_scope(nested.scope)
    for info in graph.input:
        dtype, shape = inside.dtype(info.name), inside.shape(info.name)
        value = reader.value(info.name, dtype, shape, inner.body)
        names[info.name] = value
        inner.inputs.append(value)
    reader.fill(inner, names, inside)
    step = nested.step(inner)
    step.outputs = [nested.result(name, NO_DTYPE) for name in nested.node.output]
    reads = [value for value in nested.inputs if value >= 0]
    step.readers[: len(reads)] = _kept(nested, reads, step.outputs, nested.part)
    inner.readers[:] = _kept(nested, inner.outputs, [], inner)
    return step


def _kept(
    nested: _Nested, reads: Sequence[int], outputs: Sequence[int], part: Part
) -> list[tuple[int, int]]:
    """Adds a node that reads values in their original types; returns how it reads each."""
    index = nested.reader.node(
        "SequenceMap",
        reads,
        outputs,
        part.body,
        nested.node,
        half_inputs=(False,) * len(reads),
        half_outputs=(False,) * len(outputs),
        fixed="the type of a sequence is kept",
    )
    return [(index, slot) for slot in range(len(reads))]


def _reader_of(read: Callable[[_Nested], FileStep]) -> NestedReader:
    return lambda *given: read(_Nested(*given))


NESTED: Mapping[str, NestedReader] = {
    "If": _reader_of(_if),
    "Loop": _reader_of(_loop),
    "Scan": _reader_of(_scan),
    "SequenceMap": _reader_of(_sequence_map),
}
"""By operation."""
