"""Indices that are known before any call, and how many updates of a scatter go to one place.

``x[rows, columns]`` with index arrays that stand in the program as constants is a gather; its
derivative is a ``scatter-add``, to a painter a sum of unknown length. Where the indices follow from
constants by arithmetic on integers, they are worked out here, and counted: a scatter of which no
place gets more than one update adds up nothing.

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
"""Elements up to which indices are worked out."""
_DEEPEST = 100
"""Operations, one behind the other, through which they are."""


class Integers:
    """Integers of a program, worked out when somebody asks."""

    def __init__(self) -> None:
        self._constants: dict[int, Any] = {}
        self._made: dict[int, tuple[_jax.Eqn, tuple[int, ...]]] = {}
        self._found: dict[int, np.ndarray | None] = {}

    def constant(self, value: int, array: Any) -> None:
        """States a constant or a literal."""
        self._constants[value] = array

    def made(self, eqn: _jax.Eqn, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        """States what a first-order equation makes."""
        if len(outputs) == 1 and eqn.primitive.name in _FOLDING_RULES:
            self._made[outputs[0]] = eqn, inputs

    def find(self, value: int, depth: int = 0) -> np.ndarray | None:
        """The elements of a value, or ``None`` if they are unknown or follow from too much."""
        if value not in self._found:
            self._found[value] = self._work_out(value, depth)
        return self._found[value]

    def _work_out(self, value: int, depth: int) -> np.ndarray | None:
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
        if len(known) < len(operands) or not _is_whole(aval):
            return None
        found = np.asarray(_FOLDING_RULES[eqn.primitive.name](eqn.params, aval, *known))
        found = found.astype(aval.dtype, copy=False)
        return np.broadcast_to(found, aval.shape)


def _is_whole(aval: Any) -> bool:
    return np.dtype(aval.dtype).kind in "iub"


def _host(array: Any) -> np.ndarray | None:
    """A constant in the host's memory, if it holds integers and can be read."""
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
    for axis, place in enumerate(params["broadcast_dimensions"]):
        shape[place] = x.shape[axis]
    return x.reshape(shape)


def _select(params: Mapping[str, Any], aval: Any, which: Any, *cases: Any) -> np.ndarray:
    del params, aval
    return np.choose(which.astype(np.intp), cases)


def _counter(params: Mapping[str, Any], aval: Any) -> np.ndarray:
    axis = params["dimension"]
    shape = [size if place == axis else 1 for place, size in enumerate(aval.shape)]
    return np.arange(aval.shape[axis]).reshape(shape)


def _wrapped(function: Callable[..., Any]) -> _FoldingRule:
    """Arithmetic that wraps around, as on devices."""

    def rule(params: Mapping[str, Any], aval: Any, *operands: np.ndarray) -> Any:
        del params, aval
        with np.errstate(over="ignore"):
            return function(*operands)

    return rule


def _reshaped(params: Mapping[str, Any], aval: Any, x: np.ndarray) -> np.ndarray:
    del params
    return x.reshape(aval.shape)


def _joined(params: Mapping[str, Any], aval: Any, *parts: np.ndarray) -> np.ndarray:
    del aval
    return np.concatenate(parts, params["dimension"])


_FOLDING_RULES: dict[str, _FoldingRule] = {
    "add": _wrapped(np.add),
    "sub": _wrapped(np.subtract),
    "mul": _wrapped(np.multiply),
    "max": _wrapped(np.maximum),
    "min": _wrapped(np.minimum),
    "lt": _wrapped(np.less),
    "le": _wrapped(np.less_equal),
    "gt": _wrapped(np.greater),
    "ge": _wrapped(np.greater_equal),
    "eq": _wrapped(np.equal),
    "ne": _wrapped(np.not_equal),
    "and": _wrapped(np.bitwise_and),
    "or": _wrapped(np.bitwise_or),
    "broadcast_in_dim": _broadcast,
    "select_n": _select,
    "iota": _counter,
    "concatenate": _joined,
    "transpose": lambda params, _, x: np.transpose(x, params["permutation"]),
    "convert_element_type": lambda params, aval, x: x.astype(aval.dtype),
    **dict.fromkeys(("reshape", "squeeze"), _reshaped),
}
"""By primitive: takes the parameters, the type of the result and the operands."""


def targets(eqn: _jax.Eqn, indices: np.ndarray) -> np.ndarray | None:
    """Where the windows of a scatter go.

    Args:
        eqn: a scatter.
        indices: its indices.

    Returns:
        For each window the flat position along the scattered axes, in the order of the operand's
        axes, or -1 where it is dropped. ``None`` where a window is smaller than what it lies in, so
        that windows may overlap, and where there are batches.
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
    places = indices.astype(np.int64)
    if eqn.params["mode"] == GatherScatterMode.CLIP:
        places = np.clip(places, 0, sizes - 1)
    inside = np.all((places >= 0) & (places < sizes), axis=-1)
    order = np.argsort(scattered)
    found = np.zeros(inside.shape, np.int64)
    for position in order:
        found = found * sizes[position] + places[..., position]
    return np.where(inside, found, -1)


def small_constants(eqn: _jax.Eqn, indices: np.ndarray) -> int | None:
    """How many updates of a scatter one place gets at most, ``None`` if unknown."""
    found = targets(eqn, indices)
    if found is None:
        return None
    counts = np.unique(found[found >= 0], return_counts=True)[1]
    return int(np.max(counts, initial=0))
