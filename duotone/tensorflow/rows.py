"""Rows: the row of the table that describes a node, and its attributes for the range analysis."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from duotone.graph.elements import EXACT_DTYPES
from duotone.graph.graph import FULL_DTYPE, Attribute, Value
from duotone.graph.products import Axes, Side, einsum_axes, matmul_axes, meaning_of_dot
from duotone.ops.tensorflow_meanings import POSITIONS
from duotone.tensorflow.protos import NodeDef


def row_of(node: NodeDef, operands: Sequence[Value], results: Sequence[Value]) -> str:
    """Returns the name of a node's row; some ops have several meanings."""
    if node.op == "Cast" and operands and results:
        exact = operands[0].dtype in (*EXACT_DTYPES, FULL_DTYPE)
        return "CastExact" if exact and results[0].dtype == FULL_DTYPE else node.op
    if node.op in _AXES and len(operands) == 2:
        axes = _AXES[node.op](node, operands[0].shape, operands[1].shape)
        return (meaning_of_dot(*axes) if axes else "") or node.op
    if node.op == "Mul" and operands[0].index == operands[1].index:
        return "Square"
    if node.op == "Pow" and operands[1].constant is not None:
        exponent = operands[1].constant
        if exponent.low == exponent.high and exponent.low in (0.0, 1.0, -1.0):
            return "ExactPower"
    return node.op


def flops_of(node: NodeDef, operands: Sequence[Value], results: Sequence[Value]) -> float:
    """Returns the floating point operations of a product, two for a multiply-add; 0 for others."""
    if len(operands) != 2 or len(results) != 1:
        return 0.0
    if node.op in _AXES:
        axes = _AXES[node.op](node, operands[0].shape, operands[1].shape)
        return 2.0 * results[0].size * _known(axes[2]) if axes else 0.0
    if not node.op.startswith("Conv"):
        return 0.0
    # Every element of the image's gradient, or of the result, reads a window of the filter.
    image, filters = {
        "Filter": (operands[1], results[0]),
        "Input": operands,
    }.get(node.op.partition("Backprop")[2].removesuffix("V2"), (results[0], operands[1]))
    return 2.0 * image.size * _known(filters.shape[:-1])


def _known(sides: Sequence[Side]) -> int:
    """Returns the product of the sides that are known."""
    return math.prod(side for side in sides if isinstance(side, int))


@functools.lru_cache(maxsize=4096)
def attributes_of(op: str, slots: Sequence[int]) -> Mapping[str, Attribute]:
    """Returns the attributes of a node for the analyses.

    Args:
        op: its op.
        slots: the positions of the operands that count, a range or a tuple.
    """
    made: dict[str, Attribute] = {"operands": tuple(range(len(slots)))}
    positions = tuple(at for at, slot in enumerate(slots) if slot in POSITIONS.get(op, ()))
    if positions:
        made["positions"] = positions
    if op == "Relu6":
        made |= {"min": 0.0, "max": 6.0}
    return MappingProxyType(made)


def _matmul(node: NodeDef, lhs: Sequence[Side], rhs: Sequence[Side]) -> Axes | None:
    if min(len(lhs), len(rhs)) < 2:
        return None  # TensorFlow multiplies no vectors: the shape is unknown
    return matmul_axes(
        _transposed(lhs) if _is_set(node, "transpose_a", "adj_x") else lhs,
        _transposed(rhs) if _is_set(node, "transpose_b", "adj_y") else rhs,
    )


def _transposed(shape: Sequence[Side]) -> Sequence[Side]:
    return (*shape[:-2], shape[-1], shape[-2])


def _is_set(node: NodeDef, *names: str) -> bool:
    return any(name in node.attr and node.attr[name].b for name in names)


def _einsum(node: NodeDef, lhs: Sequence[Side], rhs: Sequence[Side]) -> Axes | None:
    return einsum_axes(node.attr["equation"].s.decode(), lhs, rhs)


_AXES: Mapping[str, Callable[[NodeDef, Sequence[Side], Sequence[Side]], Axes | None]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    "Einsum": _einsum,
}
