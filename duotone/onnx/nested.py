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


def _graphs(node: NodeProto, count: int) -> Sequence[Any]:
    found = graphs_in(node)
    if len(found) != count:
        raise OnnxError(f"{named(node)} has {len(found)} graphs inside, and needs {count}.")
    return found


def _result(reader: Reader, name: str, dtype: str, hints: Hints, part: Part) -> int:
    return reader.value(name, dtype, hints.shape(name), part.body)


def _if(
    reader: Reader,
    node: NodeProto,
    inputs: list[int],
    part: Part,
    scope: Scope,
    hints: Hints,
    position: int,
) -> FileStep:
    step = FileStep(node, -1, inputs, [None] * len(inputs), [])
    for number, graph in enumerate(_graphs(node, 2)):
        inner = Part(graph, reader.add_body(part.body, BodyKind.BARRIER))
        reader.fill(inner, inner_scope(scope), hints.inside(position, number))
        if len(inner.outputs) != len(node.output):
            raise OnnxError(
                f"{named(node)} has {len(node.output)} results, and a branch of it "
                f"{len(inner.outputs)}."
            )
        step.parts.append(inner)
    for slot, name in enumerate(node.output):
        results = [inner.outputs[slot] for inner in step.parts]
        dtypes = {reader.values[value].dtype for value in results}
        if len(dtypes) > 1:
            both = " in one branch and ".join(sorted(dtypes))
            raise OnnxError(f"{named(node)}: its result {name!r} is {both} in the other.")
        made = _result(reader, name, dtypes.pop(), hints, part)
        index = reader.node("branch.join", results, [made], part.body, node)
        for number, inner in enumerate(step.parts):
            inner.readers[slot] = (index, number)
        step.outputs.append(made)
    return step


def _loop(
    reader: Reader,
    node: NodeProto,
    inputs: list[int],
    part: Part,
    scope: Scope,
    hints: Hints,
    position: int,
) -> FileStep:
    (graph,) = _graphs(node, 1)
    carried = inputs[2:]
    if len(graph.input) != 2 + len(carried) or len(graph.output) < 1 + len(carried):
        raise OnnxError(f"{named(node)}: its graph does not have the inputs and results of a Loop.")
    inner = Part(graph, reader.add_body(part.body, BodyKind.LOOP))
    inside = hints.inside(position, 0)
    names = inner_scope(scope)
    for info, dtype in zip(graph.input[:2], ("int64", "bool"), strict=True):
        value = reader.value(info.name, dtype, (), inner.body)
        names[info.name] = value
        inner.inputs.append(value)
    step = FileStep(node, -1, inputs, [None] * len(inputs), [], [inner])
    carries = _carries(reader, node, step, inner, graph.input[2:], carried, names, hints, part, 2)
    reader.fill(inner, names, inside)
    _check_results(node, inner, len(node.output) + 1)
    _close(reader, node, inner, carries, first=1)
    reader.bodies[inner.body] = dataclasses.replace(
        reader.bodies[inner.body], until=inner.outputs[0]
    )
    _stacks(reader, node, step, inner, 1 + len(carries), hints, part)
    return step


def _scan(
    reader: Reader,
    node: NodeProto,
    inputs: list[int],
    part: Part,
    scope: Scope,
    hints: Hints,
    position: int,
) -> FileStep:
    (graph,) = _graphs(node, 1)
    sliced = int(attribute(node, "num_scan_inputs") or 0)
    split = len(inputs) - sliced
    if len(graph.input) != len(inputs) or not 0 < sliced <= len(inputs):
        raise OnnxError(f"{named(node)}: its graph does not have the inputs of a Scan.")
    inner = Part(graph, reader.add_body(part.body, BodyKind.LOOP))
    inside = hints.inside(position, 0)
    names = inner_scope(scope)
    step = FileStep(node, -1, inputs, [None] * len(inputs), [], [inner])
    infos = graph.input[:split]
    carries = _carries(reader, node, step, inner, infos, inputs[:split], names, hints, part, 0)
    for slot in range(split, len(inputs)):
        info = graph.input[slot]
        dtype = reader.values[inputs[slot]].dtype
        value = reader.value(info.name, dtype, inside.shape(info.name), inner.body)
        index = reader.node("loop.slice", [inputs[slot]], [value], inner.body, node)
        step.readers[slot] = (index, 0)
        names[info.name] = value
        inner.inputs.append(value)
    reader.fill(inner, names, inside)
    _check_results(node, inner, len(node.output))
    _close(reader, node, inner, carries, first=0)
    _stacks(reader, node, step, inner, len(carries), hints, part)
    return step


