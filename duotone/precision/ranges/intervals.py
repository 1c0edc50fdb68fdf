"""Interval rules: from the intervals of an operation's operands to that of its results.

A rule takes the node, the interval of each operand (``None`` if nothing is known) and all values of
the graph. It returns one interval for every result, or ``None``. It must be *sound*: for all
elements of the operands inside their intervals, every element of a result that is not NaN lies
inside. ``tests/precision/test_ranges_sound.py`` looks for counterexamples.

To teach the analysis an operation, name a rule in its row (:mod:`duotone.ops`), or write one with
``@_interval_rule``. A row without a name uses the rule of the operation's own name. Nothing is
known about the results of an operation without a rule: wide, but never wrong. Facts that relate two
values (``x - max(x) <= 0``) are in :mod:`duotone.precision.ranges.facts`, under the same names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from duotone.graph.graph import Node, Value
from duotone.ops.registry import registering
from duotone.precision.ranges.elementwise import FUNCTIONS, IntervalRule, power_of
from duotone.precision.ranges.interval import (
    POSITIVE,
    SIGNED_UNIT,
    UNIT,
    Interval,
    Known,
    bound,
    hull,
    in_float32,
    known_if_any,
    outward,
    product,
)

INTERVAL_RULES: dict[str, IntervalRule] = dict(FUNCTIONS)
"""The rules by the name that rows of :mod:`duotone.ops` use."""

DTYPE_RANGES: dict[str, Interval] = {
    "bool": UNIT,
    "int2": (-2.0, 1.0),
    "uint2": (0.0, 3.0),
    "int4": (-8.0, 7.0),
    "uint4": (0.0, 15.0),
    **{f"int{bits}": (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0.0, 2.0**bits - 1) for bits in (8, 16, 32, 64)},
}
"""The range of the elements of each dtype that has no fractions."""


def fits(interval: Interval, dtype: str) -> bool:
    """Checks if a dtype's range contains an interval; numbers outside wrap around."""
    least, most = DTYPE_RANGES[dtype]
    return least - 1 < interval[0] and interval[1] < most + 1  # 2.0**63 - 1 is 2.0**63


_TERM_ERROR = 2.0**-23
"""Relative error for each term of a float32 sum, twice the unit roundoff."""

_PRODUCT_ERROR = 2.0**-7
"""Relative error of one product: devices round the operands of a dot to TF32 or bfloat16."""


_interval_rule = registering(INTERVAL_RULES)


# ------------------------------------------------------- moving and choosing


