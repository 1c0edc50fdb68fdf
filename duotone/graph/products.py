"""Distinguishes dots that fill a matrix instruction from short sums of products.

A matrix instruction contracts blocks. A dot whose contraction does not fill one gains nothing from
half and loses digits, and most such dots are geometry: points times a pose, positions times
frequencies, an outer product. They stay float32.

====================  ============================  ================================================
device                shortest contraction          source
====================  ============================  ================================================
NVIDIA Volta          4 (``mma.m8n8k4``)            NVIDIA, "PTX ISA", warp-level matrix operations
NVIDIA Turing to Ada  8 (``mma.m16n8k8``)           the same
NVIDIA Hopper on      16 (``wgmma``, ``tcgen05``)   the same; ``mma.m16n8k8`` is still there
AMD CDNA              8 (``v_mfma_f32_32x32x8``)    AMD, "CDNA3 Instruction Set Architecture"
Google TPU            128 (the systolic array)      Google Cloud, "TPU system architecture"
Intel AMX             32 (one row of a tile)        Intel, "Instruction Set Extensions Reference"
====================  ============================  ================================================

This module uses one number for all of them, so that a dtype that the user names gives the same
painting on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from duotone.graph.graph import Node

SHORTEST = 8
"""The fewest elements that a contraction must have. Volta would take 4."""


def meaning_of_dot(
    left: Sequence[object], right: Sequence[object], summed: Sequence[object]
) -> str:
    """Returns the table row of a dot that fills no matrix instruction; empty if it fills one.

    A ``sum_of_products`` has no free axis on either side. A ``short_dot`` contracts fewer than
    :data:`SHORTEST` elements (an outer product contracts none). A dot with few rows or columns
    is neither, since half still halves the bytes that it reads. Batch axes do not count: a
    rotation of each of many vectors is many such dots.

    Args:
        left: the sizes of one operand's free axes; an unknown size is not an integer.
        right: the sizes of the other operand's free axes.
        summed: the sizes of the axes that are summed over.

    Example:
        >>> meaning_of_dot([], [1], [64]), meaning_of_dot([8], [8], [64])
        ('sum_of_products', '')
        >>> meaning_of_dot([500], [3], [3]), meaning_of_dot([4096], [32], [])
        ('short_dot', 'short_dot')
        >>> meaning_of_dot(["n"], [], [3]), meaning_of_dot(["n"], [], [64])
        ('short_dot', '')
    """
    rows, columns, terms = map(_size, (left, right, summed))
    if max(rows, columns) <= 1:
        return "sum_of_products"
    return "short_dot" if terms < SHORTEST else ""


Side = object
Axes = tuple[list[Side], list[Side], list[Side]]
"""The sides of the free axes of both operands, and of those that are summed over."""


def matmul_axes(lhs: Sequence[Side], rhs: Sequence[Side]) -> Axes | None:
    """Returns the axes of NumPy's ``matmul``: what broadcasts is a free axis of the other operand.

    Args:
        lhs: the shape of one operand.
        rhs: the shape of the other one.

    Example:
        >>> matmul_axes([2, 3, 4], [4, 5])
        ([3, 2], [5], [4])
    """
    if not lhs or not rhs:
        return None
    left, right = list(lhs[-2:-1]), list(rhs[-1:]) if len(rhs) > 1 else []
    first, second = list(lhs[:-2]), list(rhs[:-2])
    most = max(len(first), len(second))
    first, second = [1] * (most - len(first)) + first, [1] * (most - len(second)) + second
    left += [a for a, b in zip(first, second, strict=True) if b == 1]
    right += [b for a, b in zip(first, second, strict=True) if a == 1]
    return left, right, [lhs[-1]]


def einsum_axes(equation: str, lhs: Sequence[Side], rhs: Sequence[Side]) -> Axes | None:
    """Returns the axes of an Einstein sum of two operands; ``None`` if it is not one, or unclear.

    A letter that the result lacks is summed over, and one that all three have is a batch axis.

    Args:
        equation: such as ``"bij,bjk->bik"``.
        lhs: the shape of one operand.
        rhs: the shape of the other one.

    Example:
        >>> einsum_axes("bij,bjk->bik", [2, 3, 4], [2, 4, 5])
        ([3], [5], [4])
    """
    terms, arrow, result = equation.replace(" ", "").partition("->")
    names = terms.split(",")
    if not arrow or len(names) != 2 or "." in terms:
        return None
    first, second = (dict(zip(*pair, strict=False)) for pair in zip(names, (lhs, rhs), strict=True))
    if (len(first), len(second)) != (len(lhs), len(rhs)):
        return None  # a diagonal, or a shape that is not known
    return (
        [side for name, side in first.items() if name in result and name not in second],
        [side for name, side in second.items() if name in result and name not in first],
        [side for name, side in (first | second).items() if name not in result],
    )


def _size(sides: Sequence[object]) -> float:
    """Returns the number of elements along some axes; infinity if the size of one is unknown."""
    known = [side for side in sides if type(side) is int]
    return math.prod(known) if len(known) == len(sides) else math.inf


def flops_of(node: Node) -> float:
    """Returns the FLOPs of one execution, without products with the zeros of a dilated operand."""
    apart = node.attributes.get("apart", 1.0)
    return node.flops / apart if isinstance(apart, float) else node.flops
