"""Find: the shapes of all values of a graph, in the order in which nodes can run.

::

    shape of each output   _output_shapes if TensorFlow recorded it, else the op's rule, else
                           unknown
    value of each output   of small integer vectors: shapes that the graph computes

A dimension that is not known is None and counts as 1; a shape that is not known is None. This
ignores the loop edges of a Merge, since a loop keeps shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from duotone.tensorflow.shapes.values import LARGEST_VALUE, VALUES
from duotone.tensorflow.units import Units

LOOP_BACK = ("NextIteration", "RefNextIteration")
"""Ops whose readers do not wait for them."""

ElementCount = Callable[[int, int], int | None]
"""(node, port) -> number of elements, None where the shape is not known."""

GUESSED_DIMENSION = 32
"""The size that a guess takes for an unknown dimension, mostly the batch."""

SHAPE_RULES: dict[str, ShapeRule] = {**ALGEBRA, **ARRAYS, **NETWORKS}
"""The shape rule of each op that has one."""


def find_shapes(units: Units, *, guess: bool = False) -> list[Sequence[Shape]]:
    """Returns the shapes of all outputs.

    Args:
        units: the units of the graph.
        guess: give a likely shape where the true one is not known: a window of unknown size is
            small, and an op of unknown shape gives as much as its largest input has.

    Returns:
        For each node, the shapes of its outputs.
    """
    nodes = units.nodes
    shapes: list[Sequence[Shape]] = [()] * len(nodes)
    values: list[Sequence[Numbers]] = [()] * len(nodes)
    for position in running_order(units):
        node = nodes[position]
        count = len(units.outputs[position])
        sources = units.sources[position]
        operation = Operation(
            node,
            [shapes[n][p] if p < len(shapes[n]) else None for n, p in sources],
            [values[n][p] if p < len(values[n]) else None for n, p in sources],
            count,
            guess,
        )
        shapes[position] = _shapes(operation, SHAPE_RULES.get(node.op))
        rule = VALUES.get(node.op)
        if rule is not None:
            found = rule(operation)
            values[position] = [None if v and len(v) > LARGEST_VALUE else v for v in found]
    return shapes


def running_order(units: Units) -> list[int]:
    """Positions of nodes after their inputs; ignores the back edges of loops."""
    readers: list[list[int]] = [[] for _ in units.nodes]
    waiting = [0] * len(units.nodes)
    for position, sources in enumerate(units.sources):
        for source, _ in sources:
            if units.nodes[source].op not in LOOP_BACK:
                readers[source].append(position)
                waiting[position] += 1
    order = [position for position, count in enumerate(waiting) if count == 0]
    for position in order:  # it grows on the way
        for reader in readers[position]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                order.append(reader)
    return order


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


def element_count(units: Units, *, guess: bool = False) -> ElementCount:
    """Returns a function that gives the elements of each port.

    Shapes are looked for when they are first asked for: a graph without casts needs none.

    Args:
        units: the units of the graph.
        guess: give a likely number where the true one is not known.
    """
    shapes: list[Sequence[Shape]] = []

    def elements(node: int, port: int) -> int | None:
        if not shapes:
            shapes.extend(find_shapes(units, guess=guess))
        return count_elements(shapes[node][port], GUESSED_DIMENSION if guess else 1)

    return elements