@_interval_rule("moves", "same", "reshape", "transpose", "broadcast_in_dim")
def _moves(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    return known[0]


@_interval_rule("joins")
def _joins(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    return hull(known)


@_interval_rule("dynamic_update_slice")
def _updates_slice(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    return hull(known[:2])


@_interval_rule("scatter")
def _updates(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns the interval of operand and update; the indices are the operand between them."""
    if node.fixed:
        return None  # applies a function of the user
    return hull((known[0], known[2]))


@_interval_rule("select_n", "choose")
def _select(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    return hull(known[1:])


@_interval_rule("greater", "less")
def _compares(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns a truth value; :mod:`duotone.precision.ranges.facts` keeps the compared values."""
    return UNIT


@_interval_rule("gather")
def _gather(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Bounds a gather, which gives NaN or ``fill`` outside of the operand."""
    fill = node.attributes.get("fill")
    if values[node.inputs[0]].dtype in DTYPE_RANGES and fill is None:
        return None  # outside, integers become the least or greatest number of their dtype
    return known[0] if not isinstance(fill, float) else hull((known[0], in_float32(fill, fill)))


@_interval_rule("reduce_max", "picks")
def _picks(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns one of the operand's elements; an infinity if the operand is empty."""
    if len(node.inputs) != 1 or not count(values[node.inputs[0]]):
        return None
    return known[0]


@_interval_rule("max")
def _larger(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    return known_if_any(max(_lows(known)), max(_highs(known)))


@_interval_rule("min")
def _smaller(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    return known_if_any(min(_lows(known)), min(_highs(known)))


def _lows(known: Sequence[Known]) -> list[float]:
    return [-math.inf if interval is None else interval[0] for interval in known]


def _highs(known: Sequence[Known]) -> list[float]:
    return [math.inf if interval is None else interval[1] for interval in known]


@_interval_rule("clamp")
def _clamp(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns ``min(max(x, least), most)``."""
    least, x, most = (k or (-math.inf, math.inf) for k in known)
    low = min(max(x[0], least[0]), most[0])
    high = min(max(x[1], least[1]), most[1])
    return known_if_any(low, high)


# ------------------------------------------------------- arithmetic


@_interval_rule("add")
def _add(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    a, b = known
    if a is None or b is None:
        return None
    return outward(a[0] + b[0], a[1] + b[1])


@_interval_rule("sub")
def _sub(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    if node.inputs[0] == node.inputs[1]:
        return 0.0, 0.0
    a, b = known
    if a is None or b is None:
        return None
    return outward(a[0] - b[1], a[1] - b[0])


@_interval_rule("mul")
def _mul(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    if node.inputs[0] == node.inputs[1]:
        return _square(node, known, values)
    a, b = known
    if a is None or b is None:
        return None
    return outward(*product(a, b))


@_interval_rule("div")
def _div(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns nothing if the divisor may be zero, whose sign decides the sign of the infinity.

    Compilers multiply by the reciprocal of a constant, which may underflow.
    """
    if values[node.outputs[0]].dtype in DTYPE_RANGES:
        return None
    a, b = known
    if a is None or b is None or b[0] <= 0.0 <= b[1]:
        return None
    reciprocal = outward(1.0 / b[1], 1.0 / b[0])
    return None if reciprocal is None else outward(*product(a, reciprocal))


@_interval_rule("neg")
def _neg(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    (x,) = known
    return None if x is None else (-x[1], -x[0])


@_interval_rule("abs")
def _abs(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    (x,) = known
    if x is None:
        return POSITIVE
    return max(x[0], -x[1], 0.0), bound(x)


@_interval_rule("square")
def _square(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    x = known[0]
    if x is None:
        return POSITIVE
    least = max(x[0], -x[1], 0.0)
    return outward(least * least, bound(x) * bound(x))


@_interval_rule("integer_pow")
def _integer_pow(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Bounds a power; a negative one is a reciprocal, which may underflow or overflow."""
    exponent = int(_number(node, "exponent"))
    if exponent == 0:
        return 1.0, 1.0
    found = _whole_power(known[0], abs(exponent))
    if exponent > 0:
        return found
    if found is None or found[0] <= 0.0 <= found[1]:
        return POSITIVE if exponent % 2 == 0 else None
    return outward(1.0 / found[1], 1.0 / found[0])


def _whole_power(x: Known, power: int) -> Known:
    even = power % 2 == 0
    if x is None:
        return POSITIVE if even else None
    low, high = power_of(x[0], power), power_of(x[1], power)
    if even:
        least = 0.0 if x[0] <= 0.0 <= x[1] else min(low, high)
        low, high = least, max(low, high)
    return outward(low, high, power * 2.0**-20)


@_interval_rule("pow")
def _pow(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns bounds for a positive base: powers are monotone, so the corners bound them."""
    base, exponent = known
    if base is None or base[0] <= 0.0:
        return None
    if exponent is None or not all(map(math.isfinite, (*base, *exponent))):
        return POSITIVE
    corners = [power_of(x, y) for x in base for y in exponent]
    return outward(min(corners), max(corners), 2.0**-10)


def _number(node: Node, attribute: str) -> float:
    found = node.attributes[attribute]
    assert isinstance(found, float)
    return found


# ------------------------------------------------------- sums


def count(value: Value) -> int:
    """Returns the number of elements; 0 if a dimension is symbolic."""
    return value.size if all(isinstance(d, int) for d in value.shape) else 0


@_interval_rule("reduce_sum")
def _reduce_sum(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    x = known[0]
    if x is None:
        return None
    operand, result = values[node.inputs[0]], values[node.outputs[0]]
    if not count(operand) or not count(result):
        return None
    terms = operand.size / result.size
    return _sum(x, terms, terms)


@_interval_rule("cumsum")
def _partial_sums(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns the interval of sums of one to all terms."""
    return None if known[0] is None else _sum_of_terms(node, known[0], 1.0)


@_interval_rule("reduce_window_sum")
def _window_sums(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Bounds sums over windows, which also cover padding."""
    return None if known[0] is None else _sum_of_terms(node, known[0], 0.0)


def _sum_of_terms(node: Node, x: Interval, least: float) -> Known:
    """Returns the sum of ``least`` to all terms of a node, if their number is known."""
    return _sum(x, least, _number(node, "terms")) if "terms" in node.attributes else None


@_interval_rule("dot_general")
def _contraction(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    a, b = known[0], known[1]
    if a is None or b is None or "terms" not in node.attributes:
        return None
    return _sum_of_terms(node, product(a, b), _number(node, "terms"))


@_interval_rule("conv_general_dilated")
def _convolution(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Bounds the sums of a convolution, whose windows also cover padding."""
    a, b = known[0], known[1]
    return None if a is None or b is None else _sum_of_terms(node, product(a, b), 0.0)


@_interval_rule("scatter-sub")
def _scatter_difference(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    x, where, update = known
    minus = None if update is None else (-update[1], -update[0])
    return _scatter_sum(node, (x, where, minus), values)


@_interval_rule("scatter-add")
def _scatter_sum(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """If nothing else is known, all updates may go to one element."""
    x, update = known[0], known[2]
    if "updates" in node.attributes:
        updates = int(_number(node, "updates"))
    elif not (updates := count(values[node.inputs[2]])):
        return None
    if x is None or update is None:
        return None
    total = _sum(update, 0.0, float(updates))
    return None if total is None else outward(x[0] + total[0], x[1] + total[1])


def _sum(x: Interval, least: float, most: float) -> Known:
    """Returns the sum of ``least`` to ``most`` elements between ``x``."""
    fewest = (least * x[0], least * x[1]) if least else (0.0, 0.0)
    low, high = min(fewest[0], most * x[0]), max(fewest[1], most * x[1])
    room = _PRODUCT_ERROR + most * _TERM_ERROR
    # Errors of a sum are relative to the magnitudes of its terms, not to the sum.
    slack = 0.0 if x[0] >= 0.0 or x[1] <= 0.0 else most * bound(x) * room
    return outward(low - slack, high + slack, room)


@_interval_rule("reduce_prod", "cumprod")
def _products(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns the interval of products of numbers no larger than 1."""
    x = known[0]
    if x is None or bound(x) > 1.0:
        return None
    return UNIT if x[0] >= 0.0 else SIGNED_UNIT


# ------------------------------------------------------- conversions and counters


@_interval_rule("convert_element_type")
def _convert(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    source, target = values[node.inputs[0]].dtype, values[node.outputs[0]].dtype
    found = known[0] or DTYPE_RANGES.get(source)
    if found is None or (target in DTYPE_RANGES and source not in DTYPE_RANGES):
        return None  # to an integer: NaN and numbers that do not fit become arbitrary numbers
    if source == target or (source in DTYPE_RANGES and bound(found) <= 2.0**24):
        return found
    return outward(*found)


@_interval_rule("iota")
def _iota(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    if "length" not in node.attributes:
        return None
    last = max(_number(node, "length") - 1.0, 0.0)
    return (0.0, last) if last <= 2.0**24 else outward(0.0, last)
