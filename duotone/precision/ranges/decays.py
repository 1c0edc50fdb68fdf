"""Decays: factors that a program multiplies with one another, step after step.

A gate of 0.998 is 1.0 or 0.996 in bfloat16. One step hardly shows the difference, but after a
thousand steps of ``h = gate * h + (1 - gate) * x`` the result is wrong, since it depends on the
distance of the gate from 1. Programs write such products in three ways::

    a running product     cumprod(gate)
    an associative scan   parts of a value multiply one another, and parts of their product again
    a linear recurrence   a loop multiplies a state by a factor, and no dot reads the state on the
                          way to its next value

If a dot reads the state (LSTM, GRU), the state is rounded in every step anyway, and the gates
depend on the rounded state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from duotone.graph.graph import Body, BodyKind, Graph, Node
from duotone.graph.terms import is_state, moved, nodes_by_body, reached, readers, scales
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes


def find_decays(graph: Graph, classes: Classes) -> set[int]:
    """Returns the values that a program multiplies with one another, step after step.

    Args:
        graph: the program.
        classes: the class of each node.
    """
    found = {v for node in graph.having(Trait.MULTIPLIES_UP) for v in node.inputs}
    found |= _products_of_parts(graph)
    loops = [body for body in graph.bodies if body.kind is BodyKind.LOOP]
    of_bodies = nodes_by_body(graph) if loops else {}
    for body in loops:
        inside = [n for index in graph.bodies_in(body.index) for n in of_bodies.get(index, ())]
        found |= _factors(graph, classes, body, {node.index: node for node in inside})
    return found


def _products_of_parts(graph: Graph) -> set[int]:
    """Returns the operands of products of two parts of a value that is such a product itself.

    The operands of that first product count too: they are the factors.
    """
    found = set[int]()
    products = set[int]()
    for node in graph.having(Trait.MULTIPLIES):
        if scales(node):
            one, other = (moved(graph, v) for v in node.inputs)
            if one is other and not one.is_one:
                products.add(node.index)
                if one.producer in products:
                    found.update(node.inputs, graph.nodes[one.producer].inputs)
    return found


def _factors(graph: Graph, classes: Classes, body: Body, nodes: Mapping[int, Node]) -> set[int]:
    """Returns the factors of the states of a loop that no dot reads on their way."""
    found = set[int]()
    for carry in [n for n in nodes.values() if is_state(n) and n.body == body.index]:
        if not graph.values[carry.outputs[0]].paintable:
            continue
        way = reached(nodes, [carry.index], lambda node: readers(graph, node))
        way &= reached(nodes, [carry.index], lambda node: _makers(graph, node))
        if any(classes.is_dot(nodes[index]) for index in way):
            continue
        for index in way:
            node = nodes[index]
            if Trait.MULTIPLIES in node.traits:
                found.update(v for v in node.inputs if graph.values[v].producer not in way)
    return found


def _makers(graph: Graph, node: Node) -> Iterable[int]:
    return (graph.values[v].producer for v in node.inputs if graph.values[v].paintable)
