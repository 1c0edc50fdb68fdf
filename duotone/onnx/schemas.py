"""Schemas: the allowed types of an operation's operands and results, from ONNX's own schemas.

An operation without a schema (of a custom domain, or of an older runtime) has no signature, and
duotone does not change it. ONNX Runtime had some operations before ONNX: its optimizer writes
``LayerNormalization`` into models of opset 14, and ONNX has it from 17 on. Such an operation has
the signature of its first schema.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from duotone.onnx.protos import ONNX, dtype_in

_Formal = Any


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One formal operand or result.

    Attributes:
        variable: the type variable that it shares with others, or empty.
        dtype: its dtype, if it has no variable.
        homogeneous: false for a list whose members may have different types.
    """

    variable: str
    dtype: str
    homogeneous: bool


@dataclasses.dataclass(frozen=True, slots=True)
class OperationTypes:
    """The types of an operation in one opset.

    Attributes:
        inputs: formal operands.
        outputs: formal results.
        allowed: the dtypes that each type variable may be.
        many_inputs: whether the last operand may be repeated.
        many_outputs: whether the last result may be repeated.
        fewest: the least number of operands.
    """

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    allowed: Mapping[str, frozenset[str]]
    many_inputs: bool
    many_outputs: bool
    fewest: int

    def operand(self, slot: int) -> Parameter | None:
        """Returns the formal operand in a slot."""
        return _at(self.inputs, slot, self.many_inputs)

    def result(self, slot: int) -> Parameter | None:
        """Returns the formal result in a slot."""
        return _at(self.outputs, slot, self.many_outputs)


def _at(formals: Sequence[Parameter], slot: int, many: bool) -> Parameter | None:
    if slot < len(formals):
        return formals[slot]
    return formals[-1] if many and formals else None


@functools.cache
def _first_versions() -> dict[str, int]:
    """Returns the first opset of each of ONNX's own operations."""
    first: dict[str, int] = {}
    for schema in ONNX.defs.get_all_schemas_with_history():
        if not schema.domain:
            version = int(schema.since_version)
            first[schema.name] = min(first.get(schema.name, version), version)
    return first


def signature_of(operation: str, domain: str, opset: int) -> OperationTypes | None:
    """Returns the signature of an operation, also if only a newer opset has it; else ``None``."""
    found = signature(operation, domain, opset)
    first = 0 if domain else _first_versions().get(operation, 0)
    return signature(operation, domain, first) if found is None and first > opset else found


@functools.cache
def signature(operation: str, domain: str, opset: int) -> OperationTypes | None:
    """Returns the signature of an operation, or ``None`` if ONNX has none."""
    try:
        schema = ONNX.defs.get_schema(operation, opset, domain)
    except ONNX.defs.SchemaError:
        return None
    variables = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    many = ONNX.defs.OpSchema.FormalParameterOption.Variadic

    def formal(found: _Formal) -> Parameter:
        shared = found.type_str in variables
        dtype = "none" if shared else dtype_in(found.type_str)
        return Parameter(found.type_str if shared else "", dtype, found.is_homogeneous)

    return OperationTypes(
        tuple(map(formal, schema.inputs)),
        tuple(map(formal, schema.outputs)),
        {name: frozenset(map(dtype_in, types)) for name, types in variables.items()},
        bool(schema.inputs) and schema.inputs[-1].option == many,
        bool(schema.outputs) and schema.outputs[-1].option == many,
        schema.min_input,
    )
