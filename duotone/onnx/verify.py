"""Verify: checks that the dtypes of a rewritten model are consistent.

This checks duotone's own work: a failure is a bug in duotone, and nothing is written.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping

from duotone.errors import OnnxError, RewriteError
from duotone.onnx.protos import NO_DTYPE, GraphProto, ModelProto, dtype_of, graphs_in
from duotone.onnx.schemas import signature
from duotone.onnx.types import results


def verify(model: ModelProto) -> ModelProto:
    """Returns the model if its types are consistent.

    Raises:
        RewriteError: they are not.
    """
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    opsets.setdefault("", opsets.get("ai.onnx", 1))
    try:
        _walk(model.graph, {}, opsets)
    except (OnnxError, KeyError) as error:
        raise RewriteError(
            f"the rewritten model is not valid: {error} This is a bug in duotone; please report "
            "the model."
        ) from error
    return model


def _said(graph: GraphProto) -> dict[str, str]:
    values = (*graph.input, *graph.output, *graph.value_info)
    return {
        value.name: dtype_of(value.type.tensor_type.elem_type)
        for value in values
        if value.type.HasField("tensor_type")
    }


def _walk(graph: GraphProto, outer: MutableMapping[str, str], opsets: Mapping[str, int]) -> None:
    known: MutableMapping[str, str] = ChainMap({}, outer)
    said = _said(graph)
    for value in graph.input:
        known[value.name] = said.get(value.name, NO_DTYPE)
    for tensor in graph.initializer:
        known[tensor.name] = dtype_of(tensor.data_type)
    for sparse in graph.sparse_initializer:
        known[sparse.values.name] = dtype_of(sparse.values.data_type)
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        inner = graphs_in(node)
        for found in inner:
            _walk(found, known, opsets)
        schema = None if inner else signature(node.op_type, domain, opsets.get(domain, 1))
        operands = [known[name] if name else "" for name in node.input]
        if inner:
            made = [said.get(name, NO_DTYPE) for name in node.output]
            if node.op_type == "If":
                made = [_said(inner[0]).get(value.name, NO_DTYPE) for value in inner[0].output]
        else:
            made = results(node, schema, operands, lambda name: said.get(name, NO_DTYPE))
        for name, dtype in zip(node.output, made, strict=True):
            if name:
                known[name] = dtype
    for value in graph.output:
        dtype = known[value.name]
        if NO_DTYPE not in (dtype, said.get(value.name, NO_DTYPE)) and dtype != said[value.name]:
            raise OnnxError(f"the result {value.name!r} is {dtype}, not {said[value.name]}.")
