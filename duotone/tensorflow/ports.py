"""Ports: the values of a neutral graph, one for each output port of a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from duotone.graph.graph import FULL_DTYPE, Node, Value
from duotone.graph.magnitude import Magnitude
from duotone.ops.traits import Trait
from duotone.tensorflow.protos import dtype_of
from duotone.tensorflow.shapes import Shape, Shapes, count_elements
from duotone.tensorflow.units import Units

ELEMENTS = -1
"""The port of the elements that a writer puts into a list of tensors."""
INITIAL = -2
"""The port of the argument that a loop's first iteration gets."""


class Ports:
    """Values by port, in the order in which they are added.

    Args:
        units: of the graph.
        shapes: of their values.
        body: by node, the index of its body.

    Attributes:
        values: the values.
        found: by node and port, the index of its value.
    """

    def __init__(self, units: Units, shapes: Shapes, body: Sequence[int]) -> None:
        self._units, self._shapes, self._body = units, shapes, body
        self.values: list[Value] = []
        self.found: dict[tuple[int, int], int] = {}

    def add(
        self, position: int, port: int, producer: int = -1, constant: Magnitude | None = None
    ) -> int:
        """Adds the value of a port; a reader that came first may have added it."""
        index = self.found.get((position, port), len(self.values))
        dtype, shape, size = self._known_of(position, port)
        sides = ("?",) if shape is None else tuple("?" if d is None else d for d in shape)
        value = Value(index, size, sides, dtype, producer, self._body[position], constant)
        if index == len(self.values):
            self.values.append(value)
            self.found[position, port] = index
        else:
            self.values[index] = value
        return index

    def add_elements(self, position: int, written: int, producer: int) -> int:
        """Adds what a writer puts into a list of tensors."""
        index = self.add(position, ELEMENTS, producer)
        like = self.values[written]
        self.values[index] = dataclasses.replace(
            self.values[index], size=like.size, shape=like.shape
        )
        return index

    def operand(self, source: tuple[int, int]) -> int:
        """Returns the value of a node's port, which may not have been read yet."""
        found = self.found.get(source)
        return self.add(*source) if found is None else found

    def grow_unknown(self, nodes: Sequence[Node]) -> None:
        """Makes operands with unknown sides as large as results of the same rank.

        The sides of a result may follow from another operand: a convolution by a filter of unknown
        shape has as many features as the bias that is added.
        """
        pointwise = {Trait.ADDS, Trait.MULTIPLIES, Trait.DIVIDES, Trait.CHOOSES}
        pointwise |= {Trait.BOUNDS, Trait.ACTIVATION}
        for node in reversed(nodes):
            if not node.traits.isdisjoint(pointwise):
                self._grow(self.values[node.outputs[0]], node.inputs)

    def _grow(self, result: Value, operands: Iterable[int]) -> None:
        for operand in map(self.values.__getitem__, operands):
            same_rank = len(operand.shape) == len(result.shape) > 1
            if same_rank and "?" in operand.shape and operand.size < result.size:
                self.values[operand.index] = dataclasses.replace(operand, size=result.size)

    def _known_of(self, position: int, port: int) -> tuple[str, Shape, int]:
        """Returns the dtype, shape and size of a port; nothing is known of elements in a list."""
        if port == ELEMENTS:
            return FULL_DTYPE, None, 1
        port = max(port, 0)
        known = self._shapes.known[position]
        shape = known[port] if port < len(known) else None
        dtype = dtype_of(self._units.dtype[self._units.outputs[position][port]])
        return dtype, shape, self._size(position, port, shape)

    def _size(self, position: int, port: int, shape: Shape) -> int:
        """Returns the number of elements, guessed where a side is unknown."""
        known = count_elements(shape)
        if known is None or shape is None or None in shape:
            return self._shapes.guessed_elements(position, port) or 1
        return known
