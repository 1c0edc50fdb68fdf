"""The same for what is more than a NumPy function: gathers, scatters, windows, factorisations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.linalg
from jax.lax import GatherScatterMode

Rule = Callable[..., Any]


def _along(axis: int, size: int, ndim: int) -> np.ndarray:
    """0, 1, ... along one axis of ``ndim``."""
    return np.arange(size).reshape([size if a == axis else 1 for a in range(ndim)])


def _places(
    shape: Sequence[int],
    indices: np.ndarray,
    sliced: Sequence[int],
    windows: Sequence[int],
    numbers: Mapping[str, Sequence[int]],
    mode: Any,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Where each element of a gather's result, or of a scatter's updates, lies in the operand.

    Args:
        shape: of the operand.
        indices: the last axis is that of the numbers of one place.
        sliced: shape of the result, or of the updates.
        windows: axes of that along which a window runs.
        numbers: ``mapped`` axes of the operand that indices are for, ``dropped`` axes of which the
            window has one, ``batched`` ones and the axes of the indices that these go with.
        mode: what becomes of places outside.

    Returns:
        An index for each axis of the operand, and whether it lies inside.
    """
    rows = [axis for axis in range(len(sliced)) if axis not in windows]
    ndim = len(sliced)
    dropped, batched = numbers["dropped"], numbers["batched"]
    running = [axis for axis in range(len(shape)) if axis not in (*dropped, *batched)]
    window = {axis: sliced[along] for axis, along in zip(running, windows, strict=True)}
    inside = np.ones([1] * ndim, bool)
    places: list[np.ndarray] = [np.zeros([1] * ndim, int) for _ in shape]
    for column, axis in enumerate(numbers["mapped"]):
        spread = [1] * ndim
        for row, size in zip(rows, indices.shape[:-1], strict=True):
            spread[row] = size
        start = indices[..., column].astype(np.int64).reshape(spread)
        last = shape[axis] - window.get(axis, 1)
        if mode == GatherScatterMode.CLIP:
            start = np.clip(start, 0, last)
        inside = inside & (start >= 0) & (start <= last)
        places[axis] = np.clip(start, 0, last)
    for axis, of_indices in zip(batched, numbers["of_indices"], strict=True):
        row = rows[of_indices]
        places[axis] = places[axis] + _along(row, sliced[row], ndim)
    for axis, along in zip(running, windows, strict=True):
        places[axis] = places[axis] + _along(along, sliced[along], ndim)
    return list(np.broadcast_arrays(*places)), np.broadcast_to(inside, sliced)


