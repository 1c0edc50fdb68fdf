"""Exposing: models whose inner values are results, and whose half values are rounded.

ONNX Runtime's CPU provider computes an operation without a half kernel in float32, and removes the
casts between two of them, with or without optimizations, so a half value between them is neither
rounded nor overflows. :func:`rounded` puts two ``Identity`` operations after each half value. The
provider runs both in half (a single one it runs in float32), so the value is stored in half, as on
a GPU.
"""

from __future__ import annotations

import copy
from typing import Any

from duotone.measuring.inputs import Side
from duotone.onnx.pipeline import inferred, inlined
from duotone.onnx.protos import FLOAT, NUMBERS, ONNX, GraphProto, ModelProto, NodeProto, graphs_in

TensorType = Any
"""A ``TypeProto.Tensor`` of ONNX."""
_HALVES = (NUMBERS["float16"], NUMBERS["bfloat16"])
_EXPOSED = (FLOAT, NUMBERS["float16"])
"""The types of values that become results; ONNX Runtime returns no bfloat16 to NumPy."""
_UNROUNDED = "duotone/unrounded/"
_ONCE = "duotone/once/"


def with_all_values(model: ModelProto) -> tuple[ModelProto, dict[str, tuple[Side, ...]]]:
    """Returns a model that also returns the float values of its outermost graph.

    Returns:
        The model, and the sides of each such value, as ONNX infers them: a size, a name, or
        ``None`` where a side is open. Values of unknown type are left out.
    """
    made = copy.deepcopy(model)
    types = _types(inferred(model))
    have = {value.name for value in made.graph.output}
    found: dict[str, tuple[Side, ...]] = {}
    for name in (name for node in made.graph.node for name in node.output):
        if name not in types or types[name].elem_type not in _EXPOSED:
            continue
        found[name] = sides_of(types[name])
        if name not in have:
            made.graph.output.add().name = name
            made.graph.output[-1].type.tensor_type.elem_type = types[name].elem_type
    return made, found


def rounded(model: ModelProto) -> ModelProto | None:
    """Returns a copy of a model in which the runtime rounds every half value, in nested graphs too.

    Returns:
        The model; ``None`` if ONNX infers no types, so that the half values are not known.
    """
    made = copy.deepcopy(inlined(model))
    types = inferred(made)
    if types is None:
        return None
    _round(made.graph, types)
    return made


def _round(graph: GraphProto, seen: GraphProto) -> None:
    types = _types(seen)
    nodes = [copy.deepcopy(node) for node in graph.node]
    del graph.node[:]
    for node, typed in zip(nodes, seen.node, strict=True):
        for inner, inner_typed in zip(graphs_in(node), graphs_in(typed), strict=True):
            _round(inner, inner_typed)
        halves = [n for n in node.output if n in types and types[n].elem_type in _HALVES]
        names = [_UNROUNDED + name if name in halves else name for name in node.output]
        del node.output[:]
        node.output.extend(names)
        graph.node.append(node)
        for name in halves:
            graph.node.append(_identity(_UNROUNDED + name, _ONCE + name))
            graph.node.append(_identity(_ONCE + name, name))


def _identity(operand: str, result: str) -> NodeProto:
    return ONNX.NodeProto(op_type="Identity", input=[operand], output=[result])


def _types(graph: GraphProto | None) -> dict[str, TensorType]:
    """Returns the tensor types of a graph's values by name; none if nothing was inferred."""
    values = () if graph is None else (*graph.value_info, *graph.output)
    return {v.name: v.type.tensor_type for v in values if v.type.HasField("tensor_type")}


def sides_of(type_: TensorType) -> tuple[Side, ...]:
    """Returns the sides of a tensor type: a size, a name, or ``None``."""
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in type_.shape.dim
    )
