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

from collections.abc import Mapping

from duotone.graph.graph import Body, BodyKind, Graph, Node
from duotone.graph.reach import reach, readers
from duotone.graph.terms import is_state, moved, scales
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
    for body in graph.bodies:
        if body.kind is BodyKind.LOOP:
            nodes = {node.index: node for node in graph.nodes_in(body.index)}
            found |= _factors(graph, classes, body, nodes)
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
    after = {index: [*readers(graph, node)] for index, node in nodes.items()}
    before = {index: _makers(graph, node) for index, node in nodes.items()}
    for carry in [n for n in nodes.values() if is_state(n) and n.body == body.index]:
        if not graph.values[carry.outputs[0]].paintable:
            continue
        way = reach([carry.index], after, nodes.__contains__)
        way &= reach([carry.index], before, nodes.__contains__)
        if any(classes.is_dot(nodes[index]) for index in way):
            continue
        for index in way:
            node = nodes[index]
            if Trait.MULTIPLIES in node.traits:
                found.update(v for v in node.inputs if graph.values[v].producer not in way)
    return found


def _makers(graph: Graph, node: Node) -> list[int]:
    return [graph.values[v].producer for v in node.inputs if graph.values[v].paintable]
