"""Scatters that add at most one update to each element, bound as a select.

:mod:`duotone.precision.optimize.scatters` decides which, by the attributes from
:func:`scatter_attributes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.lax import GatherScatterMode

from duotone import _jax
from duotone.graph.graph import Attribute
from duotone.jaxpr.reading.indices import most_updates


def scatter_attributes(eqn: _jax.Eqn, indices: np.ndarray | None) -> Mapping[str, Attribute]:
    """Returns the attributes of a ``scatter-add`` that describe its updates.

    The ``indices`` are given if they are known before any call.
    """
    found: dict[str, Attribute] = {}
    count = None if indices is None else most_updates(eqn, indices)
    if count is not None:
        found["updates"] = float(count)
    sizes = [size for var in eqn.invars for size in var.aval.shape]
    if all(isinstance(size, int) for size in sizes) and _adds_once(eqn):
        found["once"] = 1.0
    return found


def _adds_once(eqn: _jax.Eqn) -> bool:
    """Returns True if no element can get two updates, and each update covers its whole window."""
    operand, indices, updates = (var.aval for var in eqn.invars)
    numbers = eqn.params["dimension_numbers"]
    scattered = numbers.scatter_dims_to_operand_dims
    batched = numbers.scatter_indices_batching_dims
    once = all(size == 1 for axis, size in enumerate(indices.shape[:-1]) if axis not in batched)
    whole = sorted(scattered) == sorted(numbers.inserted_window_dims)
    # If the index dtype cannot count all positions, XLA overflows and loses other updates too.
    last = np.iinfo(indices.dtype).max
    few = all(0 < operand.shape[axis] <= last for axis in scattered)
    sound = bool(scattered) and once and whole and few
    return sound and _window_is_whole(operand, updates, numbers)


def one_hot(eqn: _jax.Eqn, operand: Any, indices: Any, updates: Any) -> Any:
    """Returns ``select(iota == index, operand + update, operand)``."""
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    scattered = numbers.scatter_dims_to_operand_dims
    pairs = (numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)
    batched = dict(zip(*pairs, strict=True))
    window = [a for a in range(operand.ndim) if a not in scattered and a not in batched]
    update = _aligned(updates, _update_axes(numbers, updates, window, batched), operand.ndim)
    hit: Any = None
    for position, axis in enumerate(scattered):
        index = _aligned(indices[..., position], batched, operand.ndim)
        if mode == GatherScatterMode.CLIP:
            bounds = np.array([0, operand.shape[axis] - 1], index.dtype)
            index = lax.clamp(bounds[0], index, bounds[1])
        iota = lax.broadcasted_iota(index.dtype, operand.shape, axis)
        same = lax.eq(iota, lax.broadcast_in_dim(index, operand.shape, range(operand.ndim)))
        hit = same if hit is None else lax.bitwise_and(hit, same)
    added = lax.add(operand, lax.broadcast_in_dim(update, operand.shape, range(operand.ndim)))
    return lax.select(hit, added, operand)


def _window_is_whole(operand: Any, updates: Any, numbers: Any) -> bool:
    """Returns True if each update covers every axis of the operand that is not indexed."""
    outside = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [size for axis, size in enumerate(operand.shape) if axis not in outside]
    return window == [updates.shape[axis] for axis in numbers.update_window_dims]


def _update_axes(
    numbers: Any, updates: Any, window: Sequence[int], batched: dict[int, int]
) -> dict[int, int]:
    """Returns, for each axis of the operand, the axis of the updates that runs along it."""
    others = [a for a in range(updates.ndim) if a not in numbers.update_window_dims]
    along = {axis: others[row] for axis, row in batched.items()}
    return along | dict(zip(window, numbers.update_window_dims, strict=True))


def _aligned(array: Any, axes: dict[int, int], ndim: int) -> Any:
    """Gives ``array`` ``ndim`` axes; ``axes`` maps new axes to its own, and others have size 1."""
    order = [axes[axis] for axis in sorted(axes)]
    rest = [axis for axis in range(array.ndim) if axis not in order]
    moved = lax.squeeze(lax.transpose(array, (*rest, *order)), range(len(rest)))
    shape = [1] * ndim
    for position, axis in enumerate(sorted(axes)):
        shape[axis] = moved.shape[position]
    return lax.reshape(moved, shape)
