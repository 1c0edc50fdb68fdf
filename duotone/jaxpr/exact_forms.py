"""Operations bound in another form that gives the same bits and moves fewer bytes.

A painting decides precision; what stays full is bound as it was, save for the few forms here. They
pay only once everything around them is half: what is left in float32 is then most of the traffic.

A ``scatter-add`` of one number into each row of a constant is the derivative of picking one logit
of each row (every cross-entropy with whole-number labels). Compiled, it is a kernel of its own that
writes the constant out, reads it and writes it again, in float32; as a select it is part of
the kernel that reads it.

Where the indices are known before any call and no place gets more than one update, as in the
derivative of ``x[rows, columns]`` with constant ``rows`` and ``columns``, it is a gather from the
updates: of each place it is known which update it gets, if any.

Who calls this: the form of a leaf in :mod:`duotone.jaxpr.half_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.lax import GatherScatterMode

from duotone import _jax
from duotone.graph.graph import Graph, Node
from duotone.jaxpr.indices import positions, targets
from duotone.jaxpr.program import Step


def may_have_exact_form(graph: Graph, node: Node) -> bool:
    """Whether :func:`exact_form` may apply to the equation of a node."""
    return node.op == "scatter-add" and graph.values[node.inputs[0]].constant is not None


def exact_form(graph: Graph, step: Step, operands: Sequence[Any]) -> list[Any] | None:
    """The results of a step in another form, or ``None`` where there is none.

    Args:
        graph: the program.
        step: an equation with one node.
        operands: in the precision in which it computes.
    """
    if not may_have_exact_form(graph, graph.nodes[step.nodes[0]]):
        return None
    found = _gathered(step, operands)
    return _one_hot(step.eqn, operands) if found is None else found


def _gathered(step: Step, operands: Sequence[Any]) -> list[Any] | None:
    """``select(known to get one, operand + updates[which], operand)``.

    Returns:
        ``None`` if indices are unknown, or a place gets more than one update.
    """
    eqn = step.eqn
    if step.indices is None or not all(_is_plain(array) for array in operands):
        return None
    found = targets(eqn, step.indices)
    operand, _, updates = operands
    if found is None or np.unique(found[found >= 0]).size < np.sum(found >= 0) or not found.size:
        return None
    numbers = eqn.params["dimension_numbers"]
    scattered = sorted(numbers.scatter_dims_to_operand_dims)
    which = positions([operand.shape[axis] for axis in scattered], found)
    rows = [axis for axis in range(updates.ndim) if axis not in numbers.update_window_dims]
    flat = lax.transpose(updates, (*numbers.update_window_dims, *rows))
    flat = lax.reshape(flat, (*flat.shape[: flat.ndim - len(rows)], found.size))
    window = tuple(range(flat.ndim - 1))
    taken = lax.gather(
        flat,
        np.maximum(which, 0)[..., None],
        lax.GatherDimensionNumbers(window, (len(window),), (len(window),)),
        (*flat.shape[:-1], 1),
        mode=GatherScatterMode.PROMISE_IN_BOUNDS,
    )
    axes = [axis for axis in range(operand.ndim) if axis not in scattered] + scattered
    taken = lax.transpose(taken, np.argsort(axes))
    hit = lax.broadcast_in_dim(which >= 0, operand.shape, scattered)
    return [lax.select(hit, lax.add(operand, taken), operand)]


def _one_hot(eqn: _jax.Eqn, operands: Sequence[Any]) -> list[Any] | None:
    """``select(iota == index, operand + update, operand)``.

    Returns:
        ``None`` if an element of the operand may get more than one update, if a window is smaller
        than what it lies in, or where a type leaves open what would be the same.
    """
    if not all(_is_plain(array) for array in operands):
        return None
    operand, indices, updates = operands
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    scattered = numbers.scatter_dims_to_operand_dims
    batched = dict(
        zip(
            numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims,
            strict=True,
        )
    )
    rows = indices.shape[:-1]
    once = all(size == 1 for axis, size in enumerate(rows) if axis not in batched.values())
    whole = sorted(scattered) == sorted(numbers.inserted_window_dims)
    if not (scattered and once and whole and _window_is_whole(operand, updates, numbers)):
        return None
    # Places that indices have no numbers for: XLA then loses others as well, by overflow.
    last = np.iinfo(indices.dtype).max
    if not all(0 < operand.shape[axis] <= last for axis in scattered):
        return None
    window = [a for a in range(operand.ndim) if a not in scattered and a not in batched]
    update = _aligned(updates, _update_axes(numbers, updates, window, batched), operand.ndim)
    hit: Any = None
    for position, axis in enumerate(scattered):
        index = _aligned(indices[..., position], batched, operand.ndim)
        if mode == GatherScatterMode.CLIP:
            bounds = np.array([0, operand.shape[axis] - 1], index.dtype)
            index = lax.clamp(bounds[0], index, bounds[1])
        places = lax.broadcasted_iota(index.dtype, operand.shape, axis)
        same = lax.eq(places, lax.broadcast_in_dim(index, operand.shape, range(operand.ndim)))
        hit = same if hit is None else lax.bitwise_and(hit, same)
    added = lax.add(operand, lax.broadcast_in_dim(update, operand.shape, range(operand.ndim)))
    return [lax.select(hit, added, operand)]


def _is_plain(array: Any) -> bool:
    """Whether it has sizes that are known, and no axis of it is sharded by its type.

    Of a sharded one, new arrays would have to name the mesh.
    """
    aval = jax.typeof(array)
    return all(isinstance(size, int) for size in aval.shape) and all(
        axis is None for axis in aval.sharding.spec
    )


def _window_is_whole(operand: Any, updates: Any, numbers: Any) -> bool:
    """Whether each update covers every axis of the operand that is not indexed."""
    outside = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [size for axis, size in enumerate(operand.shape) if axis not in outside]
    return window == [updates.shape[axis] for axis in numbers.update_window_dims]


def _update_axes(
    numbers: Any, updates: Any, window: Sequence[int], batched: dict[int, int]
) -> dict[int, int]:
    """For each axis of the operand, the axis of the updates that runs along it."""
    others = [a for a in range(updates.ndim) if a not in numbers.update_window_dims]
    along = {axis: others[row] for axis, row in batched.items()}
    return along | dict(zip(window, numbers.update_window_dims, strict=True))


def _aligned(array: Any, axes: dict[int, int], ndim: int) -> Any:
    """``array`` with ``ndim`` axes: ``axes`` says which runs along which; the rest has size 1."""
    order = [axes[axis] for axis in sorted(axes)]
    rest = [axis for axis in range(array.ndim) if axis not in order]
    moved = lax.squeeze(lax.transpose(array, (*rest, *order)), range(len(rest)))
    shape = [1] * ndim
    for position, axis in enumerate(sorted(axes)):
        shape[axis] = moved.shape[position]
    return lax.reshape(moved, shape)
