"""Finds convolutions whose windows tile the image: they are dots.

::

    out[n, o, d] = sum over k, c of x[n, o * stride + k * dilation, c] * w[k, c, d]

If windows neither overlap nor leave gaps, each axis of the image is a window axis, an axis of
output positions, or a product of both. With ``stride == window size`` the windows are patches; the
gradient of their weight has ``dilation == number of positions``. A dot then contracts the window
axes and keeps the position axes::

    x of n, positions, window, c    by    w of window, c, d    =    n, positions, d

Such convolutions are a 1 × 1 convolution, a patch embedding, and their gradients, except the
gradient of a patch embedding with respect to the image.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any


class Axis(enum.Enum):
    """An axis of an image, in a convolution whose windows tile it."""

    POSITIONS = "positions"
    """Each window has size 1."""
    WINDOW = "window"
    """There is one output position."""
    POSITIONS_WINDOW = "positions, window"
    """Positions first: each window is contiguous in memory."""
    WINDOW_POSITIONS = "window, positions"
    """Window elements first: the first elements of all windows are contiguous, then the second."""


def tiling(
    params: Mapping[str, Any], image: Sequence[Any], filters: Sequence[Any], result: Sequence[Any]
) -> list[Axis] | None:
    """Returns the kind of each spatial axis, in the order of the convolution's dimension numbers.

    Args:
        params: parameters of ``conv_general_dilated``.
        image: the shape of the left operand.
        filters: the shape of the right operand.
        result: the shape of the result.

    Returns:
        ``None`` if windows overlap, leave gaps or reach beyond the image, if there are groups, or
        if a dimension is symbolic.
    """
    if not all(isinstance(size, int) for size in (*image, *filters, *result)):
        return None
    if params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        return None
    if any(low or high for low, high in params["padding"]):
        return None
    if any(dilation != 1 for dilation in params["lhs_dilation"]):
        return None
    numbers, found = params["dimension_numbers"], list[Axis]()
    for axis, (mine, of_filters, of_result) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        window, positions = filters[of_filters], result[of_result]
        kind = _axis(
            window, positions, params["window_strides"][axis], params["rhs_dilation"][axis]
        )
        if kind is None or image[mine] != window * positions or not image[mine]:
            return None
        found.append(kind)
    return found


def _axis(window: int, positions: int, stride: int, dilation: int) -> Axis | None:
    if window == 1:
        return Axis.POSITIONS
    if positions == 1:
        return Axis.WINDOW
    if stride == window and dilation == 1:
        return Axis.POSITIONS_WINDOW
    if stride == 1 and dilation == positions:
        return Axis.WINDOW_POSITIONS
    return None


def slides(params: Mapping[str, Any], filters: Sequence[Any], result: Sequence[Any]) -> bool:
    """Checks if the windows of a convolution slide over its image as it is.

    A CPU's library has half kernels for these convolutions. It has none where zeros are inserted
    into the image or its border is cut off, as in gradients of strided convolutions. XLA turns
    groups into a dense convolution of half operands. That is fast for up to 128 groups of one
    feature, and hundreds of times slower than float32 for groups of several.

    Args:
        params: parameters of ``conv_general_dilated``.
        filters: the shape of the right operand.
        result: the shape of the result.
    """
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    inside = filters[numbers.rhs_spec[1]]
    edges = [edge for pair in params["padding"] for edge in pair]
    if not all(isinstance(size, int) for size in (*filters, *result, *edges)):
        return False
    return (
        params["batch_group_count"] == 1
        and (groups == 1 or (inside == 1 and groups <= _MOST_GROUPS))
        and len(filters) in _RANKS
        and all(dilation == 1 for dilation in params["lhs_dilation"])
        and min(edges) >= 0
        and min(*filters, *result) > 0
    )


_MOST_GROUPS = 128
_RANKS = (3, 4, 5)
"""The numbers of axes of an image for which the library has kernels."""
