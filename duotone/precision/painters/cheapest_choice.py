"""Choice: the precisions of nodes that may have either, such that casts cost the least.

Each node has one precision for its operands and its results. A value costs one cast if any reader
has another precision than it is stored in. Constants cost none, since they exist in both. A minimum
cut (:mod:`duotone.graph.cut`) finds the smallest sum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from duotone.graph.cut import FULL, HALF, Labelling, pay_for_casts
from duotone.graph.graph import Boundary, Graph, Paint, Value

Cost = Callable[[Value], int]
"""Returns the cost of casting a value once, as an integer."""
_GIVEN = {Paint.HALF: HALF, Paint.FULL: FULL}
_READS_FULL, _READS_HALF = -1, -2
"""Readers whose precision no painting changes."""
_ASKED = {Boundary.FULL: _READS_FULL, Boundary.HALF: _READS_HALF}
_ASKED_PAINT = {_READS_FULL: Paint.FULL, _READS_HALF: Paint.HALF}
_ASKED_LABEL = {reader: _GIVEN[paint] for reader, paint in _ASKED_PAINT.items()}


class Choice:
    """A choice between two precisions for some nodes, with the costs of casts.

    Only values that a node with a choice reads or makes count: the casts of all others stay.

    Args:
        graph: the program.
        given: the precision of each node; ``None`` for a node with a choice.
        cost: returns the cost of casting a value once.

    Attributes:
        most: the cost of casting every value that counts.
    """

    def __init__(self, graph: Graph, given: Sequence[Paint | None], cost: Cost) -> None:
        opened = [graph.nodes[index] for index, paint in enumerate(given) if paint is None]
        touched = {value for node in opened for value in (*node.inputs, *node.outputs)}
        self._values = [
            (graph.values[index], cost(graph.values[index]), stored, readers)
            for index, stored, readers in _values(graph, touched)
        ]
        self.most = sum(price for _, price, _, _ in self._values)
        self._labels = Labelling(2)
        self._of_node = [self._labels.add() if paint is None else _GIVEN[paint] for paint in given]
        self._total = 1
        self._pay()

    def prefer(self, node: int, paint: Paint, cost: int) -> None:
        """Adds a cost for an open node that has another precision than ``paint``."""
        variable = self._of_node[node]
        if paint is Paint.HALF:  # the labels are swapped, see `pay_for_casts`
            self._labels.prefer(variable, half=cost)
        else:
            self._labels.prefer(variable, full=cost)
        self._total += cost

    def never(self, *, full: int, half: int, cost: int) -> None:
        """Adds a cost, besides that of the cast, if one node is full and another one half."""
        pair = self._of_node[half], self._of_node[full]
        self._labels.join(full=pair[0], half=pair[1], cost=cost)
        self._total += cost

    def _pay(self) -> None:
        """Adds the costs of the casts."""
        for value, price, stored, readers in self._values:
            producer = _GIVEN[stored] if stored is not None else self._of_node[value.producer]
            read = {_ASKED_LABEL[r] if r < 0 else self._of_node[r] for r in readers} - {producer}
            if read:
                pay_for_casts(self._labels, producer, read, price)
                self._total += 2 * price * (len(read) + 1)

    def cost_of_casts(self, paints: Sequence[Paint]) -> int:
        """Returns the cost of the casts that count if each node has one precision."""
        total = 0
        for value, price, fixed, readers in self._values:
            stored = paints[value.producer] if fixed is None else fixed
            if any((_ASKED_PAINT[r] if r < 0 else paints[r]) is not stored for r in readers):
                total += price
        return total

    def solve(self) -> list[Paint]:
        """Returns each node's precision; among the cheapest, the choice with most half nodes."""
        self._labels.prefer(HALF, half=self._total)
        self._labels.prefer(FULL, full=self._total)
        found = self._labels.solve()
        return [Paint.HALF if found[v] is Paint.FULL else Paint.FULL for v in self._of_node]


def _values(
    graph: Graph, touched: Collection[int]
) -> Iterator[tuple[int, Paint | None, Collection[int]]]:
    """Yields values that may be cast, with the fixed storage and the readers of each.

    The fixed storage is ``None`` if the painting of the maker decides. A reader is a node, or a key
    of ``_ASKED_PAINT``: a precision that every painting needs.
    """
    returned: dict[int, set[int]] = {}
    for index, boundary in graph.outputs:
        if index in touched and boundary in _ASKED:
            returned.setdefault(index, set()).add(_ASKED[boundary])
    for index in sorted(touched):
        value = graph.values[index]
        if not value.paintable or (value.producer < 0 and value.constant is not None):
            continue
        readers = returned.get(index, set())
        for reader, slot in graph.consumers[index]:
            readers.add(reader if graph.nodes[reader].half_inputs[slot] else _READS_FULL)
        if readers:
            yield index, graph.fixed_storage[index], readers
