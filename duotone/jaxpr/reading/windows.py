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
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from duotone import _jax


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


class Convolution(NamedTuple):
    """The parts of a convolution that its forms depend on.

    Attributes:
        params: parameters of ``conv_general_dilated``.
        image: the shape of the left operand.
        filters: the shape of the right operand.
        result: the shape of the result.
    """

    params: Mapping[str, Any]
    image: Sequence[Any]
    filters: Sequence[Any]
    result: Sequence[Any]

    @classmethod
    def of(cls, eqn: _jax.Eqn) -> Convolution:
        """Returns the parts of an equation."""
        return cls(eqn.params, *[var.aval.shape for var in (*eqn.invars, *eqn.outvars)])


def tiling(made: Convolution) -> list[Tile] | None:
    """Returns how windows cover each spatial axis, in the order of the dimension numbers.

    Returns:
        ``None`` if windows overlap or reach beyond the image, if windows of several elements leave
        gaps, if there are groups, or if a dimension is symbolic.
    """
    params, image, filters, result = made
    if not _is_known(*made) or not _is_dense(params):
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


def slides(made: Convolution) -> bool:
    """Checks if the windows of a convolution slide over its image as it is.

    A CPU's library has half kernels for these convolutions. It has none where zeros are inserted
    into the image or its border is cut off, as in gradients of strided convolutions, and XLA gives
    it none with groups.
    """
    params, _, filters, result = made
    return (
        _is_known(params, filters, result)
        and _is_dense(params)
        and len(filters) in _RANKS
        and all(dilation == 1 for dilation in params["lhs_dilation"])
        and min(min(pair) for pair in params["padding"]) >= 0
    )


def has_phases(made: Convolution) -> bool:
    """Checks if a convolution is one of an image with zeros between its elements, and no more.

    :mod:`duotone.jaxpr.rules.phases` computes it without the zeros.
    """
    params, _, filters, result = made
    return (
        _is_known(params, filters, result)
        and _is_only_spread(params)
        and _is_dense(params)
        and len(filters) in _RANKS
    )


def _is_only_spread(params: Mapping[str, Any]) -> bool:
    """Checks if a convolution has zeros between the elements of its image, and no other gaps."""
    others = (*params["window_strides"], *params["rhs_dilation"])
    return any(one > 1 for one in params["lhs_dilation"]) and all(one == 1 for one in others)


def library_forms(made: Convolution) -> Iterator[str]:
    """Yields the attributes of a convolution that a GPU's library takes in another form only.

    XLA fills a dilated operand with zeros where the library would not need them: an image, unless
    the filters are reversed; filters, unless the padding is even. It gives the gradient of dilated
    filters to the library as a convolution whose window is as large as the image. In groups, it
    takes none but the gradients of filters.
    """
    params = made.params
    if not _is_known(*made) or len(made.image) not in _RANKS:
        return
    spread, stretched, strided = (
        any(one > 1 for one in params[name])
        for name in ("lhs_dilation", "rhs_dilation", "window_strides")
    )
    is_gradient = is_of_filters(params) and params["feature_group_count"] == 1
    if _is_only_spread(params) and (is_gradient or _is_dense(params)):
        yield "spread"
    elif spread:
        return
    elif stretched and not is_of_filters(params):
        edges = params["padding"]
        if any(low != high or low < 0 for low, high in edges) or not any(map(any, edges)):
            yield "uneven"
    elif strided and not stretched and is_gradient:
        yield "dilated_gradient"


def is_of_filters(params: Mapping[str, Any]) -> bool:
    """Checks if a convolution is the gradient of filters, which sums over the images of a batch."""
    images, features = params["dimension_numbers"].lhs_spec[:2]
    return images > features


def is_channelwise(made: Convolution) -> bool:
    """Checks if each feature of a result comes from one feature of an image.

    The gradient of the filters of such a convolution counts too: its groups are of the batch.
    """
    params, image, filters, _ = made
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    if not _is_known(*made) or len(image) not in _RANKS:
        return False
    window = math.prod(filters[axis] for axis in numbers.rhs_spec[2:])
    if groups > 1:
        return image[numbers.lhs_spec[1]] == groups and window <= _MOST_ELEMENTS
    return params["batch_group_count"] == image[numbers.lhs_spec[0]] > 1


def overhangs(made: Convolution) -> bool:
    """Checks if the window of a convolution has more elements than its image.

    XLA then exchanges image and filters. An image of one element makes this a dot, which is fast.
    """
    params, image, filters, _ = made
    numbers = params["dimension_numbers"]
    if not _is_known(*made) or not _is_dense(params):
        return False
    pixels = math.prod(image[axis] for axis in numbers.lhs_spec[2:])
    return 1 < pixels < math.prod(filters[axis] for axis in numbers.rhs_spec[2:])


def pools(
    params: Mapping[str, Any], array: Sequence[Any], result: Sequence[Any], *, overlapping: bool
) -> bool:
    """Checks if a reduction of windows has few elements in each, and no dilation.

    Args:
        params: parameters of a ``reduce_window_*`` or a ``select_and_scatter_add``.
        array: the shape of the operand with the windows.
        result: the shape of the result, or of the cotangent of one.
        overlapping: whether windows have to overlap.
    """
    window, strides = params["window_dimensions"], params["window_strides"]
    dilations = (*params.get("base_dilation", ()), *params.get("window_dilation", ()))
    return (
        _is_known(params, array, result)
        and all(one == 1 for one in dilations)
        and 1 < math.prod(window) <= _MOST_ELEMENTS
        and (not overlapping or any(map(operator.gt, window, strides)))
    )


def _is_dense(params: Mapping[str, Any]) -> bool:
    """Checks if each feature of a result comes from all features of an image."""
    return params["feature_group_count"] == params["batch_group_count"] == 1


def _is_known(params: Mapping[str, Any], *shapes: Sequence[Any]) -> bool:
    """Checks if all sizes are known, and no array is empty."""
    edges = [edge for pair in params["padding"] for edge in pair]
    sizes = [size for shape in shapes for size in shape]
    return all(isinstance(size, int) for size in (*sizes, *edges)) and min(sizes) > 0


_MOST_ELEMENTS = 128
"""The elements of a window that a program reads one by one; more take long to compile."""
_RANKS = (3, 4, 5)
"""The numbers of axes of an image for which the library has kernels."""
