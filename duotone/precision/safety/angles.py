"""Angles: arguments of a sine, whose rounding error may be several turns.

::

    given       values that follow from no dot, and such values moved or scaled a little by a
                network
    denied      a dot of given values that reaches a sine by scaling and shifting only
                (random Fourier features, the first layer of a network of sines), and the sums
                and products that moved its operands
                the arithmetic in front of an outer product that reaches a sine in the same way
                (a network's result times several rates)

The next layers of a network of sines read sines, and keep their half dots.
"""

from __future__ import annotations

from duotone.graph.graph import Graph, Node
from duotone.graph.reach import Walk, following
from duotone.graph.terms import moved
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.safety.displacements import Exact

_SHIFTS = frozenset(
    {Trait.COMMUTES, Trait.ADDS, Trait.MULTIPLIES, Trait.DIVIDES, Trait.UNDESCRIBED}
)


def find_angles(graph: Graph, classes: Classes, exact: Exact) -> tuple[set[int], list[int]]:
    """Finds the dots and the outer products that a sine reads.

    Args:
        graph: the program.
        classes: the class of each node.
        exact: the values that have float32's digits.

    Returns:
        The dots of given values, with the sums that moved their operands; and the operands of
        outer products.
    """
    found, factors = set[int](), list[int]()
    walk = Walk(graph, (v for node in graph.having(Trait.SINE) for v in node.inputs))
    after = _after_dots(graph, classes) if walk.seen else set[int]()
    for _, node in walk:
        if classes.nodes[node.index].kind is Kind.ALLOW:
            if after.isdisjoint(node.inputs) or exact.moves(node.inputs):
                found |= {node.index, *exact.sums_before(node.inputs)}
            elif scalings := exact.scalings(node.inputs):
                found |= {node.index, *scalings}
        elif _is_outer(graph, node):
            factors += node.inputs
        elif not node.traits.isdisjoint(_SHIFTS):
            walk.to(node.inputs)
    return found, factors


def _is_outer(graph: Graph, node: Node) -> bool:
    """Checks if a node multiplies two operands, both of which are smaller than its result."""
    if node.traits.isdisjoint({Trait.CONTRACTS, Trait.MULTIPLIES}):
        return False
    size = graph.values[node.outputs[0]].size
    return all(moved(graph, value).size < size for value in node.inputs)


def _after_dots(graph: Graph, classes: Classes) -> set[int]:
    """Returns the values that follow from dots, or that a loop passes to its iterations."""
    passed = (node.index for node in graph.having(Trait.CARRIES, Trait.ITERATES))
    return following(graph, classes.allowed.union(passed))
