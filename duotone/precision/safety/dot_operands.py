"""Dots and the origins of their operands, for the rules that follow the results of dots."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from duotone.graph.graph import Graph, Node
from duotone.graph.terms import LOOPS, scales
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes

_PASSES = frozenset({Trait.COMMUTES, Trait.UNDESCRIBED})


class Dots:
    """The dots of a program.

    Attributes:
        graph: the program.
        classes: the class of each node.
    """

    def __init__(self, graph: Graph, classes: Classes) -> None:
        self.graph, self.classes = graph, classes
        self._origins: dict[int, int] = {}

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

    def maker(self, value: int) -> Node | None:
        """Returns the node that makes a value; ``None`` for arguments and constants."""
        producer = self.graph.values[value].producer
        return self.graph.nodes[producer] if producer >= 0 else None

    def makers(self, values: Iterable[int]) -> list[Node]:
        """Returns the nodes that make some values, in order; arguments and constants have none."""
        return [node for node in map(self.maker, values) if node is not None]

    def origin(self, value: int) -> int:
        """Returns the origin of a value, upstream of nodes that move or scale it."""
        found = self._origins.get(value)
        if found is None:
            found = value
            while (earlier := self.before(found)) is not None:
                found = earlier
            self._origins[value] = found
        return found

    def before(self, value: int) -> int | None:
        """Returns the value that a node moves or scales to a value; ``None`` at its origin."""
        made = self.maker(value)
        if made is None or not self.keeps(made):
            return None
        return max(made.inputs, key=lambda v: self.graph.values[v].size)

    def keeps(self, node: Node) -> bool:
        """Returns True if a node moves or scales all of one value."""
        if scales(node):
            values = (self.graph.values[v] for v in node.inputs)
            return any(value.size == 1 or value.constant is not None for value in values)
        if node.traits.isdisjoint(_PASSES) or not node.traits.isdisjoint(LOOPS):
            return False
        return sum(self.graph.values[v].paintable for v in node.inputs) == 1
