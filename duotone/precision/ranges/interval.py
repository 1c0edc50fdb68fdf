"""Intervals: bounds of the elements of a value.

An interval ``(low, high)`` contains every element of a value that is not NaN; ``None`` means that
nothing is known. The bounds hold for float32 arithmetic. Each rule that computes passes its
result through :func:`outward`, which leaves room for rounding, makes results infinite that
overflow float32, and results zero that underflow. Constants pass through :func:`in_float32`. So
an interval that contains a subnormal number contains 0, and rules need not know whether a device
flushes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

Interval = tuple[float, float]
Known = Interval | None
"""An interval, or ``None`` if nothing is known."""

UNIT: Interval = (0.0, 1.0)
SIGNED_UNIT: Interval = (-1.0, 1.0)
POSITIVE: Interval = (0.0, math.inf)

_LARGEST = (2.0 - 2.0**-23) * 2.0**127
SMALLEST_NORMAL = 2.0**-126
ROOM = 2.0**-20
"""Relative room for rounding: 8 units in the last place of float32. XLA's approximations of
transcendental functions stay within it."""


def outward(low: float, high: float, room: float = ROOM) -> Known:
    """Returns the interval in which float32 arithmetic puts results between ``low`` and ``high``.

    Args:
        low: exact lower bound; NaN means no bound.
        high: exact upper bound; NaN means no bound.
        room: relative error of the computation.
    """
    low = min(low, _LARGEST) if low == low else -math.inf
    high = max(high, -_LARGEST) if high == high else math.inf
    return in_float32(low - abs(low) * room, high + abs(high) * room)


def in_float32(low: float, high: float) -> Known:
    """Returns the interval of numbers between ``low`` and ``high`` after storing or reading them.

    Numbers that are too large are infinite. Subnormal numbers may be zero: CPUs and GPUs flush
    them.
    """
    if low < -_LARGEST:
        low = -math.inf
    elif 0.0 < low < SMALLEST_NORMAL:
        low = 0.0
    if high > _LARGEST:
        high = math.inf
    elif -SMALLEST_NORMAL < high < 0.0:
        high = 0.0
    return known_if_any(low, high)


def known_if_any(low: float, high: float) -> Known:
    """Returns the interval, or ``None`` if it says nothing."""
    return None if low == -math.inf and high == math.inf else (low, high)


def hull(intervals: Iterable[Known]) -> Known:
    """Returns the smallest interval that contains all of them."""
    low, high = math.inf, -math.inf
    for interval in intervals:
        if interval is None:
            return None
        low, high = min(low, interval[0]), max(high, interval[1])
    return None if low > high or (low == -math.inf and high == math.inf) else (low, high)


def meet(one: Known, other: Known) -> Known:
    """Returns the intersection of two intervals; the first one if they contradict each other."""
    if one is None:
        return other
    if other is None:
        return one
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low <= high else one


def within(inner: Known, outer: Known) -> bool:
    """Returns True if ``outer`` contains all of ``inner``."""
    if outer is None:
        return True
    return inner is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def widened(old: Known, new: Known) -> Known:
    """Returns ``old`` without the bounds that ``new`` exceeds, so that passes over a loop end."""
    if old is None or new is None:
        return None
    low = old[0] if new[0] >= old[0] else (0.0 if new[0] >= 0 else -math.inf)
    high = old[1] if new[1] <= old[1] else (0.0 if new[1] <= 0 else math.inf)
    return None if low == -math.inf and high == math.inf else (low, high)


def product(a: Interval, b: Interval) -> Interval:
    """Returns exact bounds of a product; zero times infinity counts as zero, since it is NaN."""
    corners = [x * y if x and y else 0.0 for x in a for y in b]
    return min(corners), max(corners)


def bound(interval: Interval) -> float:
    """Returns the largest magnitude in an interval."""
    return max(abs(interval[0]), abs(interval[1]))


def words(interval: Known) -> str:
    """Returns an interval for people."""
    if interval is None:
        return "unknown"
    low, high = interval
    if low == -math.inf:
        return f"at most {high:.4g}"
    if high == math.inf:
        return f"at least {low:.4g}"
    return f"between {low:.4g} and {high:.4g}"
