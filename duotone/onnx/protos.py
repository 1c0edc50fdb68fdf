"""The protobuf messages of ONNX models, which come with the ``onnx`` package, and their dtypes.

Every file of this package imports the library from here, so that one error names the missing
package. A type checker sees messages as ``Any``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from duotone.errors import MissingExtraError

try:
    import onnx
    import onnx.inliner
    import onnx.shape_inference
    import onnx.version_converter
except ImportError as error:
    raise MissingExtraError("duotone.onnx", "onnx", "onnx") from error

ONNX: Any = onnx
"""The library."""
ModelProto = Any
"""An ``onnx.ModelProto``."""
GraphProto = Any
"""An ``onnx.GraphProto``."""
NodeProto = Any
"""An ``onnx.NodeProto``."""
TensorProto = Any
"""An ``onnx.TensorProto``."""

_NAMES = {"float": "float32", "double": "float64"}
DTYPES: Mapping[int, str] = MappingProxyType(
    {
        number: _NAMES.get(name.lower(), name.lower())
        for name, number in onnx.TensorProto.DataType.items()
        if number
    }
)
"""The name of each element type, as the rest of duotone writes it, by ONNX's number."""
NUMBERS: Mapping[str, int] = MappingProxyType({name: number for number, name in DTYPES.items()})
"""ONNX's number of each element type."""
FLOAT = NUMBERS["float32"]
NO_DTYPE = "none"
"""The dtype of a value that is not a tensor, or of a tensor of unknown type."""


def dtype_of(number: int) -> str:
    """Returns the dtype with a number of ONNX's; :data:`NO_DTYPE` for one that is not known."""
    return DTYPES.get(number, NO_DTYPE)


def dtype_in(text: str) -> str:
    """Returns the dtype in a schema's type (``tensor(float)``), or none if not a tensor.

    Example:
        >>> dtype_in("tensor(float)"), dtype_in("seq(tensor(float))")
        ('float32', 'none')
    """
    if not text.startswith("tensor("):
        return NO_DTYPE
    name = text[len("tensor(") : -1]
    return _NAMES.get(name, name)


def attribute(node: NodeProto, name: str) -> Any:
    """Returns the value of an attribute, or ``None`` without it."""
    for found in node.attribute:
        if found.name == name:
            return onnx.helper.get_attribute_value(found)
    return None


def graphs_in(node: NodeProto) -> Sequence[GraphProto]:
    """Returns the graphs among the attributes of a node."""
    return [
        graph
        for found in node.attribute
        for graph in ([found.g] if found.type == onnx.AttributeProto.GRAPH else found.graphs)
    ]


def nodes_in(graph: GraphProto) -> Iterator[NodeProto]:
    """Yields the nodes of a graph, and after each those of the graphs inside."""
    for node in graph.node:
        yield node
        for inner in graphs_in(node):
            yield from nodes_in(inner)


def opsets_of(model: ModelProto) -> dict[str, int]:
    """Returns the opset of each domain, ONNX's own as ``""``; 1 for ONNX's own if none is named."""
    found = {opset.domain: opset.version for opset in model.opset_import}
    return {"": found.get("ai.onnx", 1), **found}


def domain_of(node: NodeProto) -> str:
    """Returns the domain of a node's operation; empty for ONNX's own."""
    return "" if node.domain == "ai.onnx" else node.domain


def named(node: NodeProto) -> str:
    """Returns a node, for messages: its name, or its first result, and its operation."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {name!r} ({operation(node)})"


def operation(node: NodeProto) -> str:
    """Returns the operation of a node, with its domain if that is not ONNX's own."""
    return f"{node.domain}.{node.op_type}" if domain_of(node) else node.op_type