def _check_results(node: NodeProto, inner: Part, count: int) -> None:
    if len(inner.outputs) != count:
        raise OnnxError(
            f"{named(node)} has {len(node.output)} results, and its graph {len(inner.outputs)}."
        )


def _carries(
    reader: Reader,
    node: NodeProto,
    step: FileStep,
    inner: Part,
    infos: Sequence[Any],
    initial: Sequence[int],
    names: Scope,
    hints: Hints,
    part: Part,
    offset: int,
) -> list[int]:
    """Adds carry nodes without the body's results."""
    carries = []
    for number, (info, value) in enumerate(zip(infos, initial, strict=True)):
        found = reader.values[value] if value >= 0 else None
        dtype = found.dtype if found else NO_DTYPE
        shape = found.shape if found else ("?",)
        name = node.output[number] if number < len(node.output) else ""
        within = reader.value(info.name, dtype, shape, inner.body)
        after = reader.value(name, dtype, hints.shape(name) if name else shape, part.body)
        read = [value] if value >= 0 else []
        index = reader.node("loop.carry", read, [within, after], inner.body, node)
        if read:
            step.readers[offset + number] = (index, 0)
        names[info.name] = within
        inner.inputs.append(within)
        step.outputs.append(after if name else -1)
        carries.append(index)
    return carries


def _close(
    reader: Reader, node: NodeProto, inner: Part, carries: Sequence[int], first: int
) -> None:
    """Adds the body's results as operands of the carry nodes."""
    for number, index in enumerate(carries):
        carry, slot = reader.nodes[index], first + number
        result = reader.values[inner.outputs[slot]]
        before = reader.values[carry.outputs[0]].dtype
        if NO_DTYPE not in (before, result.dtype) and before != result.dtype:
            raise OnnxError(
                f"{named(node)}: what it carries as {graph_name(inner, slot)!r} is {before} "
                f"before, and {result.dtype} after an iteration."
            )
        inner.readers[slot] = (index, len(carry.inputs))
        reader.nodes[index] = dataclasses.replace(
            carry,
            inputs=(*carry.inputs, result.index),
            half_inputs=(*carry.half_inputs, result.paintable),
        )


def graph_name(part: Part, slot: int) -> str:
    """Returns the name of a result of a graph."""
    return part.graph.output[slot].name


def _stacks(
    reader: Reader,
    node: NodeProto,
    step: FileStep,
    inner: Part,
    first: int,
    hints: Hints,
    part: Part,
) -> None:
    """Adds nodes for the stacked results of all iterations."""
    for number, result in enumerate(inner.outputs[first:]):
        slot = len(step.outputs)
        name = node.output[slot]
        made = _result(reader, name, reader.values[result].dtype, hints, part)
        index = reader.node("loop.stack", [result], [made], inner.body, node)
        inner.readers[first + number] = (index, 0)
        step.outputs.append(made if name else -1)


def _sequence_map(
    reader: Reader,
    node: NodeProto,
    inputs: list[int],
    part: Part,
    scope: Scope,
    hints: Hints,
    position: int,
) -> FileStep:
    (graph,) = _graphs(node, 1)
    inner = Part(graph, reader.add_body(part.body, BodyKind.LOOP))
    inside = hints.inside(position, 0)
    names = inner_scope(scope)
    for info in graph.input:
        value = reader.value(
            info.name, inside.dtype(info.name), inside.shape(info.name), inner.body
        )
        names[info.name] = value
        inner.inputs.append(value)
    reader.fill(inner, names, inside)
    step = FileStep(node, -1, inputs, [None] * len(inputs), [], [inner])
    step.outputs = [_result(reader, name, NO_DTYPE, hints, part) for name in node.output]
    reads = [value for value in inputs if value >= 0]
    _kept(reader, node, reads, step.outputs, part, lambda slot, found: _put(step, slot, found))
    _kept(reader, node, inner.outputs, [], inner, lambda slot, found: _leave(inner, slot, found))
    return step


def _put(step: FileStep, slot: int, found: tuple[int, int]) -> None:
    step.readers[slot] = found


def _leave(inner: Part, slot: int, found: tuple[int, int]) -> None:
    inner.readers[slot] = found


def _kept(
    reader: Reader,
    node: NodeProto,
    reads: Sequence[int],
    outputs: Sequence[int],
    part: Part,
    set_reader: Callable[[int, tuple[int, int]], None],
) -> None:
    """Adds a node that reads values in their original types."""
    index = reader.node(
        "SequenceMap",
        reads,
        outputs,
        part.body,
        node,
        half_inputs=(False,) * len(reads),
        half_outputs=(False,) * len(outputs),
        fixed="the type of a sequence is kept",
    )
    for slot in range(len(reads)):
        set_reader(slot, (index, slot))


NESTED: Mapping[str, NestedReader] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}
"""By operation."""
