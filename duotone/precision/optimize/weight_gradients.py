"""Derivatives of half dots: of a weight in float32 (``weight_gradients``).

::

    d/dw of dot(x, half(w)) = dot(x', cotangent), summed and handed on in float32

Who differentiates a painted function has JAX transpose its dots: the cotangent of a half operand is
half, so that the gradient of a weight would be rounded before it is cast to the weight's float32.
Here is said what may be a weight; whether it *is* an array that is differentiated by is known only
where the dot is bound. Carried out by :mod:`duotone.jaxpr.rules.weight_dots`.
"""

from __future__ import annotations

from duotone.graph.graph import Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.optimization import Expression, Optimization
from duotone.precision.optimize.painted_view import View

_MOVES = frozenset({Trait.RESHAPES, Trait.TRANSPOSES})


def match_weight(node: Node, view: View) -> Optimization | None:
    """A half dot of what is handed to the program, moved at most.

    Of two such operands, what is no slice in a loop (the input of one step of a recurrent network)
    comes first, and then the smaller: the other is most likely an activation.
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
    """True if a node moves its operand and repeats none of it: a weight on its way to a dot."""
    return not node.traits.isdisjoint(_MOVES) and Trait.REPEATS not in node.traits
