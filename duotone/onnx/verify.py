"""Verify: checks that the dtypes of a rewritten model are consistent.

This checks duotone's own work: a failure is a bug in duotone, and nothing is written.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping

from duotone.errors import OnnxError, RewriteError
from duotone.onnx.hints import Hints
from duotone.onnx.protos import (
    NO_DTYPE,
    GraphProto,
    ModelProto,
    domain_of,
    dtype_of,
    graphs_in,
    opsets_of,
)
from duotone.onnx.schemas import signature_of
from duotone.onnx.types import results


def verify(model: ModelProto) -> ModelProto:
    """Returns the model if its types are consistent.

    Raises:
        RewriteError: they are not.
    """
    try:
        _walk(model.graph, {}, opsets_of(model))
    except (OnnxError, KeyError) as error:
        raise RewriteError(
            f"the rewritten model is not valid: {error} This is a bug in duotone; please report "
            "the model."
        ) from error
    return model


def _walk(graph: GraphProto, outer: MutableMapping[str, str], opsets: Mapping[str, int]) -> None:
    known: MutableMapping[str, str] = ChainMap({}, outer)
    said = Hints(graph).dtype
    for value in graph.input:
        known[value.name] = said(value.name)
    for tensor in graph.initializer:
        known[tensor.name] = dtype_of(tensor.data_type)
    for sparse in graph.sparse_initializer:
        known[sparse.values.name] = dtype_of(sparse.values.data_type)
    for node in graph.node:
        inner = graphs_in(node)
        for found in inner:
            _walk(found, known, opsets)
        operands = [known[name] if name else "" for name in node.input]
        if node.op_type == "If" and inner:
            made = [Hints(inner[0]).dtype(value.name) for value in inner[0].output]
        elif inner:
            made = [said(name) for name in node.output]
        else:
            domain = domain_of(node)
            schema = signature_of(node.op_type, domain, opsets.get(domain, 1))
            made = results(node, schema, operands, said)
        for name, dtype in zip(node.output, made, strict=True):
            if name:
                known[name] = dtype
    for value in graph.output:
        dtype, declared = known[value.name], said(value.name)
        if NO_DTYPE not in (dtype, declared) and dtype != declared:
            raise OnnxError(f"the result {value.name!r} is {dtype}, not {declared}.")
