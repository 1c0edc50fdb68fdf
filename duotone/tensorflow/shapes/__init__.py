"""Shapes: how large each value of a GraphDef is, as far as its constants and attributes say.

``find`` walks a graph; the rules are grouped by family in ``algebra``, ``arrays`` and ``networks``.
"""

from duotone.tensorflow.shapes.find import Shapes
from duotone.tensorflow.shapes.operation import Shape, count_elements

__all__ = ["Shape", "Shapes", "count_elements"]
