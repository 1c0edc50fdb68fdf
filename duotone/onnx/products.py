"""Tells which products are sums of products: the axes of ``MatMul``, ``Gemm`` and ``Einsum``."""

from __future__ import annotations

from collections.abc import Sequence

from duotone.graph.graph import Value
from duotone.graph.products import Axes, Side, einsum_axes, matmul_axes, meaning_of_dot
from duotone.onnx.protos import NodeProto, attribute, domain_of


def meaning_of_product(node: NodeProto, operands: Sequence[Value | None]) -> str:
    """Returns the row of a product that fills no matrix instruction, like a ``dot_general``'s.

    Args:
        node: a node of any operation.
        operands: its operands; a value of unknown shape may be large.
    """
    rule = _RULES.get(node.op_type)
    known = [value for value in operands[:2] if value is not None]
    if rule is None or domain_of(node) or len(known) < 2:
        return ""
    lhs, rhs = known
    axes = rule(node, lhs.shape, rhs.shape)
    return "" if axes is None else meaning_of_dot(*axes)


def _matmul(node: NodeProto, lhs: Sequence[Side], rhs: Sequence[Side]) -> Axes | None:
    return matmul_axes(lhs, rhs)


def _gemm(node: NodeProto, lhs: Sequence[Side], rhs: Sequence[Side]) -> Axes | None:
    if len(lhs) != 2 or len(rhs) != 2:
        return None
    return matmul_axes(
        lhs[::-1] if attribute(node, "transA") else lhs,
        rhs[::-1] if attribute(node, "transB") else rhs,
    )


def _einsum(node: NodeProto, lhs: Sequence[Side], rhs: Sequence[Side]) -> Axes | None:
    return einsum_axes(attribute(node, "equation").decode(), lhs, rhs)


_RULES = {"MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum}
