"""Decays: factors that a program multiplies with one another, step after step.

A gate of 0.998 is 1.0 or 0.996 in bfloat16. One step hardly shows the difference, but after a
thousand steps of ``h = gate * h + (1 - gate) * x`` nothing is right. What counts is the distance of
the gate from 1. Programs write such products in three ways::

    a running product     cumprod(gate)
    an associative scan   parts of a value multiply one another, and parts of their product again
    a linear recurrence   a loop multiplies a state by a factor, and no dot reads the state on the
                          way to its next value

A dot on that way (LSTM, GRU) rounds the state in every step anyway, and the gates follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from duotone.graph.graph import Body, BodyKind, Graph, Node
from duotone.graph.terms import is_state, moved, scales
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes

_DOTS = frozenset({Trait.CONTRACTS})


def find_decays(graph: Graph, classes: Classes) -> set[int]:
    """Returns the values that a program multiplies with one another, step after step.

    Args:
        graph: the program.
        classes: the class of each node.
    """
    found = {v for node in graph.nodes if Trait.MULTIPLIES_UP in node.traits for v in node.inputs}
    found |= _products_of_parts(graph)
    for body in graph.bodies:
        if body.kind is BodyKind.LOOP:
            found |= _factors(graph, classes, body)
    return found


def _products_of_parts(graph: Graph) -> set[int]:
    """Returns the operands of products of two parts of a value that is such a product itself."""
    found = set[int]()
    products = set[int]()
    for node in graph.nodes:
        if Trait.MULTIPLIES in node.traits and scales(node):
            one, other = (moved(graph, v) for v in node.inputs)
            if one is other and not one.is_one:
                products.add(node.index)
                if one.producer in products:
                    found.update(node.inputs)
    return found


def _factors(graph: Graph, classes: Classes, body: Body) -> set[int]:
    """Returns the factors of the states of a loop that no dot reads on their way."""
    inside = graph.bodies_in(body.index)
    nodes = {node.index: node for node in graph.nodes if node.body in inside}
    found = set[int]()
    for carry in [n for n in nodes.values() if is_state(n) and n.body == body.index]:
        if not graph.values[carry.outputs[0]].paintable:
            continue
        way = _reach(carry, nodes, lambda node: _readers(graph, node))
        way &= _reach(carry, nodes, lambda node: _makers(graph, node))
        if any(_is_dot(nodes[index], classes) for index in way):
            continue
        for index in way:
            node = nodes[index]
            if Trait.MULTIPLIES in node.traits:
                found.update(v for v in node.inputs if graph.values[v].producer not in way)
    return found


def _is_dot(node: Node, classes: Classes) -> bool:
    return classes.nodes[node.index].kind is Kind.ALLOW or not node.traits.isdisjoint(_DOTS)


def _readers(graph: Graph, node: Node) -> Iterable[int]:
    return (reader for v in node.outputs for reader, _ in graph.consumers[v])


def _makers(graph: Graph, node: Node) -> Iterable[int]:
    return (graph.values[v].producer for v in node.inputs if graph.values[v].paintable)


def _reach(
    start: Node, nodes: Mapping[int, Node], next_to: Callable[[Node], Iterable[int]]
) -> set[int]:
    """Returns the nodes of a loop that a carry reaches, the carry itself if it does."""
    found, queue = set[int](), [start]
    while queue:
        new = {index for index in next_to(queue.pop()) if index in nodes} - found
        found |= new
        queue += (nodes[index] for index in new)
    return found
