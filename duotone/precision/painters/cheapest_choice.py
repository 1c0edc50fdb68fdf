"""Choice: the precisions of nodes that may have either, such that casts cost the least.

Each node has one precision for its operands and its results. A value costs one cast if any reader
has another precision than it is stored in. Constants cost none, since they exist in both. A minimum
cut (:mod:`duotone.graph.cut`) finds the smallest sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from duotone.graph.cut import FULL, HALF, Labelling, pay_for_casts
from duotone.graph.graph import Boundary, Graph, Paint, Value

Cost = Callable[[Value], int]
"""Returns the cost of casting a value once, as an integer."""
_GIVEN = {Paint.HALF: HALF, Paint.FULL: FULL}
_ASKED = {Boundary.FULL: Paint.FULL, Boundary.HALF: Paint.HALF}


class Choice:
    """A choice between two precisions for some nodes.

    Args:
        graph: the program.
        given: the precision of each node; ``None`` for a node with a choice.
    """

    def __init__(self, graph: Graph, given: Sequence[Paint | None]) -> None:
        self._values = tuple(_values(graph))
        self._labels = Labelling(2)
        self._of_node = [self._labels.add() if paint is None else _GIVEN[paint] for paint in given]
        self._total = 1

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

    def pay(self, cost: Cost) -> None:
        """Adds the costs of the casts of all values."""
        for value, stored, readers in self._values:
            producer = _GIVEN[stored] if stored is not None else self._of_node[value.producer]
            read = {r if r < 0 else self._of_node[r] for r in readers}
            read = {_GIVEN[Paint(-1 - r)] if r < 0 else r for r in read} - {producer}
            if read:
                price = cost(value)
                pay_for_casts(self._labels, producer, read, price)
                self._total += 2 * price * (len(read) + 1)

    def cost_of_casts(self, paints: Sequence[Paint], cost: Cost) -> int:
        """Returns the cost of all casts if each node has one precision."""
        total = 0
        for value, fixed, readers in self._values:
            stored = paints[value.producer] if fixed is None else fixed
            read = {Paint(-1 - r) if r < 0 else paints[r] for r in readers}
            total += cost(value) if read - {stored} else 0
        return total

    def solve(self) -> list[Paint]:
        """Returns each node's precision; among the cheapest, the choice with most half nodes."""
        self._labels.prefer(HALF, half=self._total)
        self._labels.prefer(FULL, full=self._total)
        found = self._labels.solve()
        return [Paint.HALF if found[v] is Paint.FULL else Paint.FULL for v in self._of_node]


def _values(graph: Graph) -> Iterator[tuple[Value, Paint | None, set[int]]]:
    """Yields values that may be cast, with the fixed storage and the readers of each.

    The fixed storage is ``None`` if the painting of the maker decides. A reader is a node, or minus
    one minus a precision that every painting needs.
    """
    returned: dict[int, set[int]] = {}
    for index, boundary in graph.outputs:
        if boundary in _ASKED:
            returned.setdefault(index, set()).add(-1 - _ASKED[boundary])
    for value in graph.values:
        if not value.paintable or (value.producer < 0 and value.constant is not None):
            continue
        readers = returned.get(value.index, set())
        for reader, slot in graph.consumers[value.index]:
            may = graph.nodes[reader].half_inputs[slot]
            readers.add(reader if may else -1 - Paint.FULL)
        if readers:
            yield value, graph.fixed_storage[value.index], readers
