"""The protobuf messages of ONNX models, which come with the ``onnx`` package, and their dtypes.

Every file of this package imports the library from here, so that one error names the missing
package. A type checker sees messages as ``Any``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def named(node: NodeProto) -> str:
    """Returns a node, for messages: its name, or its first result, and its operation."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {name!r} ({operation(node)})"


def operation(node: NodeProto) -> str:
    """Returns the operation of a node, with its domain if that is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
