"""Factors: a factor that all terms of a sum share is multiplied with the sum instead.

::

    sum(-(g * s)) = -(s * sum(g)),    s of size 1 along the axes that the sum removes

Downstream of a norm whose scale is one number per channel, the gradient of a mean is such a sum.
The gradient of the bias next to it is ``sum(g)`` itself. Without the factor both are the same sum,
and a compiler finds that. Otherwise it reads ``g`` once more. Both sums are in float32, so the two
forms differ only in where they round.

This holds only if one body computes all of it in full. A TPU's compiler computes the sum in the
kernel that makes the value in any case. Along shortcuts, removing a sum made its scheduler prefer
an order that puts all weight gradients last (ResNet-50: 3 % more bytes). So on a TPU only a sum off
the shortcuts gains (``passing_factors``): no operation after the next dot reads the value, and only
one sum does.
"""

from __future__ import annotations

from collections.abc import Sequence

from duotone.graph.graph import Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.optimization import Expression, Optimization
from duotone.precision.optimize.painted_view import View

_MOST = 16
"""The most factors that a match takes out of one sum."""


def match(node: Node, view: View, name: str = "factors") -> Optimization | None:
    """Matches a sum whose terms have common factors."""
    found = _factored(node, view)
    if found is None:
        return None
    value, reader, factors, negative = found
    write = Expression()
    result = write("own", write.read(value, reader))
    for factor, reads in factors:
        result = write("multiply", result, write_factor(view, write, node, factor, reads))
    if negative:
        result = write("negate", result)
    taken = "a change of sign" if not factors else f"{len(factors)} common to all terms"
    return Optimization(name, node.index, taken, write.steps)


def match_passing(node: Node, view: View) -> Optimization | None:
    """Matches the same for a value that no shortcut reads."""
    found = _factored(node, view)
    if found is None or _is_on_shortcut(view, found[0]):
        return None
    return match(node, view, "passing_factors")


def _factored(node: Node, view: View) -> tuple[int, int, tuple[tuple[int, int], ...], bool] | None:
    """Returns the value to sum, its reader, the factors and their readers, and the sign."""
    if not view.is_full(node):
        return None
    axes = view.axes(node)
    value, reader, factors, negative = node.inputs[0], node.index, [], False
    while len(factors) < _MOST and (made := view.full_maker(node, value)):
        operand, factor = parts_of(view, made, axes)
        if operand is None or view.levels.is_far(operand, node.index):
            break
        value, reader = operand, made.index
        negative ^= factor is None
        if factor is not None:
            factors.append((factor, made.index))
    return (value, reader, tuple(factors), negative) if factors else None


def _is_on_shortcut(view: View, value: int) -> bool:
    """Returns True if a shortcut reads a value too: a node after the next dot, or a second sum."""
    readers = [reader for reader, _ in view.readers(value)]
    sums = sum(Trait.SUMS_AXES in reader.traits for reader in readers)
    return sums > 1 or any(view.levels.is_far(value, reader.index) for reader in readers)


def parts_of(view: View, made: Node, axes: Sequence[int]) -> tuple[int | None, int | None]:
    """Returns the operand of ``made``, and the factor that all terms of a sum over ``axes`` share.

    The factor is ``None`` if ``made`` changes the sign. Both are ``None`` for other operations.
    """
    if Trait.FLIPS in made.traits:
        return made.inputs[0], None
    shape = view.shape(made.outputs[0])
    if Trait.MULTIPLIES in made.traits:
        for operand, factor in (made.inputs, made.inputs[::-1]):
            if view.shape(operand) == shape and view.is_common(factor, shape, axes):
                return operand, factor
    return None, None


def write_factor(view: View, write: Expression, node: Node, factor: int, reader: int) -> int:
    """Adds a factor to an expression, in the shape of the result of the sum ``node``."""
    read = write.read(factor, reader)
    return write("squeeze", read, to=(view.axes(node),)) if view.shape(factor) else read
