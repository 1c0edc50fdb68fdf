"""Epilogues: additions that a library carries out with the convolution before them.

::

    half(conv(x, w)) + bias, stored half    =    half(conv(x, w) + half(bias))

A convolution of cuDNN adds a bias for each channel, and then a second array, to the float32 sums
that it has made, and rounds once. XLA lets it, if all that is added has the half type. A float32
bias is added by a kernel of its own, which reads the rounded result and writes the sum in half. As
an epilogue the result is not rounded before the sum, but the bias is.

Who calls this: :mod:`duotone.road`, for devices whose convolutions do so. A painting does not
depend on it: the addition computes full, in the library, and stores half.
"""

from __future__ import annotations

from duotone.graph.classes import Classes
from duotone.graph.graph import Graph, Node, Paint
from duotone.graph.painting import Painting
from duotone.graph.rules import Rule


def plan_epilogues(graph: Graph, classes: Classes, painting: Painting) -> frozenset[int]:
    """Finds additions to be carried out by the operation before them.

    Args:
        graph: the program.
        classes: what each node is.
        painting: its colours.

    Returns:
        Nodes that add a small full value to the half result of such an operation, which nothing
        else reads, and store half.
    """
    return frozenset(
        node.index
        for node in graph.nodes
        if painting.rules[node.index] is Rule.MIXED
        and classes.nodes[node.index].entry.additive
        and node.op in ("add", "add_any")
        and any(_is_bare(graph, classes, painting, node, slot) for slot in (0, 1))
    )


def _is_bare(graph: Graph, classes: Classes, painting: Painting, node: Node, slot: int) -> bool:
    """Whether an operand is what an operation with an epilogue gives, and the other one small."""
    operand, other = (graph.values[node.inputs[s]] for s in (slot, 1 - slot))
    if operand.producer < 0 or len(graph.consumers[operand.index]) != 1:
        return False
    made = graph.nodes[operand.producer]
    half = graph.stored(painting.store, operand) is Paint.HALF
    joins = classes.nodes[made.index].entry.joins
    return joins and half and made.body == node.body and other.size < operand.size
