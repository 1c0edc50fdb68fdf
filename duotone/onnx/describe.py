"""Describe: which slots of a node may be half, its name on the lists, and its cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from duotone.graph.elements import EXACT_DTYPES
from duotone.graph.graph import FULL_DTYPE, Attribute, HalfType, Value
from duotone.onnx.opsets import NOT_YET
from duotone.onnx.products import meaning_of_product
from duotone.onnx.protos import NO_DTYPE, NodeProto, attribute, operation
from duotone.onnx.schemas import OperationTypes, Parameter
from duotone.onnx.types import BY_ATTRIBUTE
from duotone.ops.entries import traits_of
from duotone.ops.onnx import FIXED, NEUTRAL, POSITIONS, TRAITS
from duotone.ops.traits import Trait

_KEPT: dict[str, frozenset[str]] = {
    "LayerNormalization": frozenset({"U"}),
    "Attention": frozenset({"U"}),
    "Range": frozenset({"T"}),
}
"""Type variables that stay float32: statistics, masks, counters."""
_UNTOLD = "the file does not tell the type of its result: add it to value_info"
"""Half operands may make the result half, which its readers would not know."""
_NUMBERS = ("alpha", "beta", "min", "max", "gamma")


def describe(
    node: NodeProto,
    found: OperationTypes | None,
    operands: Sequence[Value | None],
    results: Sequence[Value | None],
    half: HalfType,
    *,
    makers: Sequence[str],
    avoided: Collection[str],
    opted: Collection[str],
    refused: str,
) -> dict[str, Any]:
    """Returns the fields of a neutral node that describe it, without omitted or free operands.

    Args:
        node: the node.
        found: its signature, or ``None``.
        operands: its operands; ``None`` for an omitted one.
        results: its results; ``None`` for an omitted one.
        half: the half type.
        makers: the operations that make its operands.
        avoided: operations without a half kernel in the runtime.
        opted: operations without a signature that the policy lists.
        refused: why it cannot be half because of its constants, or empty.
    """
    name = operation(node)
    fixed = _fixed(node, operands, results, makers)
    if name in avoided:
        fixed = fixed or f"the runtime has no {half.name} kernel for {name}"

    kept = frozenset[str]() if found is None else _kept_variables(node.op_type, found)

    def may(value: Value | None, formal: Parameter | None) -> bool:
        if value is None or value.dtype != FULL_DTYPE or fixed:
            return False
        if found is None:
            return True
        if formal is None or not formal.variable:
            return False
        return formal.variable not in kept and half.name in found.allowed[formal.variable]

    ins = [may(v, found.operand(i) if found else None) for i, v in enumerate(operands)]
    outs = [may(v, found.result(i) if found else None) for i, v in enumerate(results)]
    floats = any(v is not None and v.dtype == FULL_DTYPE for v in (*operands, *results))
    if found is not None and floats and not fixed and not any(ins) and not any(outs):
        fixed = f"{name} takes no {half.name} {NOT_YET}"
    untold = any(v is not None and v.dtype == NO_DTYPE for v in results)
    if found is None and name in opted and untold:
        fixed = fixed or _UNTOLD
    fixed = fixed or refused
    free = Trait.SHAPES in traits_of(TRAITS, name)  # reads no element, so its operand stays
    # Either all results that share the type of the operands are half with them, or none is.
    read = [i for i, v in enumerate(operands) if v is not None and not free]
    made = [i for i, v in enumerate(results) if v is not None]
    attributes: dict[str, Attribute] = {"operands": tuple(read)}
    positions = tuple(at for at, slot in enumerate(read) if slot in POSITIONS.get(name, ()))
    if positions:
        attributes["positions"] = positions
    for text in _NUMBERS:
        number = attribute(node, text)
        if isinstance(number, float):
            attributes[text] = number
    weights = (attribute(node, text) for text in ("alpha", "beta"))
    if len(read) == 3 and math.prod(w for w in weights if isinstance(w, float)) < 0.0:
        attributes["subtracts"] = 1  # a Gemm
    known = found is not None or name in opted
    return {
        # A maximum of other than two values has no neutral name.
        "op": name if name in ("Max", "Min") and len(read) != 2 else NEUTRAL.get(name, name),
        "list_key": _listed_as(node, operands, results) if known else name,
        "half_inputs": tuple(ins[i] and not fixed for i in read),
        "half_outputs": tuple(outs[i] and not fixed for i in made),
        "flops": _flops(name, operands, results),
        "fixed": fixed,
        "attributes": attributes,
    }


def _kept_variables(op: str, found: OperationTypes) -> frozenset[str]:
    """Type variables that stay float32: those of positions alone, and those of :data:`_KEPT`."""
    slots, kept = POSITIONS.get(op, ()), _KEPT.get(op, frozenset[str]())
    if not slots:
        return kept
    others = {found.inputs[i].variable for i in range(len(found.inputs)) if i not in slots}
    return kept | {found.inputs[i].variable for i in slots} - others


def _fixed(
    node: NodeProto,
    operands: Sequence[Value | None],
    results: Sequence[Value | None],
    makers: Sequence[str],
) -> str:
    """Returns why a node cannot be half even if its schema allows it, or empty."""
    op = node.op_type
    if op in FIXED:
        return FIXED[op]
    if node.domain == "ai.onnx.ml":
        return "its attributes are float32"
    if op == "Attention" and len(node.output) > 3 and node.output[3]:
        return "returns its scores, which a mask makes larger than half"
    if "DequantizeLinear" in makers:
        return "reads what was dequantised: part of a quantised operation"
    if op in BY_ATTRIBUTE and op != "Cast":
        return "an attribute gives its type"
    if op == "BatchNormalization" and attribute(node, "training_mode"):
        return "computes statistics for training"
    ins = {value.dtype for value in operands if value is not None}
    outs = {value.dtype for value in results if value is not None}
    if op == "Cast":
        return _fixed_cast(ins, outs)
    if FULL_DTYPE in ins | outs:
        for dtype in sorted(ins | outs):
            if dtype.startswith(("float", "bfloat", "complex")) and dtype != FULL_DTYPE:
                return f"mixes float32 with {dtype}: the model's own choice"
        if "none" in ins:
            return "reads a value whose type nothing tells"
    return ""


def _fixed_cast(ins: set[str], outs: set[str]) -> str:
    source, target = next(iter(ins), ""), next(iter(outs), "")
    if source == FULL_DTYPE and target.startswith(("float8", "float4", "float64", "string")):
        return f"converts to {target}"
    if target == FULL_DTYPE and source not in (*EXACT_DTYPES, FULL_DTYPE):
        return f"converts from {source}"
    return ""


def _listed_as(
    node: NodeProto, operands: Sequence[Value | None], results: Sequence[Value | None]
) -> str:
    """Returns the name by which a node is on a list; some operations have several meanings."""
    name = operation(node)
    ins = [value.dtype for value in operands if value is not None]
    if name == "Cast" and ins and results[0] is not None:
        exact = ins[0] in (*EXACT_DTYPES, FULL_DTYPE) and results[0].dtype == FULL_DTYPE
        return "CastExact" if exact else name
    if meaning := meaning_of_product(node, operands):
        return meaning
    if name == "Mul" and len(operands) == 2 and node.input[0] == node.input[1]:
        return "Square"
    if name == "Pow" and len(operands) > 1 and operands[1] is not None:
        constant = operands[1].constant
        if constant is not None and constant.low == constant.high in (0.0, 1.0, -1.0):
            return "ExactPower"
    if name in ("ScatterND", "ScatterElements"):
        reduction = attribute(node, "reduction")
        if reduction not in (None, b"none"):
            return "CumSum"  # adds up
    return name


def _flops(name: str, operands: Sequence[Value | None], results: Sequence[Value | None]) -> float:
    """Returns the FLOPs, two for a multiply-add; unknown dimensions count as 1."""
    moves = Trait.MOVES in traits_of(TRAITS, name)
    if moves or not results or results[0] is None:
        return 0.0
    size = results[0].size
    operand = operands[0] if operands else None
    if name in ("MatMul", "Gemm") and operand is not None and operand.shape:
        last = operand.shape[-1]
        return 2.0 * size * (last if isinstance(last, int) else 1)
    kernel = operands[1] if len(operands) > 1 else None
    if name in ("Conv", "ConvTranspose") and kernel is not None and kernel.shape:
        sides = [side for side in kernel.shape[1:] if isinstance(side, int)]
        return 2.0 * size * math.prod(sides)
    return float(max([size, *[value.size for value in operands if value is not None]]))
