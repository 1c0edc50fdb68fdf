"""Shapes: how large each value of a GraphDef is, as far as its constants and attributes say.

``find`` walks a graph; the rules are grouped by family in ``algebra``, ``arrays`` and ``networks``.
"""

from duotone.tensorflow.shapes.find import ElementCount, element_count, find_shapes, running_order
from duotone.tensorflow.shapes.operation import Shape, count_elements

__all__ = [
    "ElementCount",
    "Shape",
    "count_elements",
    "element_count",
    "find_shapes",
    "running_order",
]
