"""Tensors: the float32 elements of ``Const`` nodes, and their conversion to half.

A ``TensorProto`` has its elements as bytes (``tensor_content``), or as a list in which the last
number stands for all that follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from duotone.errors import GraphDefError
from duotone.graph.elements import in_half, magnitude_of
from duotone.graph.graph import HalfType
from duotone.graph.magnitude import Magnitude
from duotone.tensorflow.protos import HALVES, NodeDef


def const_magnitude(node: NodeDef) -> Magnitude:
    """Returns the magnitude of the elements of a float32 ``Const``."""
    shape = [axis.size for axis in node.attr["value"].tensor.tensor_shape.dim]
    return magnitude_of([_elements(node)], shape)


def halve_const(node: NodeDef, half: HalfType) -> None:
    """Converts the elements of a float32 ``Const`` to half; too large numbers are saturated."""
    tensor = node.attr["value"].tensor
    made = in_half(_elements(node), half)
    is_list = not tensor.tensor_content
    tensor.ClearField("tensor_content")
    tensor.ClearField("float_val")
    tensor.dtype = HALVES[half.name]
    if is_list:
        tensor.half_val.extend(made.view(np.uint16).tolist())
    else:
        tensor.tensor_content = made.tobytes()


def _elements(node: NodeDef) -> Any:
    """Returns the elements that a ``Const`` has in its message."""
    tensor = node.attr["value"].tensor
    if not tensor.tensor_content:
        return np.asarray(tensor.float_val, np.float32)
    if len(tensor.tensor_content) % 4:
        raise GraphDefError(
            f"node {node.name!r}: its tensor has {len(tensor.tensor_content)} bytes, which is not "
            "a number of float32 elements: the file is damaged."
        )
    return np.frombuffer(tensor.tensor_content, "<f4")
