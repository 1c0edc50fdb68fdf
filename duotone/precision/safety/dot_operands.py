"""Dots and the origins of their operands, for the rules that follow the results of dots."""

from __future__ import annotations

from duotone.graph.graph import Graph, Node
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.safety.terms import scales

_CONTRACTS = Trait.CONTRACTS  # bound once: these are hot
_PASSES = frozenset({Trait.COMMUTES, Trait.UNDESCRIBED})
_LOOPS = frozenset({Trait.CARRIES, Trait.ITERATES, Trait.STACKS})


def is_dot(node: Node, classes: Classes) -> bool:
    """Returns True for allow operations, and for dots that are too short to be one."""
    return classes.nodes[node.index].kind is Kind.ALLOW or _CONTRACTS in node.traits


class Dots:
    """The dots of a program.

    Attributes:
        graph: the program.
        classes: the class of each node.
    """

    def __init__(self, graph: Graph, classes: Classes) -> None:
        self.graph, self.classes = graph, classes

    def gradients(self, dot: Node) -> list[int]:
        """Returns dots that read an operand of a dot, and a value that follows from its result."""
        values = self.graph.values
        operands = {self.origin(value) for value in dot.inputs}
        size = values[dot.outputs[0]].size
        found, follow = list[int](), set(dot.outputs)
        for node in self.graph.nodes[dot.index + 1 :]:
            if follow.isdisjoint(node.inputs):
                continue
            follow.update(value for value in node.outputs if values[value].paintable)
            if is_dot(node, self.classes) and len(node.inputs) == 2:
                pairs = (node.inputs, node.inputs[::-1])
                if any(
                    value in follow
                    and values[value].size == size
                    and self.origin(other) in operands
                    for value, other in pairs
                ):
                    found.append(node.index)
        return found

    def maker(self, value: int) -> Node | None:
        """Returns the node that makes a value; ``None`` for arguments and constants."""
        producer = self.graph.values[value].producer
        return self.graph.nodes[producer] if producer >= 0 else None

    def origin(self, value: int) -> int:
        """Returns the origin of a value, upstream of nodes that move or scale it."""
        while (producer := self.graph.values[value].producer) >= 0:
            node = self.graph.nodes[producer]
            if not self.keeps(node):
                break
            value = max(node.inputs, key=lambda v: self.graph.values[v].size)
        return value

    def keeps(self, node: Node) -> bool:
        """Returns True if a node moves or scales all of one value."""
        if scales(node):
            values = (self.graph.values[v] for v in node.inputs)
            return any(value.size == 1 or value.constant is not None for value in values)
        if node.traits.isdisjoint(_PASSES) or not node.traits.isdisjoint(_LOOPS):
            return False
        return sum(self.graph.values[v].paintable for v in node.inputs) == 1
