"""Relations: what one pass knows of the values of a graph, relations between two included."""

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
            maximum), ``exp`` (its exponential), ``sum`` (of a source with no negative elements),
            ``square`` (element by element), ``squares`` (at least ``factor`` times the sum of
            squares), ``norm`` and ``inverse`` (the square root of such, and its reciprocal).
        source: the source.
        labels: for each axis of the value, the axis of the source, or -1 where it is
            constant along it.
        axes: axes of the source that were reduced.
        exact: of ``max``: it is the maximum, not something larger.
        factor: see ``squares``.
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
        values: of the graph.
        known: intervals by value.
        relations: by value.
        origin: the value that another one is the same as.
        unit: values whose scale is about 1, so that it is their absolute error that counts.
        numbered: operations seen, by operands, so that a second one is known as the first: people
            write a mean twice, once in the variance. Only what leads from a sum to the difference
            of a value and its mean is looked at.
        sums: values that are sums of others, perhaps scaled and broadcast.
        moved: transposed values: of what, and which of its axes each of theirs is.
        compared: comparisons: by value compared, the intervals of its elements where the comparison
            is false and where it is true.
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
        """The first value that ``value`` is the same as."""
        return self.origin.get(value, value)

    def number_it(self, node: Node, *also: object) -> None:
        """Finds out whether an operation was there before.

        Args:
            node: the operation.
            also: what makes it what it is besides its operands and the shape of its result.
        """
        result = node.outputs[0]
        operands = [self.number(v) if self.is_number(v) else (self.same(v),) for v in node.inputs]
        key = (node.op, *operands, self.values[result].shape, *also)
        first = self.numbered.setdefault(key, result)
        if first != result:
            self.origin[result] = first

    def is_number(self, value: int) -> bool:
        """True if a value is one known number everywhere."""
        return self.number(value) is not None

    def related(self, value: int, kind: str, source: int, shape: tuple[object, ...]) -> bool:
        """True if ``value`` is the ``kind`` of ``source``, axis by axis, when read beside it."""
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
        """Which axis of ``source`` each axis of ``value`` is; ``None`` if it is another value."""
        value, order = self.same(value), tuple(range(len(self.values[value].shape)))
        while value != source:
            if value not in self.moved:
                return None
            value, permutation = self.moved[value]
            order = tuple(permutation[axis] for axis in order)
        return order

    def number(self, value: int) -> float | None:
        """The number that a value is everywhere, if it is one."""
        constant = self.values[value].constant
        return constant.low if constant is not None and constant.low == constant.high else None

    def keep(self, node: Node, relation: Relation, operand: int) -> None:
        """Says that the result has the operand's shape and relation."""
        result = node.outputs[0]
        if self.values[result].shape == self.values[operand].shape:
            self.relations[result] = relation
