"""Convolutions that XLA's CPU backend computes one product at a time, in faster forms.

:mod:`duotone.precision.optimize.convolutions` decides which convolutions have them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE
from duotone.jaxpr.rules.phases import framed, part_of


def padded_image(eqn: _jax.Eqn, image: Any, filters: Any) -> Any:
    """Returns a convolution of the image with its padding, and with the zeros of its dilation."""
    axes = len(eqn.params["padding"])
    changed = {"padding": ((0, 0),) * axes, "lhs_dilation": (1,) * axes}
    return bind_convolution(eqn, _padded(eqn.params, image), filters, changed)


def bind_convolution(eqn: _jax.Eqn, image: Any, filters: Any, changed: Mapping[str, Any]) -> Any:
    """Binds a convolution with other operands, and with the ``changed`` ones of its parameters.

    Operands that duotone made half have half results, as they have in painted convolutions.
    """
    params = {**eqn.params, **changed}
    painted = image.dtype != eqn.invars[0].aval.dtype
    if painted and params["preferred_element_type"] is not None:
        params["preferred_element_type"] = image.dtype
    return _jax.bind(eqn, [image, filters], params)[0]


def channelwise(eqn: _jax.Eqn, image: Any, filters: Any) -> Any:
    """Returns a convolution with one feature per group, or the gradient of its filters.

    Returns:
        The float32 sums.
    """
    form = _of_filters if eqn.params["batch_group_count"] > 1 else _of_image
    return form(eqn.params, image, filters, eqn.outvars[0].aval.shape)


def _of_image(params: Any, image: Any, filters: Any, shape: Sequence[int]) -> Any:
    """Adds the products of the shifted image and each element of the window.

    ::

        out[n, q, c] = sum over k of image[n, q * stride + k * dilation, c] * filters[k, c]
    """
    numbers, strides = params["dimension_numbers"], params["window_strides"]
    features, channel = shape[numbers.out_spec[1]], numbers.lhs_spec[1]
    counts = [shape[axis] for axis in numbers.out_spec[2:]]
    window = [filters.shape[axis] for axis in numbers.rhs_spec[2:]]
    by_element = lax.transpose(filters, (*numbers.rhs_spec[2:], *numbers.rhs_spec[1::-1]))
    weights = lax.reshape(by_element, (math.prod(window), features))
    padded = _padded(params, jnp.repeat(image, features // image.shape[channel], channel))
    total: Any = None
    for number, element in enumerate(itertools.product(*map(range, window))):
        read = {
            axis: (first := k * dilation, first + (count - 1) * stride + 1, stride)
            for axis, k, dilation, count, stride in zip(
                numbers.lhs_spec[2:], element, params["rhs_dilation"], counts, strides, strict=True
            )
        }
        part = part_of(padded, read)
        weight = lax.broadcast_in_dim(weights[number], part.shape, (channel,))
        product = _product(part, weight)
        total = product if total is None else lax.add(total, product)
    return _in_order(lax.optimization_barrier(total), numbers.lhs_spec, numbers.out_spec)


def _of_filters(params: Any, image: Any, cotangent: Any, shape: Sequence[int]) -> Any:
    """Sums the products of the shifted image and the cotangent, one filter element after another.

    ::

        out[k, c] = sum over n, q of image[n, k * stride + q * dilation, c] * cotangent[n, q, c]
    """
    numbers = params["dimension_numbers"]
    channel, _, *axes = numbers.lhs_spec
    features, window = shape[numbers.out_spec[1]], [shape[axis] for axis in numbers.out_spec[2:]]
    padded = _padded(params, jnp.repeat(image, features // image.shape[channel], channel))
    moved = _in_order(cotangent, numbers.rhs_spec, numbers.lhs_spec)
    dilation = dict(zip(axes, params["rhs_dilation"], strict=True))
    sizes = [(size - 1) * dilation.get(axis, 1) + 1 for axis, size in enumerate(moved.shape)]
    starts = np.array(list(np.ndindex(*window))) * params["window_strides"]

    def element(start: Any) -> Any:
        moved_by = dict(zip(axes, start, strict=True))
        part = lax.dynamic_slice(
            padded, [moved_by.get(axis, 0) for axis in range(moved.ndim)], sizes
        )
        part = part_of(part, {axis: (0, sizes[axis], step) for axis, step in dilation.items()})
        summed = [axis for axis in range(part.ndim) if axis != channel]
        return jnp.sum(_product(part, moved), summed)

    sums = lax.reshape(lax.map(element, starts.astype(np.int32)), (*window, features, 1))
    count = len(window)
    return _in_order(sums, (count + 1, count, *range(count)), numbers.out_spec)


def _padded(params: Any, image: Any) -> Any:
    """Returns an image with padding and the zeros of its dilation, which XLA leaves in place."""
    axes = params["dimension_numbers"].lhs_spec[2:]
    padding = dict(zip(axes, params["padding"], strict=True))
    pairs = [padding.get(axis, (0, 0)) for axis in range(image.ndim)]
    return framed(image, pairs, 0, dict(zip(axes, params["lhs_dilation"], strict=True)))


def _product(left: Any, right: Any) -> Any:
    return lax.mul(*(lax.convert_element_type(x, FULL_DTYPE) for x in (left, right)))


def _in_order(array: Any, axes: Sequence[int], wanted: Sequence[int]) -> Any:
    """Returns an array in which each of ``axes`` is at the same position of ``wanted``."""
    place = dict(zip(wanted, axes, strict=True))
    return lax.transpose(array, [place[axis] for axis in range(array.ndim)])
