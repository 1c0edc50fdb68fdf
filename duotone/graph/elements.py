"""The elements of a constant array: their magnitudes, and their conversion to half."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from duotone.graph.graph import HalfType, Magnitude, Value
from duotone.ops.traits import Trait, Traits

EXACT_DTYPES = ("bool", "int8", "uint8", "int4", "uint4", "int2", "uint2", "float16", "bfloat16")
"""The dtypes whose numbers half holds exactly."""
_HALF_DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def magnitude_of(pieces: Iterable[Any]) -> Magnitude:
    """Returns the magnitude of a float32 array, of any shape, given in pieces.

    Example:
        >>> magnitude_of([np.float32([0.0, -3.0]), np.float32([2.0])])
        Magnitude(smallest=3.0, largest=3.0, low=-3.0, high=2.0)
    """
    largest, low, high = 0.0, math.inf, -math.inf
    for piece in pieces:
        sizes = np.abs(piece)
        largest = max(largest, float(np.max(sizes, initial=0.0, where=np.isfinite(sizes))))
        if sizes.size:
            with np.errstate(invalid="ignore"):
                low = min(low, float(np.fmin.reduce(piece, None)))
                high = max(high, float(np.fmax.reduce(piece, None)))
    if not low <= high:  # no elements, or only NaN
        low, high = -math.inf, math.inf
    return Magnitude(largest or math.inf, largest, low, high)


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
    return found


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
