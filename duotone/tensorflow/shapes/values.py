"""Values: computes small integer vectors that give the sizes of other values."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from duotone.tensorflow.protos import NodeDef
from duotone.tensorflow.shapes.operation import (
    Numbers,
    Operation,
    ValueRule,
    count_elements,
    shape_of_proto,
)

LARGEST_VALUE = 64
"""Elements of the longest vector whose value is kept: a shape or a list of axes."""

_INTEGERS = {3: ("i", 4, "int_val"), 9: ("q", 8, "int64_val")}  # int32, int64: see types.proto


def constant_value(node: NodeDef) -> Numbers:
    """Returns the value of a Const node with few whole numbers."""
    tensor = node.attr["value"].tensor
    shape = shape_of_proto(tensor.tensor_shape)
    count = count_elements(shape)
    if tensor.dtype not in _INTEGERS or count is None or count > LARGEST_VALUE:
        return None
    code, size, field = _INTEGERS[tensor.dtype]
    if tensor.tensor_content:
        if len(tensor.tensor_content) != count * size:
            return None
        return struct.unpack(f"<{count}{code}", tensor.tensor_content)
    given = list(getattr(tensor, field))
    return tuple((given + [given[-1] if given else 0] * count)[:count])


def _packed(operation: Operation) -> Numbers:
    parts = operation.values
    if any(part is None or len(part) != 1 for part in parts):
        return None
    return tuple(part[0] for part in parts if part is not None)


def _joined(operation: Operation) -> Numbers:
    parts = operation.values[:-1]
    if any(part is None for part in parts):
        return None
    return tuple(number for part in parts if part is not None for number in part)


def _picked(operation: Operation) -> Numbers:
    given, parts = operation.value(0), [operation.value(slot) for slot in (1, 2, 3)]
    if given is None or any(p is None or len(p) != 1 or p[0] is None for p in parts):
        return None
    start, end, step = (p[0] if p else None for p in parts)
    if operation.integer("shrink_axis_mask") & 1:
        return (given[start],) if start is not None and -len(given) <= start < len(given) else None
    first = None if operation.integer("begin_mask") & 1 else start
    last = None if operation.integer("end_mask") & 1 else end
    return given[first:last:step]


def _product(operation: Operation) -> Numbers:
    given = operation.value(0)
    if given is None or None in given:
        return None
    return (math.prod(number or 0 for number in given),)


def _each_shape(operation: Operation) -> Sequence[Numbers]:
    return list(operation.shapes)


def _first(rule: Callable[[Operation], Numbers]) -> ValueRule:
    """Returns a rule for an op with one output."""
    return lambda operation: [rule(operation)]


VALUES: dict[str, ValueRule] = {
    "Const": _first(lambda operation: constant_value(operation.node)),
    "Identity": _first(lambda operation: operation.value(0)),
    "Cast": _first(lambda operation: operation.value(0)),
    "Shape": _each_shape,
    "ShapeN": _each_shape,
    "Pack": _first(_packed),
    "ConcatV2": _first(_joined),
    "StridedSlice": _first(_picked),
    "Prod": _first(_product),
}
"""The rules for the ops that compute small integer vectors."""
