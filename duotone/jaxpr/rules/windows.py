"""Convolutions whose windows tile the image, bound as dots (optimization ``window_dots``).

XLA's CPU backend calculates convolutions in bfloat16 by widening all operands; a dot in the form
``rows`` has a kernel for it. Reshaping the image puts places and windows apart, nothing is copied
where features come last.

Which convolutions these are: :mod:`duotone.jaxpr.reading.windows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from duotone.jaxpr.reading.windows import Axis, tiling
from duotone.jaxpr.rules.dots import Dims

_PARTS = {
    Axis.PLACES: ("position",),
    Axis.WINDOW: ("window",),
    Axis.PLACES_WINDOW: ("position", "window"),
    Axis.WINDOW_PLACES: ("window", "position"),
}
"""The axes that each axis of an image is reshaped to."""


def window_dot(
    params: Any,
    image: Any,
    filters: Any,
    shape: Sequence[int],
    dot: Callable[[Any, Any, Dims], Any],
) -> Any:
    """A convolution whose windows tile the image, as a dot.

    Args:
        params: of ``conv_general_dilated``.
        image: the left operand, half.
        filters: the right operand, half.
        shape: of the result.
        dot: binds a dot of reshaped operands, by dimension numbers.
    """
    kinds = tiling(params, image.shape, filters.shape, shape)
    assert kinds is not None, "the optimization is of no other convolution"
    images, within, *axes = params["dimension_numbers"].lhs_spec
    parts = {images: [("image", 0)], within: [("inside", 0)]}
    for i, (axis, kind) in enumerate(zip(axes, kinds, strict=True)):
        parts[axis] = [(part, i) for part in _PARTS[kind]]
    of_filters = _labels(params["dimension_numbers"].rhs_spec, "feature", "inside", "window")
    of_result = _labels(params["dimension_numbers"].out_spec, "image", "feature", "position")
    sizes = dict(zip((*of_filters, *of_result), (*filters.shape, *shape), strict=True))
    left = [label for axis in range(image.ndim) for label in parts[axis]]
    right = [label for label in of_filters if label in left or label[0] == "feature"]
    summed = [label for label in left if label in right]
    numbers = (tuple(map(left.index, summed)), tuple(map(right.index, summed))), ((), ())
    arrays = ((image, left), (filters, right))
    lhs, rhs = (lax.reshape(x, [sizes[label] for label in labels]) for x, labels in arrays)
    product = dot(lhs, rhs, numbers)
    made = [label for label in (*left, *right) if label not in summed]
    order = [made.index(label) for label in of_result if label in made]
    return lax.reshape(lax.transpose(product, order), shape)


def _labels(spec: Sequence[int], first: str, second: str, others: str) -> list[tuple[str, int]]:
    """A label for each axis of an array of a convolution, in the order of the array."""
    named = {spec[0]: (first, 0), spec[1]: (second, 0)}
    named |= {axis: (others, i) for i, axis in enumerate(spec[2:])}
    return [named[axis] for axis in range(len(spec))]
