"""Types: the dtype of every result of a node, by its schema and the dtypes of its operands.

Shapes come from ONNX's shape inference if it knows them. Dtypes must always be known, so this
module infers them node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from duotone.errors import OnnxError
from duotone.onnx.protos import FLOAT, NO_DTYPE, NodeProto, attribute, dtype_of, graphs_in, named
from duotone.onnx.runtime_types import result_dtypes
from duotone.onnx.schemas import OperationTypes

BY_ATTRIBUTE: Mapping[str, str] = {
    "Cast": "to",
    "RandomNormal": "dtype",
    "RandomUniform": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniformLike": "dtype",
    "EyeLike": "dtype",
    "Multinomial": "dtype",
    "Bernoulli": "dtype",
    "BlackmanWindow": "output_datatype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "DequantizeLinear": "output_dtype",
    "BitCast": "to",
}
"""The attribute that gives the dtype of a result."""
_DEFAULTS = {
    "RandomNormal": "float32",
    "RandomUniform": "float32",
    "Multinomial": "int32",
    "BlackmanWindow": "float32",
    "HammingWindow": "float32",
    "HannWindow": "float32",
    "MelWeightMatrix": "float32",
}
_OF_OPERAND = {
    "RandomNormalLike": 0,
    "RandomUniformLike": 0,
    "EyeLike": 0,
    "Bernoulli": 0,
    "DequantizeLinear": 1,
    "CastLike": 1,
}
"""The operand whose dtype a result has if no attribute gives it."""
_CONSTANTS = {
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
    "value_string": "string",
    "value_strings": "string",
}


def check_operands(node: NodeProto, found: OperationTypes | None) -> None:
    """Checks that a node has a result and the operands that its operation needs.

    Raises:
        OnnxError: it does not.
    """
    if not node.output:
        raise OnnxError(f"{named(node)} has no result.")
    if found is None or graphs_in(node):  # the first operand of a Scan may be omitted
        return
    given = sum(bool(name) for name in node.input[: found.fewest])
    if given < found.fewest:
        raise OnnxError(f"{named(node)} has {given} of the {found.fewest} operands that it needs.")


def bindings(node: NodeProto, found: OperationTypes, operands: Sequence[str]) -> dict[str, str]:
    """Returns the dtype of each type variable of a node; an omitted operand has an empty dtype.

    Raises:
        OnnxError: two operands contradict each other, or the operation does not accept a dtype.
    """
    bound: dict[str, tuple[str, str]] = {}
    for slot, dtype in enumerate(operands):
        formal = found.operand(slot)
        if not dtype or dtype == NO_DTYPE or formal is None:
            continue
        name = node.input[slot]
        if not formal.variable:
            if formal.dtype not in (NO_DTYPE, dtype):
                raise OnnxError(
                    f"{named(node)}: its operand {name!r} is {dtype}, and the operation takes "
                    f"{formal.dtype} there."
                )
            continue
        allowed = found.allowed[formal.variable]
        if dtype not in allowed:
            raise OnnxError(
                f"{named(node)}: its operand {name!r} is {dtype}, which the operation does not "
                "take in this opset."
            )
        before = bound.setdefault(formal.variable, (dtype, name))
        if formal.homogeneous and before[0] != dtype:
            raise OnnxError(
                f"{named(node)}: {before[1]!r} is {before[0]} and {name!r} is {dtype}, where both "
                "must be the same."
            )
    return {variable: dtype for variable, (dtype, _) in bound.items()}


def results(
    node: NodeProto,
    found: OperationTypes | None,
    operands: Sequence[str],
    declared: Callable[[str], str],
) -> list[str]:
    """Returns the dtype of each result of a node without a graph inside.

    Args:
        node: the node.
        found: its signature; ``None`` without one.
        operands: the dtype of each operand; empty for an omitted one.
        declared: returns the dtype of a value in the file, or no dtype.
    """
    if found is None:
        known = result_dtypes(node, operands)
        return [
            (declared(name) if dtype == NO_DTYPE else dtype) if name else ""
            for name, dtype in zip(node.output, known, strict=True)
        ]
    bound = bindings(node, found, operands)
    first = _special(node, operands)
    made = []
    for slot, name in enumerate(node.output):
        formal = found.result(slot)
        dtype = NO_DTYPE
        if slot == 0 and first:
            dtype = first
        elif formal is not None:
            dtype = bound.get(formal.variable, NO_DTYPE) if formal.variable else formal.dtype
            if dtype == NO_DTYPE and formal.variable:
                only = found.allowed[formal.variable]
                dtype = next(iter(only)) if len(only) == 1 else _stashed(node, slot)
        made.append((declared(name) if dtype == NO_DTYPE else dtype) if name else "")
    return made


def _stashed(node: NodeProto, slot: int) -> str:
    """Returns the dtype of the statistics that a norm returns."""
    if node.op_type == "LayerNormalization" and slot:
        return dtype_of(attribute(node, "stash_type") or FLOAT)
    return NO_DTYPE


def _special(node: NodeProto, operands: Sequence[str]) -> str:
    """Returns the dtype of the first result if an attribute gives it; empty for most operations."""
    op = node.op_type
    if op in ("Constant", "ConstantOfShape"):
        return _of_constant(node)
    if op in BY_ATTRIBUTE:
        number = attribute(node, BY_ATTRIBUTE[op])
        if number:
            return dtype_of(number)
    if op in _OF_OPERAND:
        slot = _OF_OPERAND[op]
        return operands[slot] if slot < len(operands) else ""
    return _DEFAULTS.get(op, "")


def _of_constant(node: NodeProto) -> str:
    for found in node.attribute:
        if found.name == "value":
            return dtype_of(found.t.data_type)
        if found.name == "sparse_value":
            return dtype_of(found.sparse_tensor.values.data_type)
        if found.name in _CONSTANTS:
            return _CONSTANTS[found.name]
    return "float32" if node.op_type == "ConstantOfShape" else NO_DTYPE
