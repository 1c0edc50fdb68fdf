"""Indices that are known before any call, and how many updates of a scatter go to one element.

``x[rows, columns]`` with constant index arrays is a gather. Its derivative is a ``scatter-add``,
which a painter must treat as a sum of unknown length. If the indices follow from constants by
integer arithmetic, this module computes them and counts the updates of each element. A scatter with
at most one update for each element is not a sum.

Unknown is ``None``, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.lax import GatherScatterMode

from duotone import _jax

_LARGEST = 2**20
"""The most elements of an index array that are computed."""
_DEEPEST = 100
"""The longest chain of operations that is followed."""


class Integers:
    """The integers of a program, computed on demand."""

    def __init__(self) -> None:
        self._constants: dict[int, Any] = {}
        self._made: dict[int, tuple[_jax.Eqn, tuple[int, ...]]] = {}
        self._found: dict[int, np.ndarray | None] = {}

    def constant(self, value: int, array: Any) -> None:
        """Adds a constant or a literal."""
        self._constants[value] = array

    def made(self, eqn: _jax.Eqn, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        """Adds a first-order equation with its operands and results."""
        if len(outputs) == 1 and eqn.primitive.name in _FOLDING_RULES:
            self._made[outputs[0]] = eqn, inputs

    def find(self, value: int, depth: int = 0) -> np.ndarray | None:
        """Returns the elements of a value; ``None`` if unknown or beyond the limits above."""
        if value not in self._found:
            self._found[value] = self._compute(value, depth)
        return self._found[value]

    def _compute(self, value: int, depth: int) -> np.ndarray | None:
        if value in self._constants:
            return _host(self._constants[value])
        if value not in self._made or depth > _DEEPEST:
            return None
        eqn, inputs = self._made[value]
        aval = eqn.outvars[0].aval
        if not all(isinstance(size, int) for size in aval.shape) or aval.size > _LARGEST:
            return None
        operands = [self.find(operand, depth + 1) for operand in inputs]
        known = [operand for operand in operands if operand is not None]
        if len(known) < len(operands) or np.dtype(aval.dtype).kind not in "iub":
            return None
        with np.errstate(over="ignore"):  # integers wrap around, as on devices
            found = np.asarray(_FOLDING_RULES[eqn.primitive.name](eqn.params, aval, *known))
        return np.broadcast_to(found.astype(aval.dtype, copy=False), aval.shape)


def _host(array: Any) -> np.ndarray | None:
    """Returns a constant in the host's memory, if it holds integers and can be read."""
    if isinstance(array, jax.Array):
        if array.size > _LARGEST or not _jax.is_concrete(array):
            return None
    elif not isinstance(array, np.ndarray | np.generic | int):
        return None
    found = np.asarray(array)
    return found if found.dtype.kind in "iub" and found.size <= _LARGEST else None


_FoldingRule = Callable[..., Any]


def _broadcast(params: Mapping[str, Any], aval: Any, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(aval.shape)
    for axis, result_axis in enumerate(params["broadcast_dimensions"]):
        shape[result_axis] = x.shape[axis]
    return x.reshape(shape)


def _counter(params: Mapping[str, Any], aval: Any) -> np.ndarray:
    axis = params["dimension"]
    shape = [size if other == axis else 1 for other, size in enumerate(aval.shape)]
    return np.arange(aval.shape[axis]).reshape(shape)


def _elementwise(function: Callable[..., Any]) -> _FoldingRule:
    return lambda params, aval, *operands: function(*operands)


_FOLDING_RULES: dict[str, _FoldingRule] = {
    "add": _elementwise(np.add),
    "sub": _elementwise(np.subtract),
    "mul": _elementwise(np.multiply),
    "max": _elementwise(np.maximum),
    "min": _elementwise(np.minimum),
    "lt": _elementwise(np.less),
    "le": _elementwise(np.less_equal),
    "gt": _elementwise(np.greater),
    "ge": _elementwise(np.greater_equal),
    "eq": _elementwise(np.equal),
    "ne": _elementwise(np.not_equal),
    "and": _elementwise(np.bitwise_and),
    "or": _elementwise(np.bitwise_or),
    "broadcast_in_dim": _broadcast,
    "select_n": lambda params, _, which, *cases: np.choose(which.astype(np.intp), cases),
    "iota": _counter,
    "concatenate": lambda params, _, *parts: np.concatenate(parts, params["dimension"]),
    "transpose": lambda params, _, x: np.transpose(x, params["permutation"]),
    "convert_element_type": lambda params, aval, x: x.astype(aval.dtype),
    **dict.fromkeys(("reshape", "squeeze"), lambda params, aval, x: x.reshape(aval.shape)),
}
"""By primitive: takes the parameters, the type of the result and the operands."""


def targets(eqn: _jax.Eqn, indices: np.ndarray) -> np.ndarray | None:
    """Returns the target of each window of a scatter.

    Args:
        eqn: a scatter.
        indices: its indices.

    Returns:
        For each window the flat position along the scattered axes, in the order of the operand's
        axes, or -1 if the window is dropped. ``None`` if a window does not cover the other axes,
        so that windows may overlap, or if there are batch dimensions.
    """
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    scattered = numbers.scatter_dims_to_operand_dims
    window = [size for axis, size in enumerate(shape) if axis not in scattered]
    updates = eqn.invars[2].aval.shape
    whole = sorted(scattered) == sorted(numbers.inserted_window_dims)
    if numbers.operand_batching_dims or not (scattered and whole):
        return None
    if window != [updates[axis] for axis in numbers.update_window_dims]:
        return None
    sizes = np.array([shape[axis] for axis in scattered])
    starts = indices.astype(np.int64)
    if eqn.params["mode"] == GatherScatterMode.CLIP:
        starts = np.clip(starts, 0, sizes - 1)
    inside = np.all((starts >= 0) & (starts < sizes), axis=-1)
    order = np.argsort(scattered)
    found = np.zeros(inside.shape, np.int64)
    for position in order:
        found = found * sizes[position] + starts[..., position]
    return np.where(inside, found, -1)


def most_updates(eqn: _jax.Eqn, indices: np.ndarray) -> int | None:
    """Returns the largest number of updates of a scatter to one element; ``None`` if unknown."""
    found = targets(eqn, indices)
    if found is None:
        return None
    counts = np.unique(found[found >= 0], return_counts=True)[1]
    return int(np.max(counts, initial=0))
