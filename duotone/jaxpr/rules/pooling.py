"""Reductions of windows, and the gradient of a window's maximum, as elementwise operations.

XLA's CPU backend reduces one window at a time, and expands the gradient of a maximum into a
scatter of one element for each window. :mod:`duotone.precision.optimize.convolutions` decides
which reductions have the forms below.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE
from duotone.jaxpr.rules.phases import framed, interleaved, part_of

_REDUCTIONS: Mapping[str, tuple[Callable[[Any, Any], Any], float]] = {
    "reduce_window_max": (lax.max, -np.inf),
    "reduce_window_min": (lax.min, np.inf),
    "reduce_window_sum": (lax.add, 0.0),
}
"""By primitive: what it does to two elements, and the number that changes none."""


def pooled(eqn: _jax.Eqn, *operands: Any) -> Any:
    """Returns the reduction of windows, or the gradient of the maximum or minimum of windows.

    Args:
        eqn: a ``reduce_window_*`` or a ``select_and_scatter_add``.
        *operands: its operands, float32 or half.

    Returns:
        Sums are float32; maxima have the dtype of the operand.
    """
    if eqn.primitive.name == "select_and_scatter_add":
        return _gradient(eqn.params, *operands)
    reduce, neutral = _REDUCTIONS[eqn.primitive.name]
    (array,) = operands
    if reduce is lax.add:
        array = lax.convert_element_type(array, FULL_DTYPE)
    whole, total = framed(array, eqn.params["padding"], neutral), None
    for _, read in _elements(eqn.params, eqn.outvars[0].aval.shape):
        part = part_of(whole, read)
        total = part if total is None else reduce(total, part)
    return lax.optimization_barrier(total)


def _gradient(params: Mapping[str, Any], cotangent: Any, array: Any) -> Any:
    """Adds the cotangent of each window to the element that it selects.

    Elements of equal phase (their position modulo the stride) are the same elements of windows. So
    each phase is a sum of moved cotangents, each where its window selects that element.
    """
    window, strides, padding = (
        params[name] for name in ("window_dimensions", "window_strides", "padding")
    )
    sizes = [size + low + high for size, (low, high) in zip(array.shape, padding, strict=True)]
    counts = [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    before = [(size - 1) // stride for size, stride in zip(window, strides, strict=True)]
    frame = [
        (low, max(count - made, 0))
        for low, count, made in zip(before, counts, cotangent.shape, strict=True)
    ]
    selected = framed(_selected(params, array, cotangent.shape), frame, -1)
    spread = framed(lax.convert_element_type(cotangent, FULL_DTYPE), frame, 0.0)

    def phase(first: Sequence[int]) -> Any:
        total = lax.full(counts, 0, FULL_DTYPE)
        for element in itertools.product(*map(range, first, window, strides)):
            read = {
                axis: (start := low - k // stride, start + count, 1)
                for axis, (low, k, stride, count) in enumerate(
                    zip(before, element, strides, counts, strict=True)
                )
            }
            number = np.ravel_multi_index(element, window)
            hit = lax.eq(part_of(selected, read), np.int32(number))
            total = total + lax.select(hit, part_of(spread, read), lax.full_like(total, 0))
        return total

    phases = [phase(first) for first in itertools.product(*map(range, strides))]
    whole = interleaved(phases, dict(enumerate(strides)))
    ends = [(low, low + size, 1) for size, (low, _) in zip(array.shape, padding, strict=True)]
    return part_of(lax.optimization_barrier(whole), dict(enumerate(ends)))


def _selected(params: Mapping[str, Any], array: Any, shape: Sequence[int]) -> Any:
    """Returns the number of the element that each window selects: the first of equal ones.

    As in XLA, a later element replaces an earlier one unless ``select_prim`` holds for both, so it
    replaces NaN. Padding is never selected. XLA may select it where elements are not finite, and
    loses the cotangent.
    """
    whole = framed(array, params["padding"], 0.0)
    inside = framed(np.ones(array.shape, bool), params["padding"], 0)
    index, best = lax.full(shape, -1, np.int32), lax.full(shape, 0, array.dtype)
    for number, read in _elements(params, shape):
        part = part_of(whole, read)
        stays = lax.bitwise_and(params["select_prim"].bind(best, part), lax.ge(index, 0))
        taken = lax.bitwise_and(part_of(inside, read), lax.bitwise_not(stays))
        index = lax.select(taken, lax.full_like(index, number), index)
        best = lax.select(taken, part, best)
    return index


def _elements(
    params: Mapping[str, Any], shape: Sequence[int]
) -> Iterator[tuple[int, dict[int, tuple[int, int, int]]]]:
    """Yields each element of a window: its number, and where all windows have it."""
    strides = params["window_strides"]
    for number, element in enumerate(np.ndindex(*params["window_dimensions"])):
        yield (
            number,
            {
                axis: (k, k + (count - 1) * stride + 1, stride)
                for axis, (k, count, stride) in enumerate(zip(element, shape, strides, strict=True))
            },
        )
