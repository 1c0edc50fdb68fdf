"""Operation: a node as a shape rule sees it, and the types of shapes and small values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from duotone.tensorflow.protos import NodeDef

Shape = tuple[int | None, ...] | None
Numbers = tuple[int | None, ...] | None
"""The value of a small vector of whole numbers, or None."""


@dataclasses.dataclass(slots=True)  # a frozen one takes four times as long to make
class Operation:
    """A node as a shape rule sees it.

    Attributes:
        node: the node.
        shapes: the shapes of its data inputs.
        values: the values of its data inputs, where they are small vectors of whole numbers.
        outputs: how many outputs it has.
        guess: whether a likely shape is wanted where the true one is not known.
    """

    node: NodeDef
    shapes: Sequence[Shape]
    values: Sequence[Numbers]
    outputs: int
    guess: bool = False

    def shape(self, slot: int) -> Shape:
        """Returns the shape of an input; None if there is no such input either."""
        return self.shapes[slot] if slot < len(self.shapes) else None

    def value(self, slot: int) -> Numbers:
        """Returns the value of an input."""
        return self.values[slot] if slot < len(self.values) else None

    def known(self, slot: int) -> tuple[int | None, ...]:
        """Returns the shape of an input.

        Raises:
            LookupError: it is not known, which also ends the rule that asks.
        """
        if (shape := self.shape(slot)) is None:
            raise LookupError
        return shape

    def numbers(self, slot: int) -> tuple[int | None, ...]:
        """Returns the value of an input; raises as :meth:`known` does."""
        if (value := self.value(slot)) is None:
            raise LookupError
        return value

    def axis(self, slot: int, rank: int) -> int:
        """Returns the axis that an input names, from 0 on; raises as :meth:`known` does."""
        if (axis := self.numbers(slot)[0]) is None:
            raise LookupError
        return axis % rank

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an integer attribute."""
        return self.node.attr[name].i if name in self.node.attr else default

    def boolean(self, name: str) -> bool:
        """Returns a boolean attribute; absent is False."""
        return name in self.node.attr and self.node.attr[name].b

    def text(self, name: str, default: str = "") -> str:
        """Returns a string attribute."""
        return self.node.attr[name].s.decode() if name in self.node.attr else default

    def integers(self, name: str) -> list[int]:
        """Returns an attribute that lists integers; empty if it is absent."""
        return list(self.node.attr[name].list.i) if name in self.node.attr else []

    def attribute_shape(self) -> Shape:
        """Returns the attribute ``shape``."""
        return shape_of_proto(self.node.attr["shape"].shape) if "shape" in self.node.attr else None


ShapeRule = Callable[[Operation], Sequence[Shape]]
ValueRule = Callable[[Operation], Sequence[Numbers]]


def shape_of_proto(proto: Any) -> Shape:
    """Returns a TensorShapeProto as a shape."""
    if proto.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in proto.dim)


def count_elements(shape: Shape, unknown: int = 1) -> int | None:
    """Returns the elements of a shape.

    Args:
        shape: the shape.
        unknown: the size to assume for an unknown dimension.

    Example:
        >>> count_elements((None, 28, 28)), count_elements(None)
        (784, None)
    """
    return None if shape is None else math.prod(unknown if d is None else d for d in shape)
