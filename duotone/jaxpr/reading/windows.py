"""Windows: convolutions whose windows tile the image, which are dots.

::

    out[n, o, d] = sum over k, c of x[n, o * stride + k * dilation, c] * w[k, c, d]

Where windows neither overlap nor leave anything out, each axis of the image is that of the windows,
that of the places in a result, or one of both (``stride == size of a window``: patches; their
weight's gradient has ``dilation == places``). A dot then contracts the first and keeps the second::

    x of n, places, window, c    by    w of window, c, d    =    n, places, d

So are a convolution of windows of one place (1 × 1), what cuts an image into patches, and the
gradients of both but that of an image cut into patches.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any


class Axis(enum.Enum):
    """An axis of an image, in a convolution whose windows tile it."""

    PLACES = "places"
    """Each window is one place."""
    WINDOW = "window"
    """There is one window."""
    PLACES_WINDOW = "places, window"
    """Places first: window after window lies in memory."""
    WINDOW_PLACES = "window, places"
    """The first places of all windows lie together, then the second ones."""


def tiling(
    params: Mapping[str, Any], image: Sequence[Any], filters: Sequence[Any], result: Sequence[Any]
) -> list[Axis] | None:
    """The axes of an image that the windows of a convolution tile, in the order of its numbers.

    Args:
        params: of ``conv_general_dilated``.
        image: the shape of the left operand.
        filters: that of the right one.
        result: likewise.

    Returns:
        ``None`` where windows overlap, leave something out or reach beyond the image; with groups;
        and with symbolic dimensions.
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
        window, places = filters[of_filters], result[of_result]
        kind = _axis(window, places, params["window_strides"][axis], params["rhs_dilation"][axis])
        if kind is None or image[mine] != window * places or not image[mine]:
            return None
        found.append(kind)
    return found


def _axis(window: int, places: int, stride: int, dilation: int) -> Axis | None:
    if window == 1:
        return Axis.PLACES
    if places == 1:
        return Axis.WINDOW
    if stride == window and dilation == 1:
        return Axis.PLACES_WINDOW
    if stride == 1 and dilation == places:
        return Axis.WINDOW_PLACES
    return None
