"""Where a value comes from, what follows from it, and whether a single number scales it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from duotone.graph.graph import Graph, Node, Value
from duotone.ops.traits import Trait


def moved(graph: Graph, value: int) -> Value:
    """Returns the value from which a value was moved; the value itself if no node moves it."""
    return graph.values[graph.moved_from[value]]


def is_one(graph: Graph, value: int) -> bool:
    """Returns True if a value is a single number, broadcast or not."""
    return moved(graph, value).is_one


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
    queue, seen = [value], set[int]()
    for index in queue:
        producer = moved(graph, index).producer
        if producer < 0 or producer in seen:
            continue
        seen.add(producer)
        node = graph.nodes[producer]
        if Trait.ADDS in node.traits:
            return True
        if Trait.CARRIES in node.traits:
            queue += node.inputs[1:]
        elif not node.traits.isdisjoint(_ALTERNATIVES):
            queue += node.inputs
    return False


_ALTERNATIVES = frozenset({Trait.CHOOSES, Trait.JOINS})


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
        if not node.traits.isdisjoint(_TURNS):
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


_TURNS = frozenset({Trait.NEGATES, Trait.UNDESCRIBED})
SLICES_OF_LOOPS = frozenset({Trait.ITERATES, Trait.STACKS})
"""Traits of nodes that take the slice of one iteration, or stack those of all."""
LOOPS = SLICES_OF_LOOPS | {Trait.CARRIES}
"""Traits of the structural nodes of a loop."""
SCALES = frozenset({Trait.MULTIPLIES, Trait.DIVIDES})
"""Traits of operations that scale an operand by another one, element by element."""


def following(
    graph: Graph,
    begins: Collection[int] = (),
    *,
    values: Iterable[int] = (),
    passes: Callable[[Node, int], bool] | None = None,
) -> set[int]:
    """Returns the values that follow from some nodes or values, in program order.

    Args:
        graph: the program.
        begins: the indices of the nodes whose results count.
        values: further values that count.
        passes: returns whether the results of a node follow from an operand of it; by default,
            they follow from every operand.
    """
    found = set(values)
    for node in graph.nodes:
        if node.index in begins or (
            not found.isdisjoint(node.inputs)
            and (passes is None or any(v in found and passes(node, v) for v in node.inputs))
        ):
            found.update(node.outputs)
    return found


def follow(graph: Graph, values: Iterable[int], starts: Collection[int]) -> bool:
    """Checks if some values follow from others, as :func:`following` does, but from their end.

    This looks only at nodes after the first reader of ``starts``, so it is fast for near values.
    """
    first = min((r for v in starts for r, _ in graph.consumers[v]), default=len(graph.nodes))
    queue, seen = list(values), set[int]()
    while queue:
        value = queue.pop()
        if value in starts:
            return True
        producer = graph.values[value].producer
        if producer >= first and producer not in seen:
            seen.add(producer)
            # A loop's next value is made after the node that carries it: program order ends there.
            queue += [
                v
                for v in graph.nodes[producer].inputs
                if v in starts or graph.values[v].producer < producer
            ]
    return False


def is_state(node: Node) -> bool:
    """Returns True if a node carries a value that the iterations read, and do not only add to."""
    return Trait.CARRIES in node.traits and Trait.SUMS not in node.traits


def reached(
    nodes: Mapping[int, Node],
    starts: Iterable[int],
    next_to: Callable[[Node], Iterable[int]],
) -> set[int]:
    """Returns the nodes that can be reached from others; a start only if a path leads back to it.

    Args:
        nodes: by index, such as those of a loop.
        starts: indices of nodes.
        next_to: returns the indices of the nodes next to one: its readers, or its makers.
    """
    found, queue = set[int](), list(starts)
    while queue:
        for index in next_to(nodes[queue.pop()]):
            if index not in found and index in nodes:
                found.add(index)
                queue.append(index)
    return found


def readers(graph: Graph, node: Node) -> Iterable[int]:
    """Returns the indices of the nodes that read a result of a node."""
    return (reader for v in node.outputs for reader, _ in graph.consumers[v])


def nodes_by_body(graph: Graph) -> dict[int, list[Node]]:
    """Returns the nodes of each body that has any, without those of the bodies nested in it."""
    found: dict[int, list[Node]] = {}
    for node in graph.nodes:
        found.setdefault(node.body, []).append(node)
    return found
