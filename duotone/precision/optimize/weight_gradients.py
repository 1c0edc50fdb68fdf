"""Derivatives of half dots with respect to a weight, in float32 (``weight_gradients``).

::

    d/dw of dot(x, half(w)) = dot(x', cotangent), with a float32 accumulator and result

If a user differentiates a painted function, JAX transposes its dots. The cotangent of a half
operand is half, so JAX would round the gradient of a weight before it casts it to the weight's
float32. This module finds the operands that may be weights. Only when the dot is bound is it
known whether an operand *is* an array with respect to which the user differentiates.
:mod:`duotone.jaxpr.rules.weight_dots` applies this.
"""

from __future__ import annotations

from duotone.graph.graph import Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.optimization import Expression, Optimization
from duotone.precision.optimize.painted_view import View


def match_weight(node: Node, view: View) -> Optimization | None:
    """Matches a half dot with an operand that is an argument of the program, moved at most.

    If both operands are, the one that is not a slice in a loop comes first (a slice is the input of
    one step of a recurrent network), and then the smaller one: the other is likely an activation.
    """
    found: list[tuple[bool, int, int, int]] = []
    for slot, value in enumerate(node.inputs) if view.computes_half(node) else ():
        root = value
        while (maker := view.maker(root)) is not None and _moves(maker):
            root = maker.inputs[0]
        if maker is None or Trait.ITERATES in maker.traits:
            found.append((maker is not None, view.value(value).size, slot, root))
    if not found:
        return None
    write = Expression()
    for _, _, slot, root in sorted(found):
        write("weight", to=(slot, root))
    return Optimization("weight_gradients", node.index, "its gradient is not rounded", write.steps)


def _moves(node: Node) -> bool:
    """Checks if a node moves its operand and repeats none of it, as on a weight's way to a dot."""
    moves = node.traits & {Trait.RESHAPES, Trait.TRANSPOSES}
    return bool(moves) and Trait.REPEATS not in node.traits
