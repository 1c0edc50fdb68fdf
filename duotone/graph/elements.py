"""The elements of a constant array: their magnitudes, and their conversion to half."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from duotone.graph.graph import HalfType, Value
from duotone.graph.magnitude import Magnitude
from duotone.ops.traits import Trait, Traits

EXACT_DTYPES = ("bool", "int8", "uint8", "int4", "uint4", "int2", "uint2", "float16", "bfloat16")
"""The dtypes whose numbers half holds exactly."""
_WHOLE = frozenset(
    {Trait.REPEATS, Trait.RESHAPES, Trait.TRANSPOSES, Trait.REVERSES, Trait.FLIPS, Trait.CONVERTS}
)
"""Traits of operations that give each element of their operand equally often."""
_STENCIL = 128
"""The most elements of an array that is one stencil: those of weights may add up to 0 by chance."""
_HALF_DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def magnitude_of(pieces: Iterable[Any], shape: Sequence[int] | None = None) -> Magnitude:
    """Returns the magnitude of a float32 array, given in pieces.

    Args:
        pieces: the array, or parts of it of any shape.
        shape: the shape of the whole array; without it, that of the first piece.

    Example:
        >>> magnitude_of([np.float32([0.0, -3.0]), np.float32([2.0])])
        Magnitude(smallest=3.0, largest=3.0, low=-3.0, high=2.0, cancels=False)
    """
    whole: Any = None
    largest, low, high = 0.0, math.inf, -math.inf
    for number, piece in enumerate(pieces):
        whole = None if number else piece
        sizes = np.abs(piece)
        largest = max(largest, float(np.max(sizes, initial=0.0, where=np.isfinite(sizes))))
        if sizes.size:
            with np.errstate(invalid="ignore"):
                low = min(low, float(np.fmin.reduce(piece, None)))
                high = max(high, float(np.fmax.reduce(piece, None)))
    cancels = low < 0.0 < high < math.inf and whole is not None and _cancels(whole, shape)
    if not low <= high:  # no elements, or only NaN
        low, high = -math.inf, math.inf
    return Magnitude(largest or math.inf, largest, low, high, cancels)


def _cancels(array: Any, shape: Sequence[int] | None) -> bool:
    """Checks if all sums along some axes are exactly 0; all axes count for a small array only."""
    sizes: Sequence[int] = array.shape if shape is None else shape
    if math.prod(sizes) != array.size or np.sum(array, dtype=np.float64) != 0.0:
        return False
    array = array.reshape([size for size in sizes if size > 1])
    for first, last in itertools.combinations(range(array.ndim + 1), 2):
        sums = np.sum(array, tuple(range(first, last)), dtype=np.float64)
        if not sums.any() and (sums.ndim or array.size <= _STENCIL):
            return True
    return False


def kept_constant(traits: Traits, operands: Sequence[Value | None]) -> Magnitude | None:
    """Returns the magnitude of a result that has the elements of a constant, by its operation.

    Args:
        traits: of the operation.
        operands: ``None`` for an omitted one.
    """
    if Trait.KEEPS not in traits or Trait.CONVERTS in traits or not operands or not operands[0]:
        return None
    found = operands[0].constant
    if found is not None and Trait.NEGATES in traits:
        return Magnitude(found.smallest, found.largest)
    return found and if_whole(found, traits)


def if_whole(constant: Magnitude, traits: Traits) -> Magnitude:
    """Returns a magnitude; whether its elements cancel is unknown unless an operation keeps all.

    Args:
        constant: the magnitude of the operand.
        traits: of the operation, which gives elements of the operand and no others.
    """
    if constant.cancels and traits.isdisjoint(_WHOLE):
        return dataclasses.replace(constant, cancels=False)
    return constant


def in_half(array: Any, half: HalfType) -> Any:
    """Returns elements in half; infinities stay, too large finite numbers are saturated.

    Example:
        >>> from duotone.graph.graph import HALF_TYPES
        >>> in_half(np.float32([1.0, 1e9]), HALF_TYPES["float16"]).tolist()
        [1.0, 65504.0]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        clipped = np.clip(array, -half.largest, half.largest)
        kept = np.where(np.isinf(array), array, clipped)
        return kept.astype(_HALF_DTYPES[half.name])
