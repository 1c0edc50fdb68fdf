"""Dots and the origins of their operands, for the rules that follow the results of dots."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from duotone.graph.graph import Graph, Node
from duotone.graph.reach import start
from duotone.graph.terms import kept, kept_whole
from duotone.precision.classify.classes import Classes


class Dots:
    """The dots of a program.

    Attributes:
        graph: the program.
        classes: the class of each node.
    """

    def __init__(self, graph: Graph, classes: Classes) -> None:
        self.graph, self.classes = graph, classes

    @functools.cached_property
    def pairs(self) -> list[Node]:
        """The dots of two operands, in program order."""
        nodes = (self.graph.nodes[index] for index in sorted(self.classes.dots(self.graph)))
        return [node for node in nodes if len(node.inputs) == 2]

    def gradients(self, dot: Node) -> list[int]:
        """Returns dots that read an operand of a dot, and a value that follows from its result."""
        values = self.graph.values
        size = values[dot.outputs[0]].size
        pairs = [
            (index, value)
            for origin in dict.fromkeys(map(self.origin, dot.inputs))
            for index, value in self._read_with.get(origin, ())
            if index > dot.index and values[value].size == size
        ]
        follow = self._following(dot, max(index for index, _ in pairs)) if pairs else ()
        return sorted({index for index, value in pairs if value in follow})

    @functools.cached_property
    def _read_with(self) -> dict[int, list[tuple[int, int]]]:
        """By the origin of an operand of a dot, the dots that read it, and their other operands."""
        found: dict[int, list[tuple[int, int]]] = {}
        for node in self.pairs:
            for value, other in (node.inputs, node.inputs[::-1]):
                found.setdefault(self.origin(other), []).append((node.index, value))
        return found

    def _following(self, dot: Node, last: int) -> set[int]:
        """Returns the values that follow from the result of a dot, up to the operands of a node."""
        follow = set(dot.outputs)
        for node in self.graph.nodes[dot.index + 1 : last]:
            if not follow.isdisjoint(node.inputs):
                follow.update(v for v in node.outputs if self.graph.values[v].paintable)
        return follow

    def makers(self, values: Iterable[int]) -> list[Node]:
        """Returns the nodes that make some values, in order; arguments and constants have none."""
        return [node for node in map(self.graph.maker, values) if node is not None]

    def origin(self, value: int) -> int:
        """Returns the origin of a value, upstream of nodes that move or scale it."""
        return start(self.graph, value, kept)

    def source(self, value: int) -> int:
        """Returns the origin of a whole value, also upstream of the slices and stacks of loops."""
        return start(self.graph, value, kept_whole)
