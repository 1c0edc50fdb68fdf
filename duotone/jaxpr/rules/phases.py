"""Convolutions of an image with zeros between its elements, without the zeros (``phases``).

The gradient of a strided convolution with respect to its image, and a transposed convolution, are
convolutions of a dilated image. A CPU's library has no half kernel for them. Each output position
meets only those filter elements that fall on an element of the image, and positions of equal phase
(their number modulo the dilation) meet the same ones::

    out[q * d + r] = sum over u of image[q + offset + u] * filters[t + u * d]
                     t = (low - r) mod d,  offset = (r + t - low) / d

So the phases are d convolutions of the image as it is with parts of the filters. Their results are
interleaved. The products and sums are those of the program, without the products by zero.

:mod:`duotone.jaxpr.reading.windows` finds these convolutions.

References:
    Shi et al., "Is the deconvolution layer the same as a convolutional layer?", arXiv:1609.07009.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jax import lax


class _Phase(NamedTuple):
    """The positions of one phase along one axis.

    Attributes:
        filters: start, stop and step of the filter elements that they meet.
        image: start and stop of the image elements that they meet.
        padding: the numbers of zeros before and after these elements.
    """

    filters: tuple[int, int, int]
    image: tuple[int, int]
    padding: tuple[int, int]

    @property
    def empty(self) -> bool:
        """True if the positions meet nothing: they are zero."""
        return self.filters[0] >= self.filters[1] or self.image[0] >= self.image[1]


def _phases(size: int, window: int, count: int, low: int, apart: int) -> Iterator[_Phase]:
    """Yields the phases of an axis, each with ``count`` positions."""
    for phase in range(apart):
        first = (low - phase) % apart
        offset = (phase + first - low) // apart
        met = len(range(first, window, apart))
        end = offset + count - 1 + met
        start, stop = max(offset, 0), min(end, size)
        yield _Phase((first, window, apart), (start, stop), (start - offset, end - stop))


def in_phases(
    params: Mapping[str, Any],
    image: Any,
    filters: Any,
    shape: Sequence[int],
    convolve: Callable[[Any, Any, dict[str, Any]], Any],
) -> Any:
    """Returns a convolution of a dilated image, from convolutions of the image as it is.

    Args:
        params: parameters of ``conv_general_dilated``.
        image: the left operand, half.
        filters: the right operand, half.
        shape: the shape of the result.
        convolve: binds a convolution, given its operands and parameters.
    """
    numbers, apart = params["dimension_numbers"], params["lhs_dilation"]
    images, windows, places = (spec[2:] for spec in numbers)
    counts = [-(-shape[axis] // d) for axis, d in zip(places, apart, strict=True)]
    along = [
        list(_phases(image.shape[i], filters.shape[w], count, low, d))
        for i, w, count, (low, _), d in zip(
            images, windows, counts, params["padding"], apart, strict=True
        )
    ]
    sizes = list(shape)
    for axis, count in zip(places, counts, strict=True):
        sizes[axis] = count
    plain = {**params, "lhs_dilation": (1,) * len(apart)}

    def result(phases: Sequence[_Phase]) -> Any:
        if any(phase.empty for phase in phases):
            return lax.full(sizes, 0, params["preferred_element_type"] or image.dtype)
        met = part_of(image, {i: (*p.image, 1) for i, p in zip(images, phases, strict=True)})
        taps = part_of(filters, {w: p.filters for w, p in zip(windows, phases, strict=True)})
        return convolve(met, taps, {**plain, "padding": tuple(p.padding for p in phases)})

    parts = [result(phases) for phases in itertools.product(*along)]
    whole = interleaved(parts, dict(zip(places, apart, strict=True)))
    return lax.slice(whole, [0] * len(shape), shape)


def framed(
    array: Any,
    padding: Sequence[tuple[int, int]],
    value: float,
    apart: Mapping[int, int] = MappingProxyType({}),
) -> Any:
    """Returns an array with a frame of a value, which XLA does not compute again for each part.

    Args:
        array: any array.
        padding: for each axis, the numbers of elements before and after.
        value: the value of these elements.
        apart: the distance of neighbors along each axis where it is more than 1.
    """
    pads = [(low, high, apart.get(axis, 1) - 1) for axis, (low, high) in enumerate(padding)]
    return lax.optimization_barrier(lax.pad(array, lax.full((), value, array.dtype), pads))


def part_of(array: Any, read: Mapping[int, tuple[int, int, int]]) -> Any:
    """Returns a slice of an array: start, stop and step by axis."""
    slices = [read.get(axis, (0, size, 1)) for axis, size in enumerate(array.shape)]
    return lax.slice(array, *zip(*slices, strict=True))


def interleaved(parts: Sequence[Any], apart: Mapping[int, int]) -> Any:
    """Returns the array whose phases are given.

    Args:
        parts: an array of one shape for each phase; the phase of the last axis changes first.
        apart: the number of phases of each axis that has some.
    """
    for axis, d in reversed(list(apart.items())):
        parts = [_in_turn(parts[i : i + d], axis) for i in range(0, len(parts), d)]
    (whole,) = parts
    return whole


def _in_turn(parts: Sequence[Any], axis: int) -> Any:
    """Returns arrays of one shape with their elements in turn along an axis."""
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] *= len(parts)
    joined = lax.concatenate([lax.expand_dims(part, (axis + 1,)) for part in parts], axis + 1)
    return lax.reshape(joined, shape)
