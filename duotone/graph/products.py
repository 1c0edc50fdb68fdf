"""Tells which dots are products of matrices, and which are sums of products.

Who calls this: the front ends, when they describe a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_HANDFUL = 4
"""Sizes below this are no product of matrices to any device: the first Tensor Cores took blocks of
4 × 4 (NVIDIA, "Tesla V100 GPU Architecture"), all since then larger ones."""


def is_sum_of_products(
    left: Sequence[object], right: Sequence[object], summed: Sequence[object]
) -> bool:
    """True if a dot has no free axis on either side, or a handful of elements along all axes.

    Axes of the batch do not count: a rotation of each of many vectors is many such dots.

    Args:
        left: the sides of one operand's free axes; a side that is not known is no integer.
        right: of the other's.
        summed: of the axes that are summed over.

    Example:
        >>> is_sum_of_products([], [1], [64]), is_sum_of_products([8], [8], [64])
        (True, False)
        >>> is_sum_of_products([3], [], [3]), is_sum_of_products(["n"], [], [3])
        (True, False)
    """
    sizes: list[int] = []
    for sides in (left, right, summed):
        known = [side for side in sides if type(side) is int]
        if len(known) < len(sides):
            return False  # it may be large
        sizes.append(math.prod(known))
    return max(sizes[:2]) <= 1 or max(sizes) < _HANDFUL
