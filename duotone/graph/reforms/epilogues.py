"""Epilogues: additions that a library carries out with the convolution before them.

::

    half(conv(x, w)) + bias, stored half = half(conv(x, w) + half(bias))

A convolution of cuDNN adds a bias for each channel, and then a second array, to the float32 sums
that it has made, and rounds once. XLA lets it, if all that is added has the half type. A float32
bias is added by a kernel of its own, which reads the rounded result and writes the sum in half. As
an epilogue the result is not rounded before the sum, but the bias is. It is repeated before it is
rounded, so its gradient is summed in float32. On TPUs convolutions add whatever the type is.
"""

from __future__ import annotations

from duotone.graph.classify.rules import Rule
from duotone.graph.graph import Node
from duotone.graph.reforms.reform import Expression, Reform
from duotone.graph.reforms.view import View


def match(node: Node, view: View) -> Reform | None:
    """An addition of a small full value to the half result of a convolution, stored half.

    Nothing else reads that result.
    """
    adds = view.classes.nodes[node.index].entry.additive
    if view.painting.rules[node.index] is not Rule.MIXED or not adds:
        return None
    if not any(_is_bare(view, node, slot) for slot in (0, 1)):
        return None
    write = Expression()
    shape = view.shape(node.outputs[0])
    operands = [write.read(value, node.index, None) for value in node.inputs]
    wide = [write("repeat", operand, to=(shape,)) for operand in operands]
    write("own", *[write("half", operand) for operand in wide])
    return Reform("epilogues", node.index, "the convolution before it adds", write.steps)


def _is_bare(view: View, node: Node, slot: int) -> bool:
    """True if an operation with an epilogue gives one operand, and the other one is small."""
    operand, other = node.inputs[slot], node.inputs[1 - slot]
    made = view.beside(node, operand)
    if made is None or view.only_reader(operand) is None:
        return False
    joins = view.classes.nodes[made.index].entry.joins
    small = view.value(other).size < view.value(operand).size
    return joins and small and view.is_stored_half(operand)
