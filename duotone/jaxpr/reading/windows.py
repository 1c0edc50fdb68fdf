"""Finds convolutions whose windows do not overlap: they are dots.

::

    out[n, o, d] = sum over k, c of x[n, o * stride + k * dilation, c] * w[k, c, d]

If windows neither overlap nor leave gaps, each axis of the image is a window axis, an axis of
output positions, or a product of both. With ``stride == window size`` the windows are patches; the
gradient of their weight has ``dilation == number of positions``. A dot then contracts the window
axes and keeps the position axes::

    x of n, positions, window, c    by    w of window, c, d    =    n, positions, d

Windows of size 1 may leave gaps, as those of a strided 1 × 1 convolution do: a strided slice of the
image has none. The gradient with respect to that image has zeros in the gaps of its result, which
are added after the dot.

Such convolutions are a 1 × 1 convolution with any stride, a patch embedding, and their gradients,
except the gradient of a patch embedding with respect to the image.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


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


class Tile(NamedTuple):
    """How windows cover an axis of an image.

    Attributes:
        axis: the kind of the axis, once it is sliced.
        read: start, stop and step of the slice of the image that the windows read.
        zeros: the numbers of zeros before, after, and between the positions of the dot's result.
    """

    axis: Axis
    read: tuple[int, int, int]
    zeros: tuple[int, int, int] = (0, 0, 0)


def tiling(
    params: Mapping[str, Any], image: Sequence[Any], filters: Sequence[Any], result: Sequence[Any]
) -> list[Tile] | None:
    """Returns how windows cover each spatial axis, in the order of the dimension numbers.

    Args:
        params: parameters of ``conv_general_dilated``.
        image: the shape of the left operand.
        filters: the shape of the right operand.
        result: the shape of the result.

    Returns:
        ``None`` if windows overlap or reach beyond the image, if windows of several elements leave
        gaps, if there are groups, or if a dimension is symbolic.
    """
    edges = [edge for pair in params["padding"] for edge in pair]
    if not all(isinstance(size, int) for size in (*image, *filters, *result, *edges)):
        return None
    if params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        return None
    if min(*image, *filters, *result) < 1:
        return None
    numbers, found = params["dimension_numbers"], list[Tile]()
    for i, (mine, of_filters, of_result) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        window, positions, padding = filters[of_filters], result[of_result], params["padding"][i]
        stride, dilation = params["window_strides"][i], params["rhs_dilation"][i]
        if params["lhs_dilation"][i] > 1:
            tile = _spread(image[mine], window, stride, padding, params["lhs_dilation"][i])
        else:
            tile = _cover(image[mine], window, positions, stride, dilation, padding)
        if tile is None:
            return None
        found.append(tile)
    return found


def _spread(
    size: int, window: int, stride: int, padding: tuple[int, int], apart: int
) -> Tile | None:
    """Returns how windows of size 1 cover an axis between whose elements zeros are inserted."""
    if window != 1 or stride != 1 or min(padding) < 0:
        return None
    return Tile(Axis.POSITIONS, (0, size, 1), (*padding, apart - 1))


def _cover(
    size: int, window: int, positions: int, stride: int, dilation: int, padding: tuple[int, int]
) -> Tile | None:
    """Returns how windows cover an axis of an image of which padding may only cut something off."""
    if max(padding) > 0:
        return None
    step, taken = 1, window * positions
    if window == 1:
        axis, step = Axis.POSITIONS, stride
    elif positions == 1:
        axis, step = Axis.WINDOW, dilation
    elif stride == window and dilation == 1:
        axis = Axis.POSITIONS_WINDOW
    elif stride == 1 and dilation == positions:
        axis = Axis.WINDOW_POSITIONS
    else:
        return None
    start = -padding[0]
    stop = start + (taken - 1) * step + 1
    return Tile(axis, (start, stop, step)) if stop <= size + padding[1] else None


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


def has_phases(params: Mapping[str, Any], filters: Sequence[Any], result: Sequence[Any]) -> bool:
    """Checks if a convolution is one of an image with zeros between its elements, and no more.

    :mod:`duotone.jaxpr.rules.phases` computes it without the zeros.

    Args:
        params: parameters of ``conv_general_dilated``.
        filters: the shape of the right operand.
        result: the shape of the result.
    """
    edges = [edge for pair in params["padding"] for edge in pair]
    return (
        all(isinstance(size, int) for size in (*filters, *result, *edges))
        and any(dilation > 1 for dilation in params["lhs_dilation"])
        and all(one == 1 for one in (*params["window_strides"], *params["rhs_dilation"]))
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and len(filters) in _RANKS
        and min(*filters, *result) > 0
    )


_MOST_GROUPS = 128
_RANKS = (3, 4, 5)
"""The numbers of axes of an image for which the library has kernels."""
