"""Convolutions whose windows do not overlap, bound as dots (optimization ``window_dots``).

XLA's CPU backend widens all operands of a bfloat16 convolution, but has a bfloat16 kernel for a dot
in the form ``rows``. A reshape of the image separates output positions from window positions. It
copies nothing if features are the last dimension. A slice drops elements that no window reads.

:mod:`duotone.jaxpr.reading.windows` finds these convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import lax

from duotone.jaxpr.reading.windows import Axis, Convolution, Tile, tiling
from duotone.jaxpr.rules.dots import Dims

_PARTS = {
    Axis.POSITIONS: ("position",),
    Axis.WINDOW: ("window",),
    Axis.POSITIONS_WINDOW: ("position", "window"),
    Axis.WINDOW_POSITIONS: ("window", "position"),
}
"""The axes that each axis of an image is reshaped to."""


def window_dot(
    params: Any,
    image: Any,
    filters: Any,
    shape: Sequence[int],
    dot: Callable[[Any, Any, Dims], Any],
) -> Any:
    """Returns a convolution whose windows do not overlap, as a dot.

    Args:
        params: parameters of ``conv_general_dilated``.
        image: the left operand, half.
        filters: the right operand, half.
        shape: the shape of the result.
        dot: binds a dot, given reshaped operands and dimension numbers.
    """
    tiles = tiling(Convolution(params, image.shape, filters.shape, shape))
    assert tiles is not None, "only convolutions whose windows tile have this optimization"
    numbers = params["dimension_numbers"]
    images, within, *axes = numbers.lhs_spec
    image = _sliced(image, dict(zip(axes, tiles, strict=True)))
    zeros = dict(zip(numbers.out_spec[2:], [tile.zeros for tile in tiles], strict=True))
    padding = [zeros.get(axis, (0, 0, 0)) for axis in range(len(shape))]
    inner = [
        (size - low - high - 1) // (between + 1) + 1
        for size, (low, high, between) in zip(shape, padding, strict=True)
    ]
    parts = {images: [("image", 0)], within: [("inside", 0)]}
    for i, (axis, tile) in enumerate(zip(axes, tiles, strict=True)):
        parts[axis] = [(part, i) for part in _PARTS[tile.axis]]
    of_filters = _labels(numbers.rhs_spec, "feature", "inside", "window")
    of_result = _labels(numbers.out_spec, "image", "feature", "position")
    sizes = dict(zip((*of_filters, *of_result), (*filters.shape, *inner), strict=True))
    left = [label for axis in range(image.ndim) for label in parts[axis]]
    right = [label for label in of_filters if label in left or label[0] == "feature"]
    summed = [label for label in left if label in right]
    contracted = (tuple(map(left.index, summed)), tuple(map(right.index, summed)))
    arrays = ((image, left), (filters, right))
    lhs, rhs = (lax.reshape(x, [sizes[label] for label in labels]) for x, labels in arrays)
    product = dot(lhs, rhs, (contracted, ((), ())))
    made = [label for label in (*left, *right) if label not in summed]
    order = [made.index(label) for label in of_result if label in made]
    result = lax.reshape(lax.transpose(product, order), inner)
    if tuple(inner) == tuple(shape):
        return result
    return lax.pad(result, lax.full((), 0, result.dtype), padding)


def _sliced(image: Any, tiles: Mapping[int, Tile]) -> Any:
    """Returns the elements of an image that the windows read."""
    whole = [(0, size, 1) for size in image.shape]
    read = [tiles[axis].read if axis in tiles else all_ for axis, all_ in enumerate(whole)]
    return image if read == whole else lax.slice(image, *zip(*read, strict=True))


def _labels(spec: Sequence[int], first: str, second: str, others: str) -> list[tuple[str, int]]:
    """Returns a label for each axis of an array of a convolution, in the order of the array."""
    named = {spec[0]: (first, 0), spec[1]: (second, 0)}
    named |= {axis: (others, i) for i, axis in enumerate(spec[2:])}
    return [named[axis] for axis in range(len(spec))]
