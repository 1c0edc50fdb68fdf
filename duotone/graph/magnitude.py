"""The magnitude of a constant: what rules ask of numbers that are known."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True, slots=True)
class Magnitude:
    """The magnitude of a constant, without its zeros and infinities.

    Attributes:
        smallest: the absolute value at which half must be exact enough for the constant to keep
            its meaning. For a scalar, this is the scalar itself. For an array, it is the largest
            element, since small elements among large ones (weights) may round like any others. It
            is ``inf`` if all elements are zero or infinite.
        largest: the largest absolute value; 0 if all elements are zero or infinite.
        low: the least element, zeros and infinities included; minus infinity if unknown.
        high: the greatest element, zeros and infinities included; infinity if unknown.
        cancels: whether all its sums along some axes are known to be exactly 0, as for a stencil or
            a graph's Laplacian: a dot with it subtracts numbers that may be nearly equal.
    """

    smallest: float
    largest: float
    low: float = -math.inf
    high: float = math.inf
    cancels: bool = False

    @classmethod
    def of(cls, number: float) -> Magnitude:
        """Returns the magnitude of a number; NaN has no bounds."""
        if number != number:
            return cls(math.inf, 0.0)
        size = abs(number)
        if size in (0.0, math.inf):
            return cls(math.inf, 0.0, number, number)
        return cls(size, size, number, number)
