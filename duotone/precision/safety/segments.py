"""Long segments: sums of so many values that half would lose each further one.

Half adds one update after the other and rounds each partial sum. After ``1 / epsilon`` updates of
equal size, the next one is half the distance between two neighbouring numbers, and may add nothing
at all. This rule keeps additions into positions in float32 if an element gets on average more than
half as many updates (512 in float16, 64 in bfloat16), as in the sum over all nodes of a graph. It
only has an effect where the policy asks for half (``segment_sums="half"``).
"""

from __future__ import annotations

from duotone.graph.graph import Graph, Node
from duotone.ops.entries import PASSIVE
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.context import Background
from duotone.precision.rules import Rule

_REASON = "adds more updates into an element than half can count"


def keep_long_segments(classes: Classes, background: Background) -> Classes:
    """Denies additions into positions of many updates on average.

    Args:
        classes: the class of each node.
        background: the program, and the half type.

    Returns:
        New classes; the same object if there is no such sum on the infer or clear list.
    """
    most = 0.5 / background.half.epsilon
    found = {
        node.index: _REASON
        for node in background.graph.having(Trait.ADDS_INTO)
        if classes.nodes[node.index].kind in PASSIVE and _updates(node, background.graph) > most
    }
    return classes.with_denied(found, Rule.SEGMENT)


def _updates(node: Node, graph: Graph) -> float:
    """Returns the updates that an element gets on average."""
    made = sum(graph.values[v].size for v in node.outputs)
    largest = max(graph.values[v].size for v in node.inputs)
    return largest / max(1, made)
