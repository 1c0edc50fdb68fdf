"""Find: the shapes of all values of a graph, in the order in which nodes can run.

::

    shape of each output   _output_shapes if TensorFlow recorded it, else the op's rule, else
                           unknown
    value of each output   of small integer vectors: shapes that the graph computes

A dimension that is not known is None and counts as 1; a shape that is not known is None. This
ignores the loop edges of a Merge, since a loop keeps shapes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from duotone.tensorflow.protos import NodeDef
from duotone.tensorflow.shapes.algebra import ALGEBRA
from duotone.tensorflow.shapes.arrays import ARRAYS
from duotone.tensorflow.shapes.networks import NETWORKS
from duotone.tensorflow.shapes.operation import (
    Numbers,
    Operation,
    Shape,
    ShapeRule,
    count_elements,
    shape_of_proto,
)
from duotone.tensorflow.shapes.values import LARGEST_VALUE, VALUES, constant_value
from duotone.tensorflow.units import Units, split_input

GUESSED_DIMENSION = 32
"""The size that a guess takes for an unknown dimension, mostly the batch."""

SHAPE_RULES: dict[str, ShapeRule] = {**ALGEBRA, **ARRAYS, **NETWORKS}
"""The shape rule of each op that has one."""


class Shapes:
    """The shapes of a graph's values, found once and only when they are first asked for.

    A guess is a likely shape where the true one is not known: a window of unknown size is small,
    and an op of unknown shape gives as much as its largest input has.

    Args:
        units: the units of the graph.
    """

    def __init__(self, units: Units) -> None:
        self._units = units

    @functools.cached_property
    def known(self) -> Sequence[Sequence[Shape]]:
        """For each node, the shapes of its outputs; None for one that is not known."""
        return self._found.shapes

    @functools.cached_property
    def guessed(self) -> Sequence[Sequence[Shape]]:
        """For each node, the shapes of its outputs, with guesses."""
        return _guess(self._units, self._found).shapes

    def elements(self, node: int, port: int) -> int | None:
        """Returns the number of elements of a port; None where the shape is not known."""
        return count_elements(self.known[node][port])

    def guessed_elements(self, node: int, port: int) -> int | None:
        """Returns a likely number of elements of a port."""
        return count_elements(self.guessed[node][port], GUESSED_DIMENSION)

    @functools.cached_property
    def _found(self) -> _Found:
        units = self._units
        found = _Found.nothing(units)
        for position in units.order:
            found.add(units, position)
        return found


def shape_of_port(text: str, by_name: Mapping[str, NodeDef], depth: int = 8) -> Shape:
    """Returns the shape of one value, found from the nodes before it alone."""
    name, port = split_input(text)
    node = by_name.get(name)
    if node is None or not depth:
        return None
    inputs = [text for text in node.input if not text.startswith("^")]
    before = [by_name.get(text) for text in inputs]
    operation = Operation(
        node,
        [shape_of_port(text, by_name, depth - 1) for text in inputs],
        [constant_value(one) if one is not None and one.op == "Const" else None for one in before],
        port + 1,
    )
    return _shapes(operation, SHAPE_RULES.get(node.op))[port]


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """By node, the shapes and the values of its outputs."""

    shapes: list[Sequence[Shape]]
    values: list[Sequence[Numbers]]

    @classmethod
    def nothing(cls, units: Units) -> _Found:
        """Returns None for each output."""
        unknown = [(None,) * len(ports) for ports in units.outputs]
        return cls([*unknown], [*unknown])

    def add(self, units: Units, position: int, *, guess: bool = False) -> None:
        """Finds the shapes and values of one node, whose inputs were found before."""
        node, shapes, values = units.nodes[position], self.shapes, self.values
        sources, count = units.sources[position], len(units.outputs[position])
        if not count:
            return
        operation = Operation(
            node,
            [shapes[n][p] for n, p in sources],
            [values[n][p] for n, p in sources],
            count,
            guess,
        )
        shapes[position] = _shapes(operation, SHAPE_RULES.get(node.op))
        rule = VALUES.get(node.op)
        if rule is not None:
            found = [None if v and len(v) > LARGEST_VALUE else v for v in rule(operation)]
            values[position] = (found + [None] * count)[:count]


def _guess(units: Units, known: _Found) -> _Found:
    """Returns shapes with guesses; a node keeps what is known if no guess reaches it."""
    found = _Found(list(known.shapes), list(known.values))
    changed: set[int] = set()
    for position in units.order:
        reached = any(source in changed for source, _ in units.sources[position])
        before = known.shapes[position]
        if reached or any(shape is None or None in shape for shape in before):
            found.add(units, position, guess=True)
            same_shapes = found.shapes[position] == before
            if not same_shapes or found.values[position] != known.values[position]:
                changed.add(position)
    return found


def _shapes(operation: Operation, rule: ShapeRule | None) -> Sequence[Shape]:
    """Returns the shapes of a node's outputs, one for each."""
    node, count = operation.node, operation.outputs
    if "_output_shapes" in node.attr:
        known = [shape_of_proto(proto) for proto in node.attr["_output_shapes"].list.shape]
        if len(known) == count and None not in known:
            return known
    try:
        found = list(rule(operation)) if rule is not None else []
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # The shapes contradict each other, one lacks the rank that the op needs, or an equation is
        # none: such a graph fails at run time, which is not for a rewrite to say.
        found = []
    found = (found + [None] * count)[:count]
    if operation.guess and None in found:
        known = [shape for shape in operation.shapes if shape is not None]
        largest = max(known, key=lambda shape: count_elements(shape) or 0, default=None)
        found = [largest if shape is None else shape for shape in found]
    return found
