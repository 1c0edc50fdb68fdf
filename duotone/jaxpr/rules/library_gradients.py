"""Convolutions as the gradients of other convolutions for which a GPU's library has kernels.

XLA recognizes three kinds: a convolution of a dilated image with reversed filters is the
gradient of a strided convolution with respect to its image; one with a dilated cotangent in
place of filters is the gradient of its filters, for stride 1 too; all others are plain
convolutions.

:mod:`duotone.precision.optimize.convolutions` decides which convolutions have these forms.
"""

from __future__ import annotations

import math
from typing import Any

from jax import lax

from duotone import _jax
from duotone.jaxpr.reading.windows import is_of_filters
from duotone.jaxpr.rules.convolutions import bind_convolution


def transposed(eqn: _jax.Eqn, image: Any, filters: Any) -> Any:
    """Returns a convolution of a dilated image as a gradient of a strided convolution."""
    if is_of_filters(eqn.params):
        return _of_strided(eqn, image, filters)
    axes = eqn.params["dimension_numbers"].rhs_spec[2:]
    # XLA would remove a reversal of a reversal.
    reversed_filters = lax.optimization_barrier(lax.rev(filters, axes))
    return bind_convolution(eqn, image, lax.rev(reversed_filters, axes), {})


def _of_strided(eqn: _jax.Eqn, image: Any, cotangent: Any) -> Any:
    """Exchanges image and cotangent: the gradient of the reversed filters of a strided convolution.

    ::

        out[p] = sum over i of image[i] * cotangent[low + i * d - p]
               = reversed(sum over i of cotangent[p + i * d + low - last] * image[i])
    """
    params, shape = eqn.params, eqn.outvars[0].aval.shape
    left, right, made = params["dimension_numbers"]
    pads = []
    for mine, theirs, place, (low, _), apart in zip(
        left[2:], right[2:], made[2:], params["padding"], params["lhs_dilation"], strict=True
    ):
        last = shape[place] - 1
        read = last + (image.shape[mine] - 1) * apart + 1
        pads.append((last - low, read - cotangent.shape[theirs] - (last - low)))
    changed = {
        "dimension_numbers": lax.ConvDimensionNumbers(right, left, (made[1], made[0], *made[2:])),
        "padding": tuple(pads),
        "lhs_dilation": params["rhs_dilation"],
        "rhs_dilation": params["lhs_dilation"],
    }
    found = lax.rev(bind_convolution(eqn, cotangent, image, changed), made[2:])
    return _with_groups_in(found, made[1], made[0], params["batch_group_count"])


def _with_groups_in(array: Any, axis: int, others: int, groups: int) -> Any:
    """Moves the groups of features that come first in an axis to another one, before its own."""
    sizes, split = list(array.shape), list(array.shape)
    split[others : others + 1] = [groups, sizes[others] // groups]
    order = [place for place in range(len(split)) if place != others]
    order.insert(order.index(axis + (axis > others)), others)
    sizes[others] //= groups
    sizes[axis] *= groups
    return lax.reshape(lax.transpose(lax.reshape(array, split), order), sizes)


def dilated_gradient(eqn: _jax.Eqn, image: Any, cotangent: Any) -> Any:
    """Returns the gradient of dilated filters as one of plain filters.

    ::

        out[k] = sum over q of image[k * d + q] * cotangent[q]
               = sum over r < d, m of image[(k + m) * d + r] * cotangent[m * d + r]

    The positions ``r`` become features: the sum over images and features is one, in groups too.
    """
    params, shape = eqn.params, eqn.outvars[0].aval.shape
    left, right, made = params["dimension_numbers"]
    strides = params["window_strides"]
    pads, fills = [(0, 0, 0)] * image.ndim, [(0, 0, 0)] * image.ndim
    for mine, theirs, place, (low, _), d in zip(
        left[2:], right[2:], made[2:], params["padding"], strides, strict=True
    ):
        window = cotangent.shape[theirs]
        whole = -(-window // d) * d
        fills[theirs] = (0, whole - window, 0)
        read = (shape[place] - 1) * d + whole
        pads[mine] = (low, read - low - image.shape[mine], 0)
    changed = {"padding": ((0, 0),) * len(strides), "window_strides": (1,) * len(strides)}
    left_operand, right_operand = (
        _with_phases(lax.pad(array, lax.full((), 0, array.dtype), edges), spec, strides)
        for array, edges, spec in ((image, pads, left), (cotangent, fills, right))
    )
    return bind_convolution(eqn, left_operand, right_operand, changed)


def _with_phases(array: Any, spec: tuple[int, ...], apart: tuple[int, ...]) -> Any:
    """Returns an array whose features are those of positions that are so far apart."""
    steps, feature = dict(zip(spec[2:], apart, strict=True)), spec[1]
    split: list[int] = []
    places, phases = {}, []
    for axis, size in enumerate(array.shape):
        places[axis] = len(split)
        split.append(size // steps.get(axis, 1))
        if axis in steps:
            phases.append(len(split))
            split.append(steps[axis])
    order = [
        place
        for axis in range(array.ndim)
        for place in ([*phases, places[axis]] if axis == feature else [places[axis]])
    ]
    sizes = [split[places[axis]] for axis in range(array.ndim)]
    sizes[feature] *= math.prod(apart)
    return lax.reshape(lax.transpose(lax.reshape(array, split), order), sizes)
