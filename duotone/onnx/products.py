"""Tells which products are sums of products: the axes of ``MatMul``, ``Gemm`` and ``Einsum``."""

from __future__ import annotations

from collections.abc import Sequence

from duotone.graph.graph import Value
from duotone.graph.products import meaning_of_dot
from duotone.onnx.protos import NodeProto, attribute

Side = object
_Axes = tuple[list[Side], list[Side], list[Side]]
"""The sides of the free axes of both operands, and of those that are summed over."""


def meaning_of_product(node: NodeProto, operands: Sequence[Value | None]) -> str:
    """The row of a product that fills no matrix instruction, as for a ``dot_general`` in JAX.

    Args:
        node: a node of any operation.
        operands: its operands; a value of unknown shape may be large.
    """
    rule = _RULES.get(node.op_type)
    if rule is None or node.domain not in ("", "ai.onnx") or len(operands) < 2:
        return ""
    lhs, rhs = operands[:2]
    if lhs is None or rhs is None:
        return ""
    axes = rule(node, lhs.shape, rhs.shape)
    return "" if axes is None else meaning_of_dot(*axes)


def _matmul(node: NodeProto, lhs: tuple[Side, ...], rhs: tuple[Side, ...]) -> _Axes | None:
    """NumPy's ``matmul``: what broadcasts against an operand is a free axis of the other."""
    del node
    if not lhs or not rhs:
        return None
    left, right = list(lhs[-2:-1]), list(rhs[-1:]) if len(rhs) > 1 else []
    first, second = list(lhs[:-2]), list(rhs[:-2])
    most = max(len(first), len(second))
    first, second = [1] * (most - len(first)) + first, [1] * (most - len(second)) + second
    left += [a for a, b in zip(first, second, strict=True) if b == 1]
    right += [b for a, b in zip(first, second, strict=True) if a == 1]
    return left, right, [lhs[-1]]


def _gemm(node: NodeProto, lhs: tuple[Side, ...], rhs: tuple[Side, ...]) -> _Axes | None:
    if len(lhs) != 2 or len(rhs) != 2:
        return None
    rows, columns = lhs[::-1] if attribute(node, "transA") else lhs
    _, others = rhs[::-1] if attribute(node, "transB") else rhs
    return [rows], [others], [columns]


def _einsum(node: NodeProto, lhs: tuple[Side, ...], rhs: tuple[Side, ...]) -> _Axes | None:
    """Two operands: a letter that the result lacks is summed over, one of all three is batch."""
    terms, arrow, result = attribute(node, "equation").decode().replace(" ", "").partition("->")
    names = terms.split(",")
    if not arrow or len(names) != 2 or "." in terms:
        return None
    first, second = (dict(zip(*pair, strict=False)) for pair in zip(names, (lhs, rhs), strict=True))
    if (len(first), len(second)) != (len(lhs), len(rhs)):
        return None  # a diagonal, or a shape that is not known
    return (
        [side for name, side in first.items() if name in result and name not in second],
        [side for name, side in second.items() if name in result and name not in first],
        [side for name, side in (first | second).items() if name not in result],
    )


_RULES = {"MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum}
