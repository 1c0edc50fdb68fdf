"""Reach: walks along the edges of a graph, up to what makes values and down to their readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from duotone.graph.graph import Graph, Node, Value


def reach(
    starts: Iterable[int],
    edges: Sequence[Iterable[int]] | Mapping[int, Iterable[int]],
    through: Callable[[int], bool],
) -> set[int]:
    """Returns nodes reached from ``starts`` along ``edges`` through nodes that ``through`` accepts.

    The result contains a start only if the walk returns to it.

    Example:
        >>> reach([0], [[1], [2], [3], []], lambda node: node != 3)
        {1, 2}
    """
    found: set[int] = set()
    queue = deque(starts)
    while queue:
        for index in edges[queue.popleft()]:
            if index not in found and through(index):
                found.add(index)
                queue.append(index)
    return found


class Walk:
    """A walk from values back to what makes them, which comes to each value once.

    The caller says at each node whether the walk goes on, and with which operands::

        walk = Walk(graph, values)
        for value, node in walk:
            if Trait.COMMUTES in node.traits:
                walk.to(node.inputs)

    Args:
        graph: the program.
        values: where the walk begins.

    Attributes:
        seen: the values that the walk came to, also those that no node makes.
    """

    def __init__(self, graph: Graph, values: Iterable[int]) -> None:
        self._graph, self._queue = graph, list[int]()
        self.seen = set[int]()
        self.to(values)

    def to(self, values: Iterable[int]) -> None:
        """Goes on with those of some values that the walk has not come to."""
        for value in values:
            if value not in self.seen:
                self.seen.add(value)
                self._queue.append(value)

    def __iter__(self) -> Iterator[tuple[Value, Node]]:
        """Yields the values that nodes make, with their makers."""
        values, nodes = self._graph.values, self._graph.nodes
        for index in self._queue:  # grows while it is walked
            value = values[index]
            if value.producer >= 0:
                yield value, nodes[value.producer]


def start(graph: Graph, value: int, before: Callable[[Graph, Node], int | None]) -> int:
    """Returns where a walk back from a value ends that takes one operand of each node.

    The graph remembers the results.

    Args:
        graph: the program.
        value: where the walk begins.
        before: a function of a module, which returns the operand with which the walk goes on, or
            ``None`` if it ends.
    """
    known = graph.starts.setdefault(before, {})
    found = known.get(value)
    if found is None:
        found, node = value, graph.maker(value)
        while node is not None and (earlier := before(graph, node)) is not None:
            found, node = earlier, graph.maker(earlier)
        known[value] = found
    return found


def readers(graph: Graph, node: Node) -> Iterable[int]:
    """Returns the indices of the nodes that read a result of a node."""
    return (reader for v in node.outputs for reader, _ in graph.consumers[v])


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
    walk = Walk(graph, values)
    for _, node in walk:
        if not walk.seen.isdisjoint(starts):
            break
        if node.index >= first:
            # A loop's next value is made after the node that carries it: program order ends there.
            read = graph.values
            walk.to(v for v in node.inputs if v in starts or read[v].producer < node.index)
    return not walk.seen.isdisjoint(starts)
