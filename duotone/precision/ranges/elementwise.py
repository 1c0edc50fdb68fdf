"""Rules of elementwise functions: monotone ones, and those with bounded results.

:mod:`duotone.precision.ranges.intervals`, to which this module belongs, explains rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from duotone.graph.graph import Node, Value
from duotone.precision.ranges.interval import (
    ROOM,
    SMALLEST_NORMAL,
    Interval,
    Known,
    known_if_any,
    outward,
)

IntervalRule = Callable[[Node, Sequence[Known], Sequence[Value]], Known]
"""Takes a node, the intervals of its operands and the graph's values; returns an interval."""

FUNCTIONS: dict[str, IntervalRule] = {}
"""The rules by the name that rows of :mod:`duotone.ops` use."""


def power_of(x: float, exponent: float) -> float:
    """Returns a power; infinite if it overflows."""
    try:
        return x**exponent
    except OverflowError:
        return math.inf if x > 0 or exponent % 2 == 0 else -math.inf
    except ZeroDivisionError:
        return math.inf


def _increasing(
    names: str,
    function: Callable[[float], float],
    least: float,
    most: float,
    room: float = ROOM,
) -> None:
    """Registers functions that never decrease: their values at the bounds bound the result."""
    limits = known_if_any(least, most)

    def rule(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
        if known[0] is None:
            return limits
        low, high = _at(function, known[0][0], least), _at(function, known[0][1], most)
        found = outward(low, high, room)
        if found is None:
            return limits
        return max(found[0], least), min(found[1], most) if most != math.inf else found[1]

    FUNCTIONS.update(dict.fromkeys(names.split(), rule))


def _at(function: Callable[[float], float], x: float, otherwise: float) -> float:
    try:
        return function(x)
    except OverflowError:
        return math.inf
    except ValueError:
        return otherwise


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > -700 else 0.0


_EDGE = 1.0 + 2.0**-20
"""An approximation of a function with the limit 1 may end slightly above it."""
_increasing("exp", math.exp, 0.0, math.inf)
# XLA computes exp(x log(2)) and rounds the product: at -126 that is 2**-17 of the result.
_increasing("exp2", lambda x: power_of(2.0, x), 0.0, math.inf, 2.0**-16)
_increasing("expm1", math.expm1, -_EDGE, math.inf)
_increasing("log", lambda x: math.log(x) if x > 0 else -math.inf, -math.inf, math.inf)
_increasing("log1p", lambda x: math.log1p(x) if x > -1 else -math.inf, -math.inf, math.inf)
_increasing("log2", lambda x: math.log2(x) if x > 0 else -math.inf, -math.inf, math.inf)
_increasing("tanh", math.tanh, -_EDGE, _EDGE)
_increasing("erf", math.erf, -_EDGE, _EDGE)
_increasing("logistic", _logistic, 0.0, _EDGE)
_increasing("atan", math.atan, -math.pi / 2 * _EDGE, math.pi / 2 * _EDGE)
_increasing("sqrt", lambda x: math.sqrt(max(x, 0.0)), 0.0, math.inf)
_increasing("sign", lambda x: float((x > 0) - (x < 0)), -_EDGE, _EDGE)
_increasing("floor", lambda x: x if math.isinf(x) else float(math.floor(x)), -math.inf, math.inf)
_increasing("ceil", lambda x: x if math.isinf(x) else float(math.ceil(x)), -math.inf, math.inf)


def _round(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Ties round away from zero or to even; both lie between floor and ceil."""
    low, high = FUNCTIONS["floor"](node, known, values), FUNCTIONS["ceil"](node, known, values)
    return None if low is None or high is None else (low[0], high[1])


def _cbrt(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """XLA's cube root of a number next to zero has any sign."""
    if known[0] is None:
        return None
    low, high = known[0]
    low = low if low > 0.0 else min(low, -SMALLEST_NORMAL)
    high = high if high < 0.0 else max(high, SMALLEST_NORMAL)
    return outward(*(math.copysign(abs(x) ** (1 / 3), x) for x in (low, high)))


def _rsqrt(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns an interval if the operand cannot be zero: minus zero gives minus infinity."""
    x = known[0]
    if x is None or x[0] <= 0.0:
        return None
    return outward(1.0 / math.sqrt(x[1]), 1.0 / math.sqrt(x[0]))


def _fixed(names: str, interval: Interval) -> None:
    """Registers functions whose results lie in a fixed interval for every operand."""

    def rule(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
        return interval

    FUNCTIONS.update(dict.fromkeys(names.split(), rule))


_fixed("sin cos", (-_EDGE, _EDGE))
_fixed("atan2", (-math.pi * _EDGE, math.pi * _EDGE))
_fixed("acos", (-(2.0**-20), math.pi * _EDGE))
_fixed("asin", (-math.pi / 2 * _EDGE, math.pi / 2 * _EDGE))
_fixed("erfc", (0.0, 2.0 * _EDGE))
_fixed("bessel_i0e", (0.0, _EDGE))
_fixed("cosh", (1.0 / _EDGE, math.inf))
FUNCTIONS["round"] = _round
FUNCTIONS["cbrt"] = _cbrt
FUNCTIONS["rsqrt"] = _rsqrt
