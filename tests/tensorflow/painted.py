"""What the tests of the GraphDef painters ask of a rewrite."""

from __future__ import annotations

from typing import Any

from duotone import tensorflow
from duotone.tensorflow import RewriteResult
from duotone.tensorflow.op_registry import define_function, find_op
from duotone.tensorflow.protos import FLOAT
from duotone.tensorflow.units import make_units
from tests.tensorflow.graphdefs import INT32, Builder

__all__ = ["INT32", "Builder", "check_types", "half", "placeholder", "rewrite"]


def rewrite(graph: Any, *, painter: str | None = "tensorflow", **given: Any) -> RewriteResult:
    """:func:`duotone.tensorflow.rewrite` with TensorFlow's passes."""
    return tensorflow.rewrite(graph, painter=painter, **given)


def half(result: RewriteResult) -> list[str]:
    """The type attributes that became half, ``"node"`` for T and ``"node.Tin[0]"`` for others."""
    return [
        node if attribute == "T" else f"{node}.{attribute}"
        for node, attributes in result.painting.items()
        for attribute, precision in attributes.items()
        if precision != "f32"
    ]


def placeholder(b: Builder, name: str = "x", size: int = 4) -> str:
    """A square float32 placeholder."""
    return b.add("Placeholder", name=name, dtype=FLOAT, shape=(size, size))


def check_types(graph: Any) -> None:
    """Fails if an input is not of the type of what it reads, in the graph or a function's body."""
    functions = {f.signature.name: define_function(f.signature) for f in graph.library.function}
    units = make_units(graph, lambda op: functions.get(op) or find_op(op))
    for node, sources in enumerate(units.sources):
        for slot, (source, port) in enumerate(sources):
            given = units.dtype[units.outputs[source][port]]
            wanted = units.dtype[units.inputs[node][slot]]
            assert given == wanted, f"{units.nodes[node].name} input {slot}: {given} for {wanted}"
