"""Where a value comes from, what follows from it, and whether a single number scales it."""

from __future__ import annotations

from duotone.graph.graph import Graph, Node, Value
from duotone.graph.reach import Walk
from duotone.ops.traits import Trait


def moved(graph: Graph, value: int) -> Value:
    """Returns the value from which a value was moved; the value itself if no node moves it."""
    return graph.values[graph.moved_from[value]]


def is_one(graph: Graph, value: int) -> bool:
    """Returns True if a value is a single number, broadcast or not."""
    return moved(graph, value).is_one


def keeps(graph: Graph, node: Node) -> bool:
    """Returns True if a node moves all or a part of one value, or scales it by one number."""
    if scales(node):
        read = (graph.values[v] for v in node.inputs)
        return any(value.is_one or value.constant is not None for value in read)
    if node.traits.isdisjoint(_PASSES) or not node.traits.isdisjoint(LOOPS):
        return False
    return sum(graph.values[v].paintable for v in node.inputs) == 1


def kept(graph: Graph, node: Node) -> int | None:
    """Returns the value that a node moves or scales; ``None`` for other nodes."""
    if not keeps(graph, node):
        return None
    return max(node.inputs, key=lambda v: graph.values[v].size)


def kept_whole(graph: Graph, node: Node) -> int | None:
    """Returns the array that a node moves, repeats or scales, also if it is a slice of a loop.

    Two parts of one array, such as the weights of two layers, have different origins.
    """
    if not node.traits.isdisjoint(SLICES_OF_LOOPS):
        return node.inputs[0]
    earlier = kept(graph, node)
    if earlier is None or graph.values[earlier].size > graph.values[node.outputs[0]].size:
        return None
    return earlier


def is_scaled(graph: Graph, value: int) -> bool:
    """Returns True if a single number scales a value."""
    found = moved(graph, value)
    if found.producer < 0 or found.is_one:
        return False
    node = graph.nodes[found.producer]
    if Trait.MULTIPLIES in node.traits:
        return any(is_one(graph, v) for v in node.inputs)
    return Trait.DIVIDES in node.traits and is_one(graph, node.inputs[1])


def unscaled(graph: Graph, value: int) -> int:
    """Returns the value of which a value is a multiple by single numbers, moved or not."""
    while (found := moved(graph, value)).producer >= 0:
        node = graph.nodes[found.producer]
        rest = [v for v in node.inputs if not is_one(graph, v)]
        scaled = is_scaled(graph, found.index) or Trait.NEGATES in node.traits
        if not scaled or len(rest) != 1:
            break
        (value,) = rest
    return found.index


def is_sum(graph: Graph, value: int) -> bool:
    """Returns True if a value is a sum, moved or not, also where it may be another value instead.

    A loop over steps, of which some are skipped, makes such values.
    """
    walk = Walk(graph, [graph.moved_from[value]])
    for _, node in walk:
        if Trait.ADDS in node.traits:
            return True
        own = node.inputs[1:] if Trait.CARRIES in node.traits else ()
        read = own if node.traits.isdisjoint({Trait.CHOOSES, Trait.JOINS}) else node.inputs
        walk.to(graph.moved_from[v] for v in read)
    return False


_PASSES = frozenset({Trait.COMMUTES, Trait.UNDESCRIBED})


def scales(node: Node) -> bool:
    """Returns True if a node multiplies or divides two different operands element by element."""
    return not node.traits.isdisjoint(SCALES) and len(set(node.inputs)) == 2


def subtracts(graph: Graph, node: Node) -> bool:
    """Returns True if a node subtracts an operand, or adds one whose sign changed."""
    adds = Trait.ADDS in node.traits and len(node.inputs) == 2
    return Trait.SUBTRACTS in node.traits or (adds and any(_turned(graph, v) for v in node.inputs))


def _turned(graph: Graph, value: int) -> bool:
    """Returns True if a value is, or may be, another value with the other sign, moved or scaled."""
    while (producer := graph.values[value].producer) >= 0:
        node = graph.nodes[producer]
        if not node.traits.isdisjoint({Trait.NEGATES, Trait.UNDESCRIBED}):
            return True
        if not scales(node) and (len(node.inputs) != 1 or Trait.COMMUTES not in node.traits):
            return False
        constants = [graph.values[v].constant for v in node.inputs]
        if scales(node) and any(known is not None and known.low < 0.0 for known in constants):
            return True
        rest = [v for v, known in zip(node.inputs, constants, strict=True) if known is None]
        if len(rest) != 1:
            return False
        (value,) = rest
    return False


SLICES_OF_LOOPS = frozenset({Trait.ITERATES, Trait.STACKS})
"""Traits of nodes that take the slice of one iteration, or stack those of all."""
LOOPS = SLICES_OF_LOOPS | {Trait.CARRIES}
"""Traits of the structural nodes of a loop."""
SCALES = frozenset({Trait.MULTIPLIES, Trait.DIVIDES})
"""Traits of operations that scale an operand by another one, element by element."""


def is_state(node: Node) -> bool:
    """Returns True if a node carries a value that the iterations read, and do not only add to."""
    return Trait.CARRIES in node.traits and Trait.SUMS not in node.traits
