"""Invariants: values that a ``Loop`` or ``Scan`` carries and never changes.

TensorFlow's converter writes the weights of a recurrent network as states of a loop, which each
iteration returns as they were. A state has one type, that of its initial value, so such a weight
would be stored once for the loop and once for readers outside, and cast in every iteration. Here
the body reads the value from outside of the loop instead::

    h, u = Loop(n, c, h0, W) body(i, c, h, V) => (c, tanh(h @ V), Identity(V))
    h    = Loop(n, c, h0)    body(i, c, h)    => (c, tanh(h @ W))         and u is W
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from duotone.onnx.protos import (
    ONNX,
    GraphProto,
    ModelProto,
    NodeProto,
    attribute,
    domain_of,
    graphs_in,
    nodes_in,
    opsets_of,
)


class _State(NamedTuple):
    """A state that no iteration changes.

    Attributes:
        operand: its slot among the operands of the loop and the inputs of the body.
        result: its slot among the results of the body.
        output: its slot among the results of the loop.
        copies: the names of its copies in the body.
    """

    operand: int
    result: int
    output: int
    copies: frozenset[str]


def without_invariants(model: ModelProto) -> ModelProto:
    """Returns a copy of a model without functions, whose loops read unchanged states from outside.

    Returns:
        The same object if no loop carries such a value.
    """
    opset = opsets_of(model)[""]
    if not any(_unchanged(node, opset) for node in nodes_in(model.graph)):
        return model
    made = copy.deepcopy(model)
    _simplify(made.graph, opset)
    return made


def _simplify(graph: GraphProto, opset: int) -> None:
    """Takes invariants out of the loops of a graph, the innermost first."""
    renamed: dict[str, str] = {}
    returned = {value.name for value in graph.output}
    nodes = []
    for node in graph.node:
        for inner in graphs_in(node):
            _simplify(inner, opset)
        nodes.append(node)
        for output, value in _take_out(node, _unchanged(node, opset)).items():
            if output in returned:
                nodes.append(ONNX.helper.make_node("Identity", [value], [output]))
            else:
                renamed[output] = renamed.get(value, value)
    if len(nodes) > len(graph.node):
        copied = [copy.deepcopy(node) for node in nodes]
        del graph.node[:]
        graph.node.extend(copied)
    _rename(graph, renamed)


def _unchanged(node: NodeProto, opset: int) -> list[_State]:
    """Returns the states of a loop that no iteration changes; none for another node."""
    first = _first_state(node, opset)
    if first is None:
        return []
    (body,) = graphs_in(node)
    count = len(node.input) - first - int(attribute(node, "num_scan_inputs") or 0)
    results = 1 if node.op_type == "Loop" else 0
    if min(len(body.input) - first, len(body.output) - results, len(node.output)) < count:
        return []  # the reader names what is missing
    copied = {n.output[0]: n.input[0] for n in body.node if _is_copy(n)}
    defined = Counter(_names_in(body))
    found = []
    for slot in range(count):
        copies, name = set[str](), body.output[results + slot].name
        while name in copied and name not in copies:
            copies.add(name)
            name = copied[name]
        value = node.input[first + slot]
        is_hidden = defined[value] > (value == name)
        if name == body.input[first + slot].name and value and not is_hidden:
            found.append(_State(first + slot, results + slot, slot, frozenset(copies)))
    return found if len(found) < len(node.output) else []


def _names_in(graph: GraphProto) -> Iterator[str]:
    """Yields the names that a graph and those inside define."""
    yield from (value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from node.output
        for inner in graphs_in(node):
            yield from _names_in(inner)


def _first_state(node: NodeProto, opset: int) -> int | None:
    """Returns the slot of a loop's first state among its operands; ``None`` for another node."""
    if domain_of(node) or len(graphs_in(node)) != 1:
        return None
    if node.op_type == "Scan" and opset >= 9:
        return 0
    return 2 if node.op_type == "Loop" else None


def _is_copy(node: NodeProto) -> bool:
    return node.op_type == "Identity" and not domain_of(node) and len(node.input) == 1


def _take_out(node: NodeProto, states: list[_State]) -> dict[str, str]:
    """Takes states out of a loop; returns the outside names of their results."""
    outside: dict[str, str] = {}
    for state in reversed(states):
        (body,) = graphs_in(node)
        value = node.input[state.operand]
        names = {body.input[state.operand].name, *state.copies}
        if node.output[state.output]:
            outside[node.output[state.output]] = value
        del node.input[state.operand], node.output[state.output]
        del body.input[state.operand], body.output[state.result]
        _remove(body.node, lambda n, gone=state.copies: n.output[0] in gone)
        _rename(body, dict.fromkeys(names, value))
    return outside


def _remove(messages: Any, gone: Callable[[Any], bool]) -> None:
    """Removes messages from a list of a message."""
    for position in reversed(range(len(messages))):
        if gone(messages[position]):
            del messages[position]


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Renames what a graph reads and returns, in graphs inside too unless they hide the name."""
    if not names:
        return
    for node in graph.node:
        for slot, name in enumerate(node.input):
            node.input[slot] = names.get(name, name)
        for inner in graphs_in(node):
            own = set(_names_in(inner))
            _rename(inner, {old: new for old, new in names.items() if old not in own})
    for value in graph.output:
        value.name = names.get(value.name, value.name)
    _remove(graph.value_info, lambda info: info.name in names)