def gather(params: Mapping[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """``gather``."""
    numbers = params["dimension_numbers"]
    sizes = list(params["slice_sizes"])
    dropped, batched = numbers.collapsed_slice_dims, numbers.operand_batching_dims
    kept = iter([s for a, s in enumerate(sizes) if a not in (*dropped, *batched)])
    rows = iter(indices.shape[:-1])
    ndim = len(numbers.offset_dims) + indices.ndim - 1
    result = [next(kept) if axis in numbers.offset_dims else next(rows) for axis in range(ndim)]
    named = {
        "mapped": numbers.start_index_map,
        "dropped": dropped,
        "batched": batched,
        "of_indices": numbers.start_indices_batching_dims,
    }
    places, inside = _places(x.shape, indices, result, numbers.offset_dims, named, params["mode"])
    found = x[tuple(np.broadcast_to(p, result) for p in places)]
    if params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return found
    fill = params["fill_value"]
    if fill is None:
        floating = not np.issubdtype(x.dtype, np.integer) and x.dtype != bool
        fill = np.nan if floating else np.iinfo(x.dtype).min if x.dtype != bool else True
    return np.where(inside, found, np.asarray(fill, x.dtype))


def _scatter(combine: Callable[[np.ndarray, Any, np.ndarray], None]) -> Rule:
    def rule(params: Mapping[str, Any], x: Any, indices: Any, updates: Any) -> np.ndarray:
        numbers = params["dimension_numbers"]
        named = {
            "mapped": numbers.scatter_dims_to_operand_dims,
            "dropped": numbers.inserted_window_dims,
            "batched": numbers.operand_batching_dims,
            "of_indices": numbers.scatter_indices_batching_dims,
        }
        windows = numbers.update_window_dims
        places, inside = _places(x.shape, indices, updates.shape, windows, named, params["mode"])
        result = np.array(x)
        where = tuple(np.broadcast_to(p, updates.shape)[inside] for p in places)
        combine(result, where, updates[inside])
        return result

    return rule


def _set(result: np.ndarray, where: Any, updates: np.ndarray) -> None:
    result[where] = updates


def _windows(params: Mapping[str, Any], x: np.ndarray, outside: float) -> np.ndarray:
    """Windows of a ``reduce_window``: its axes, then those of a window."""
    width = [(max(low, 0), max(high, 0)) for low, high in params["padding"]]
    assert all(d == 1 for d in (*params["base_dilation"], *params["window_dilation"]))
    padded = np.pad(x, width, constant_values=outside)
    view = np.lib.stride_tricks.sliding_window_view(padded, params["window_dimensions"])
    return view[tuple(slice(None, None, step) for step in params["window_strides"])]


def _reduce_window(function: Any, outside: float) -> Rule:
    def rule(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
        return function(_windows(params, x, outside), axis=tuple(range(x.ndim, 2 * x.ndim)))

    return rule


def _dilated(x: np.ndarray, axis: int, inner: int) -> np.ndarray:
    shape = list(x.shape)
    shape[axis] = max((shape[axis] - 1) * inner + 1, 0)
    spread = np.zeros(shape, x.dtype)
    spread[(slice(None),) * axis + (slice(None, None, inner),)] = x
    return spread


def convolution(params: Mapping[str, Any], lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """``conv_general_dilated``."""
    numbers = params["dimension_numbers"]
    x, w = lhs.transpose(numbers.lhs_spec), rhs.transpose(numbers.rhs_spec)
    for axis, (low, high) in enumerate(params["padding"], 2):
        x = _dilated(x, axis, params["lhs_dilation"][axis - 2])
        w = _dilated(w, axis, params["rhs_dilation"][axis - 2])
        width = [(0, 0)] * x.ndim
        width[axis] = (max(low, 0), max(high, 0))
        cut = slice(max(-low, 0), x.shape[axis] - max(-high, 0))
        x = np.pad(x[(slice(None),) * axis + (cut,)], width)
    axes = tuple(range(2, x.ndim))
    view = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axes)
    steps = [slice(None, None, step) for step in params["window_strides"]]
    view = view[(slice(None), slice(None), *steps)]
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    parts = []
    for group in range(max(groups, batches)):
        count = w.shape[0] // max(groups, batches)
        weights = w[group * count : (group + 1) * count]
        if groups > 1:
            inputs = view[:, group * w.shape[1] : (group + 1) * w.shape[1]]
        else:
            size = view.shape[0] // batches
            inputs = view[group * size : (group + 1) * size]
        inner = list(range(x.ndim, 2 * x.ndim - 2))
        found = np.tensordot(inputs, weights, ([1, *inner], [1, *range(2, w.ndim)]))
        parts.append(np.moveaxis(found, -1, 1))
    return np.concatenate(parts, 1).transpose(np.argsort(numbers.out_spec))


def _batched(function: Callable[..., Any], *operands: np.ndarray) -> list[np.ndarray]:
    """A function of matrices over all leading axes; NaN where it finds no answer."""
    leading = operands[0].shape[:-2]
    flat = [x.reshape([-1, *x.shape[-2:]]) for x in operands]
    rows = [function(*matrices) for matrices in zip(*flat, strict=True)]
    columns = zip(*rows, strict=True)
    return [np.stack(column).reshape([*leading, *column[0].shape]) for column in columns]


def cholesky(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """``cholesky``; NaN for a matrix that has none."""

    def one(matrix: np.ndarray) -> tuple[np.ndarray]:
        try:
            return (np.linalg.cholesky(matrix),)
        except np.linalg.LinAlgError:
            return (np.full_like(matrix, np.nan),)

    return _batched(one, x)[0]


def triangular_solve(params: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``triangular_solve``."""
    lower, transposed = params["lower"], params["transpose_a"]

    def one(matrix: np.ndarray, right: np.ndarray) -> tuple[np.ndarray]:
        options: dict[str, Any] = {"unit_diagonal": params["unit_diagonal"], "check_finite": False}
        try:
            if params["left_side"]:
                found = scipy.linalg.solve_triangular(
                    matrix, right, lower=lower, trans=int(transposed), **options
                )
            else:
                found = scipy.linalg.solve_triangular(
                    matrix, right.T, lower=lower, trans=int(not transposed), **options
                ).T
        except np.linalg.LinAlgError:
            found = np.full_like(right, np.nan)
        return (found,)

    return _batched(one, a, b)[0]


def lu(params: Mapping[str, Any], x: np.ndarray) -> list[np.ndarray]:
    """``lu``: factors, pivots, permutation."""

    def one(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not np.isfinite(matrix).all():
            matrix = np.full_like(matrix, np.nan)
        (getrf,) = scipy.linalg.lapack.get_lapack_funcs(("getrf",), (matrix,))
        factors, pivots, _ = getrf(matrix)
        order = np.arange(matrix.shape[0])
        for row, other in enumerate(pivots):
            order[[row, other]] = order[[other, row]]
        return factors, pivots, order

    return _batched(one, x)


def top_k(params: Mapping[str, Any], x: np.ndarray) -> list[np.ndarray]:
    """``top_k`` along the last axis."""
    assert params.get("axis", x.ndim - 1) in (-1, x.ndim - 1)
    order = np.argsort(-x, -1, kind="stable")[..., : params["k"]]
    return [np.take_along_axis(x, order, -1), order]


def sort(params: Mapping[str, Any], *operands: np.ndarray) -> list[np.ndarray]:
    """``sort`` by the first operands."""
    axis, keys = params["dimension"], operands[: params["num_keys"]]
    order = np.lexsort(keys[::-1], axis)
    return [np.take_along_axis(x, order, axis) for x in operands]


RULES: dict[str, Rule] = {
    "gather": gather,
    "scatter": _scatter(_set),
    "scatter-add": _scatter(np.add.at),
    "scatter-sub": _scatter(np.subtract.at),
    "scatter-mul": _scatter(np.multiply.at),
    "scatter-max": _scatter(np.maximum.at),
    "scatter-min": _scatter(np.minimum.at),
    "reduce_window_max": _reduce_window(np.max, -np.inf),
    "reduce_window_min": _reduce_window(np.min, np.inf),
    "reduce_window_sum": _reduce_window(np.sum, 0.0),
    "conv_general_dilated": convolution,
    "cholesky": cholesky,
    "triangular_solve": triangular_solve,
    "lu": lu,
    "top_k": top_k,
    "sort": sort,
    "tile": lambda params, x: np.tile(x, params["reps"]),
}
"""By primitive."""
