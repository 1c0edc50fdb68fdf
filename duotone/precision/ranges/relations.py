"""Relations: the findings of one pass over a graph, including relations between two values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from duotone.graph.graph import Node, Value
from duotone.precision.ranges.interval import Interval


@dataclasses.dataclass(frozen=True, slots=True)
class Relation:
    """The relation of a value to another one, its source.

    Attributes:
        kind: ``max`` (no element of the source is larger), ``shifted`` (the source less its
            maximum), ``exp`` (the exponential of that), ``sum`` (of a source with no negative
            elements), ``square`` (element by element), ``squares`` (at least ``factor`` times the
            sum of squares), ``norm`` (the square root of that) and ``inverse`` (the reciprocal of
            the norm).
        source: the source.
        labels: for each axis of the value, the axis of the source, or -1 if the value is constant
            along it.
        axes: axes of the source that were reduced.
        exact: for ``max``: whether the value is the maximum, and not something larger.
        factor: the factor of ``squares``.
        terms: number of elements that were reduced to one.
    """

    kind: str
    source: int
    labels: tuple[int, ...]
    axes: tuple[int, ...] = ()
    exact: bool = False
    factor: float = 1.0
    terms: int = 1


class Findings:
    """The findings of one pass over the nodes so far.

    Attributes:
        values: the values of the graph.
        known: intervals by value.
        relations: relations by value.
        origin: for a copy of a value, the first value that it is equal to.
        unit: values whose scale is about 1, so that their absolute error counts.
        numbered: results by operation and operands, to find repeated operations: people write a
            mean twice, once in the variance. It contains only operations between a sum and the
            difference of a value and its mean.
        sums: values that are sums of others, perhaps scaled and broadcast.
        moved: for a transposed value, its operand and the permutation.
        compared: for a comparison, by compared value, the intervals of its elements where the
            comparison is false and where it is true.
    """

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.known: dict[int, Interval] = {}
        self.relations: dict[int, Relation] = {}
        self.origin: dict[int, int] = {}
        self.unit: set[int] = set()
        self.numbered: dict[tuple[object, ...], int] = {}
        self.sums: set[int] = set()
        self.moved: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.compared: dict[int, dict[int, tuple[Interval, Interval]]] = {}

    def same(self, value: int) -> int:
        """Returns the first value that ``value`` is equal to."""
        return self.origin.get(value, value)

    def number_it(self, node: Node, *also: object) -> None:
        """Records an operation, and finds out whether the same one came before.

        Args:
            node: the operation.
            also: its parameters, besides its operands and the shape of its result.
        """
        result = node.outputs[0]
        operands = [self.number(v) if self.is_number(v) else (self.same(v),) for v in node.inputs]
        key = (node.op, *operands, self.values[result].shape, *also)
        first = self.numbered.setdefault(key, result)
        if first != result:
            self.origin[result] = first

    def is_number(self, value: int) -> bool:
        """Returns True if a value is one known number everywhere."""
        return self.number(value) is not None

    def related(self, value: int, kind: str, source: int, shape: tuple[object, ...]) -> bool:
        """Checks if ``value`` is the ``kind`` of ``source``, axis by axis, in the given shape."""
        found = self.relations.get(value)
        if found is None or found.kind != kind or self.values[source].shape != shape:
            return False
        order = self.order(source, found.source)
        return (
            order is not None
            and len(found.labels) == len(order)
            and all(label in (-1, axis) for axis, label in zip(order, found.labels, strict=True))
        )

    def order(self, value: int, source: int) -> tuple[int, ...] | None:
        """Returns each axis of ``value`` as an axis of ``source``; ``None`` for another value."""
        value, order = self.same(value), tuple(range(len(self.values[value].shape)))
        while value != source:
            if value not in self.moved:
                return None
            value, permutation = self.moved[value]
            order = tuple(permutation[axis] for axis in order)
        return order

    def number(self, value: int) -> float | None:
        """Returns the number that all elements of a value are, if it is one."""
        constant = self.values[value].constant
        return constant.low if constant is not None and constant.low == constant.high else None

    def keep(self, node: Node, relation: Relation, operand: int) -> None:
        """Records a relation of the result, if it has the operand's shape."""
        result = node.outputs[0]
        if self.values[result].shape == self.values[operand].shape:
            self.relations[result] = relation
