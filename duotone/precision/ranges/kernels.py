"""The interval rules of operations that ONNX and TensorFlow have and JAX has not.

A graph node has no omitted operands; its attribute ``operands`` has the slot of each operand in the
file. :mod:`duotone.precision.ranges.intervals` documents the contract of a rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from duotone.graph.graph import Node, Value
from duotone.ops.registry import registering
from duotone.precision.ranges.elementwise import IntervalRule
from duotone.precision.ranges.interval import (
    POSITIVE,
    UNIT,
    Interval,
    Known,
    hull,
    known_if_any,
    outward,
)
from duotone.precision.ranges.intervals import INTERVAL_RULES

KERNEL_RULES: dict[str, IntervalRule] = dict(INTERVAL_RULES)
"""The interval rules that rows of ONNX operations and TensorFlow ops name."""

_ZERO: Interval = (0.0, 0.0)


_rule = registering(KERNEL_RULES)


def _operand(node: Node, known: Sequence[Known], slot: int) -> Known:
    """Returns the interval of the operand in a slot of the file's node."""
    slots = node.attributes.get("operands", ())
    return known[slots.index(slot)] if isinstance(slots, tuple) and slot in slots else None


@_rule("GlobalAveragePool", "ReduceMean")
def _means(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Bounds a mean by its terms, up to the rounding of the sum."""
    return None if known[0] is None else outward(known[0][0], known[0][1], 2.0**-7)


@_rule("Trilu", "CenterCropPad", "AveragePool", "Dropout")
def _with_zeros(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns the interval of elements of the operand and zeros, or of means of them."""
    found = hull((known[0], _ZERO))
    return None if found is None else outward(found[0], found[1], 2.0**-7)


@_rule("Relu")
def _relu(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    return POSITIVE if known[0] is None else (max(known[0][0], 0.0), max(known[0][1], 0.0))


@_rule("Clip")
def _clip(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    """Returns ``min(max(x, least), most)``; the bounds were attributes before opset 11."""
    x = known[0] or (-math.inf, math.inf)
    least = _operand(node, known, 1) or _number(node, "min", -math.inf, node_slot=1)
    most = _operand(node, known, 2) or _number(node, "max", math.inf, node_slot=2)
    low = min(max(x[0], least[0]), most[0])
    high = min(max(x[1], least[1]), most[1])
    return known_if_any(low, high)


def _number(node: Node, name: str, default: float, *, node_slot: int) -> Interval:
    """Returns a bound from an attribute; unknown if an unknown operand gives it."""
    slots = node.attributes.get("operands", ())
    if isinstance(slots, tuple) and node_slot in slots:
        return -math.inf, math.inf
    found = node.attributes.get(name, default)
    return (found, found) if isinstance(found, float) else (default, default)


@_rule("Softmax", "HardSigmoid")
def _unit(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    return outward(*UNIT)


@_rule("ReduceSumSquare", "ReduceL1", "ReduceL2", "Softplus")
def _positive(node: Node, known: Sequence[Known], values: Sequence[Value]) -> Known:
    return POSITIVE
