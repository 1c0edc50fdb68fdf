"""The protobuf messages of TensorFlow graphs, which come with the ``tensorboard`` package.

Every file of this package imports its message classes from here, so that one error names the
missing package. A type checker sees messages as ``Any``: the generated classes have no annotations,
and graphs of TensorFlow's own classes (the same messages, other Python classes) are accepted too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from duotone.errors import MissingExtraError

try:
    from tensorboard.compat.proto import graph_pb2, types_pb2
except ImportError as error:
    raise MissingExtraError("duotone.tensorflow", "tensorboard", "tensorboard") from error

GraphDef = Any
"""A ``tensorflow.GraphDef``."""
NodeDef = Any
"""A ``tensorflow.NodeDef``."""
FunctionDef = Any
"""A ``tensorflow.FunctionDef``."""
AttrValue = Any
"""A ``tensorflow.AttrValue``."""

_GRAPHS: Any = graph_pb2
_TYPES: Any = types_pb2
new_graph = _GRAPHS.GraphDef
"""The class of an empty graph."""


def library_of(graph: GraphDef) -> dict[str, FunctionDef]:
    """Returns the functions of a graph's library by name."""
    return {function.signature.name: function for function in graph.library.function}


def bodies_of(graph: GraphDef) -> Iterator[tuple[str, Any]]:
    """Yields the nodes of the graph, named ``""``, then those of each function with its name."""
    yield "", graph.node
    for function in graph.library.function:
        yield function.signature.name, function.node_def


def functions_named(node: NodeDef) -> Iterator[Any]:
    """Yields the parts of a node's attributes that name functions, each with a ``name``."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        elif value.HasField("list"):
            yield from value.list.func


INVALID = int(_TYPES.DT_INVALID)
FLOAT = int(_TYPES.DT_FLOAT)
HALF = int(_TYPES.DT_HALF)
BFLOAT16 = int(_TYPES.DT_BFLOAT16)
HALVES = {"float16": HALF, "bfloat16": BFLOAT16}
BOOL = int(_TYPES.DT_BOOL)
STRING = int(_TYPES.DT_STRING)
VARIANT = int(_TYPES.DT_VARIANT)
RESOURCE = int(_TYPES.DT_RESOURCE)
QUANTIZED = frozenset(
    int(getattr(_TYPES, name))
    for name in ("DT_QINT8", "DT_QUINT8", "DT_QINT16", "DT_QUINT16", "DT_QINT32")
)
"""Numbers of data types."""


_NEUTRAL = {"float": "float32", "half": "float16", "double": "float64"}
_REFERENCE = 100
"""The number of a reference type is larger by this than that of its type."""


@functools.cache
def dtype_of(number: int) -> str:
    """Returns the neutral name of a data type, such as ``float32``; ``none`` without numbers.

    Example:
        >>> dtype_of(1), dtype_of(19), dtype_of(7)
        ('float32', 'float16', 'none')
    """
    name = type_name(number - _REFERENCE if number > _REFERENCE else number)
    return "none" if name in _NO_NUMBERS else _NEUTRAL.get(name, name)


_NO_NUMBERS = ("invalid", "string", "resource", "variant")


def type_name(number: int) -> str:
    """Returns a data type's name as TensorFlow's logs write it: ``float``, ``half``, ``int32``.

    Args:
        number: the number of the data type; unknown numbers are given back as digits.
    """
    values = _TYPES.DataType.DESCRIPTOR.values_by_number
    return values[number].name.removeprefix("DT_").lower() if number in values else str(number)
