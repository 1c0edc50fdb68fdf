"""Factors: what is taken out of a sum, since it is the same for all that is added up.

::

    sum(-(g * s)) = -(s * sum(g)),    s of size 1 along the axes that the sum removes

The gradient of a mean, behind a norm whose scale is one number a channel, is such a sum, and that
of the bias next to it is ``sum(g)`` itself. Taken out, both are one sum, which a compiler finds;
otherwise it reads ``g`` once more. Both sums are in float32, so only where roundings fall differs.

Only where all of it is calculated full and in one place. A compiler for TPUs adds up in the kernel
that makes a value in any case; along shortcuts one sum less made its scheduler prefer an order that
puts all weight gradients last (ResNet-50: 3 % more bytes). There only what goes on along no
shortcut gains (``passing_factors``): no operation behind the next dot reads it, and one sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from duotone.graph.graph import Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.optimization import Expression, Optimization
from duotone.precision.optimize.painted_view import View

_MOST = 16
"""Factors of one sum."""


def match(node: Node, view: View, name: str = "factors") -> Optimization | None:
    """A sum whose terms have common factors."""
    found = _factored(node, view)
    if found is None:
        return None
    value, reader, factors, negative = found
    write = Expression()
    result = write("own", write.read(value, reader))
    for factor, reads in factors:
        result = write("multiply", result, beside_sum(view, write, node, factor, reads))
    if negative:
        result = write("negate", result)
    taken = "a change of sign" if not factors else f"{len(factors)} common to all terms"
    return Optimization(name, node.index, taken, write.steps)


def match_passing(node: Node, view: View) -> Optimization | None:
    """Likewise, of what goes on along no shortcut."""
    found = _factored(node, view)
    if found is None or _goes_on(view, found[0]):
        return None
    return match(node, view, "passing_factors")


def _factored(node: Node, view: View) -> tuple[int, int, tuple[tuple[int, int], ...], bool] | None:
    """The value to add up, its reader, factors with their readers, and if the sign changes."""
    if not view.is_full(node):
        return None
    axes = view.axes(node)
    value, reader, factors, negative = node.inputs[0], node.index, [], False
    while len(factors) < _MOST and (made := view.full_beside(node, value)):
        operand, factor = parts_of(view, made, axes)
        if operand is None or view.levels.is_far(operand, node.index):
            break
        value, reader = operand, made.index
        negative ^= factor is None
        if factor is not None:
            factors.append((factor, made.index))
    return (value, reader, tuple(factors), negative) if factors else None


def _goes_on(view: View, value: int) -> bool:
    """True if a value is read along a shortcut too: behind the next dot, or by a second sum."""
    readers = [reader for reader, _ in view.readers(value)]
    sums = sum(Trait.SUMS_AXES in reader.traits for reader in readers)
    return sums > 1 or any(view.levels.is_far(value, reader.index) for reader in readers)


def parts_of(view: View, made: Node, axes: Sequence[int]) -> tuple[int | None, int | None]:
    """The operand of ``made``, and the factor common to all that a sum over ``axes`` adds up.

    The factor is ``None`` for a change of sign, both are for anything else.
    """
    if Trait.FLIPS in made.traits:
        return made.inputs[0], None
    shape = view.shape(made.outputs[0])
    if Trait.MULTIPLIES in made.traits:
        for operand, factor in (made.inputs, made.inputs[::-1]):
            if view.shape(operand) == shape and view.is_common(factor, shape, axes):
                return operand, factor
    return None, None


def beside_sum(view: View, write: Expression, node: Node, factor: int, reader: int) -> int:
    """Adds a factor to an expression, as it stands beside the result of a sum."""
    read = write.read(factor, reader)
    return write("squeeze", read, to=(view.axes(node),)) if view.shape(factor) else read
