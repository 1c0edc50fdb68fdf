"""Levels: which operations can never be in one kernel, however a compiler fuses.

::

    level(node)  = number of anchors on the longest way to it
    height(v)    = level of its producer, one more if that is an anchor
    far reader   = a reader on a higher level than the value's height

An anchor is an allow operation, a structural one, or an unlisted one: no kernel contains both an
operation before an anchor and one after it.

These levels have nothing to do with TensorFlow's optimization levels, which a policy names.
"""

from __future__ import annotations

import dataclasses

from duotone.graph.graph import Graph, Node
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes


@dataclasses.dataclass(frozen=True, slots=True)
class Levels:
    """Levels of a program.

    Attributes:
        nodes: the level of each node.
        values: the height of each value.
        anchors: whether each node is an anchor.
    """

    nodes: tuple[int, ...]
    values: tuple[int, ...]
    anchors: tuple[bool, ...]

    def is_far(self, value: int, reader: int) -> bool:
        """Returns True if a reader needs a value to be in memory, or to be recomputed."""
        return self.nodes[reader] > self.values[value]


def find_levels(graph: Graph, classes: Classes) -> Levels:
    """Computes the levels of all nodes and the heights of all values.

    Args:
        graph: the program.
        classes: the class of each node.

    Returns:
        The levels; they start at 0 for nodes that no anchor precedes.
    """
    levels = [0] * len(graph.nodes)
    heights = [0] * len(graph.values)
    anchors = [_is_anchor(node, classes) for node in graph.nodes]
    for node in graph.nodes:
        level = max((heights[value] for value in node.inputs), default=0)
        levels[node.index] = level
        for value in node.outputs:
            heights[value] = level + anchors[node.index]
    return Levels(tuple(levels), tuple(heights), tuple(anchors))


_STRUCTURAL, _ALLOW, _UNLISTED = Trait.STRUCTURAL, Kind.ALLOW, Kind.UNLISTED


def _is_anchor(node: Node, classes: Classes) -> bool:
    if _STRUCTURAL in node.traits:
        return True
    kind = classes.nodes[node.index].kind
    return kind is _ALLOW or (kind is _UNLISTED and node.paintable)
