"""The order of a dot's axes: that in which the program reads and writes its largest array.

A dot gives batch axes, then what the left operand keeps, then what the right one keeps, and a
program that wants another order transposes. For a compiler a transpose is only a layout, until two
dots ask for different layouts of one array: then it writes that array once more. The gradient of an
attention's scores is such an array. Transposing *small* operands instead gives the large array in
the order wanted; large is what has no fewer elements than the two other arrays together::

    transpose(dot(a, b)), result large   = dot(b', a')        operands permuted, result in order
    dot(transpose(x), b), x large        = transpose(dot(x, b))   contracted in the order of x

Both give the same products and the same sums. The transposes that are written here cancel with
those of the program.

Who calls this: :mod:`duotone.jaxpr.half_rules`, for devices that take every layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from duotone.jaxpr.dots import Dims, kept_axes, result_shape

Dot = Callable[[Any, Any, Dims], Any]
"""Binds a dot with other dimension numbers."""
Permutation = tuple[int, ...] | None
Orders = tuple[Permutation, Permutation, Permutation]
"""By what the result is transposed next, and by what the left and the right operand were before."""
AS_IT_IS: Orders = (None, None, None)


def in_order(dot: Dot, operands: Sequence[Any], dims: Dims, orders: Orders) -> Any:
    """A dot whose large operand or result has the order that the program has it in.

    Args:
        dot: binds it.
        operands: left and right.
        dims: its dimension numbers.
        orders: the transposes around it.

    Returns:
        The result of the dot.
    """
    found = None
    if orders[0] is not None:
        found = result_in_order(dot, operands, dims, orders[0])
    for slot, permutation in enumerate(orders[1:]):
        if found is None and permutation is not None:
            found = operand_in_order(dot, operands, dims, slot, permutation)
    lhs, rhs = operands
    return dot(lhs, rhs, dims) if found is None else found


def result_in_order(
    dot: Dot, operands: Sequence[Any], dims: Dims, permutation: Sequence[int]
) -> Any | None:
    """A dot whose result is transposed next, by transposing operands.

    Args:
        dot: binds it.
        operands: left and right.
        dims: its dimension numbers.
        permutation: of the transpose that reads the result.

    Returns:
        The result of the dot, or ``None`` where the order cannot be had or costs too much.
    """
    (lhs, rhs), (contracted, batch) = operands, dims
    batches = len(batch[0])
    sides = [kept_axes(x, c, b) for x, c, b in zip(operands, contracted, batch, strict=True)]
    labels = [(0, axis) for axis in range(batches)]
    labels += [(1, axis) for axis in sides[0]] + [(2, axis) for axis in sides[1]]
    wanted = [labels[axis] for axis in permutation]
    parts = [side for side, _ in wanted]
    swapped = parts == sorted(parts, key=(0, 2, 1).index)
    if not swapped and parts != sorted(parts):
        return None
    if math.prod(result_shape(operands[0], operands[1], dims)) < lhs.size + rhs.size:
        return None
    order = [axis for side, axis in wanted if side == 0]
    batch = [[axes[axis] for axis in order] for axes in batch]
    pair = [
        _with_kept(x, kept, [axis for side, axis in wanted if side == which])
        for which, x, kept in ((1, lhs, sides[0]), (2, rhs, sides[1]))
    ]
    if swapped:
        result = dot(pair[1], pair[0], ((contracted[1], contracted[0]), (batch[1], batch[0])))
    else:
        result = dot(pair[0], pair[1], (contracted, (batch[0], batch[1])))
    return lax.transpose(result, np.argsort(permutation))


def operand_in_order(
    dot: Dot, operands: Sequence[Any], dims: Dims, slot: int, permutation: Sequence[int]
) -> Any | None:
    """A dot of an operand that was transposed before, with that operand as it was.

    Args:
        dot: binds it.
        operands: left and right.
        dims: its dimension numbers.
        slot: which operand was transposed.
        permutation: by which.

    Returns:
        The result of the dot, or ``None`` where this would cost too much.
    """
    pair = list(operands)
    if pair[slot].size < pair[1 - slot].size + math.prod(
        result_shape(operands[0], operands[1], dims)
    ):
        return None
    contracted, batch = [list(map(list, axes)) for axes in dims]
    kept = [permutation[axis] for axis in kept_axes(pair[slot], contracted[slot], batch[slot])]
    pair[slot] = lax.transpose(pair[slot], np.argsort(permutation))
    for axes in (contracted, batch):
        axes[slot] = [permutation[axis] for axis in axes[slot]]
    order = np.argsort(contracted[slot])
    contracted = [[axes[place] for place in order] for axes in contracted]
    numbers = (contracted[0], contracted[1]), (batch[0], batch[1])
    result = dot(pair[0], pair[1], numbers)
    # What the operand keeps is in its own order now; each of these axes goes back to its place.
    first = len(batch[0]) + (result.ndim - len(batch[0]) - len(kept) if slot else 0)
    places = list(range(result.ndim))
    places[first : first + len(kept)] = [first + sorted(kept).index(axis) for axis in kept]
    return lax.transpose(result, places)


def _with_kept(operand: Any, kept: Sequence[int], order: Sequence[int]) -> Any:
    """An operand with the axes that it keeps in another order, all others in their places."""
    places = list(range(operand.ndim))
    for place, axis in zip(kept, order, strict=True):
        places[place] = axis
    return lax.transpose(operand, places)
