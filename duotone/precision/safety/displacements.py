"""Displacements: exact numbers that a network moves a little, and that are subtracted afterwards.

In ``atoms = positions + 0.1 * network(x)`` and ``state = state + dt * network(state)``, the first
term has float32's digits, and so has the sum. Stored in half, the sum has an error in proportion to
itself, which is much larger next to a difference of two such sums: of neighbours, or of a
prediction and its target. The sum of two large values is half otherwise, since it may be a residual
stream.

::

    exact          values that follow from no half dot, and sums of one of these and something of
                   the same size; also moved, chosen, scaled by one number, or carried by a loop,
                   and joined with others (coordinates and features in one array); and sums of
                   products with exact values, w * a + (1 - w) * b
    differences    of two exact values of which the program repeats both, or none, and of which it
                   makes none smaller: ``weights - rate * (gradient + decay * weights)`` is a step
    denied         what adds, carries or joins exact numbers upstream of a difference

Dots and norms read a residual stream. A norm subtracts a statistic, which is not exact, or a moving
average, which is repeated where the stream is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from duotone.graph.graph import Graph, Node, Value
from duotone.graph.reach import Walk, following
from duotone.graph.terms import is_one, is_scaled, moved, scales, subtracts, unscaled
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes

_PASSES = frozenset(
    {
        Trait.MOVES,
        Trait.CHOOSES,
        Trait.ITERATES,
        Trait.STACKS,
        Trait.JOINS,
        Trait.SHARDS,
        Trait.UNDESCRIBED,
    }
)
_ADDS = Trait.ADDS  # bound once: this is hot
_STORES = frozenset({Trait.ADDS, Trait.CARRIES, Trait.PARTS})


def find_displaced(graph: Graph, exact: Exact) -> set[int]:
    """Returns the sums, carries and joined arrays with exact numbers that must be float32.

    Args:
        graph: the program.
        exact: its values that have float32's digits.
    """
    nodes = graph.having(Trait.ADDS, Trait.SUBTRACTS) if exact.sums else ()
    return exact.sums_before(v for node in nodes for v in exact.subtracted(node))


def after_half_dots(graph: Graph, classes: Classes) -> set[int]:
    """Returns the values that follow from a half dot, also in the next iteration of a loop."""
    found, carries = set[int](), graph.having(Trait.CARRIES)
    while True:
        found = following(graph, classes.allowed, values=found)
        if all(found.isdisjoint(node.inputs) or found.issuperset(node.outputs) for node in carries):
            return found


class Exact:
    """The values of a program that have float32's digits.

    Attributes:
        exact: all of them.
        sums: those that follow from a half dot too.
    """

    def __init__(self, graph: Graph, after: set[int]) -> None:
        self._graph, self._after = graph, after
        before = {v.index for v in graph.values if v.index not in after and _varies(v)}
        carries = [n for n in graph.having(Trait.CARRIES) if self._may_carry(n, before)]
        self.exact = before
        while self._after:
            self.exact = self._forward(before, carries)
            kept = [node for node in carries if self.exact.issuperset(node.inputs)]
            if len(kept) == len(carries):
                break
            carries = kept
        self.sums = self.exact & self._after

    def moves(self, values: Sequence[int]) -> bool:
        """Checks if some values are exact, and if one of them follows from a half dot too."""
        after = self._after.intersection(values)
        return bool(after) and self.exact.issuperset(after)

    def sums_before(self, values: Iterable[int]) -> set[int]:
        """Returns the sums, carries and joined arrays that lead to some exact values."""
        found, walk = set[int](), Walk(self._graph, self._after.intersection(values))
        for value, node in walk:
            if value.index in self.exact or self._is_weighted(value.index, self.exact):
                found.update(() if node.traits.isdisjoint(_STORES) else (node.index,))
                walk.to(self._after.intersection(node.inputs))
        return found

    def scalings(self, values: Sequence[int]) -> set[int]:
        """Returns what scales exact numbers by factors near 1, if all of some values are such.

        In a network that a mask multiplies, ``h * mask``, no constant is added to a factor, and
        none is an exponential.
        """
        found = set[int]()
        for value in self._after.intersection(values) - self.exact:
            product = unscaled(self._graph, value)
            if product in self.exact or not self._is_weighted(product, self.exact):
                return set()
            made = self._graph.nodes[self._graph.values[product].producer]
            makers = (self._graph.values[v].producer for v in made.inputs if v in self._after)
            factors = {index for index in makers if self._shifts(self._graph.nodes[index])}
            if not factors:
                return set()
            found |= {self._graph.values[value].producer, made.index, *factors}
        return found

    def _shifts(self, node: Node) -> bool:
        """Checks if a node adds a constant to what follows from a half dot, or raises one to it."""
        constants = [self._graph.values[v].constant for v in node.inputs]
        adds = Trait.ADDS in node.traits and any(known and known.low > 0.0 for known in constants)
        after = not self._after.isdisjoint(node.inputs)
        return after and (adds or Trait.EXPONENTIAL in node.traits)

    def subtracted(self, node: Node) -> Iterator[int]:
        """Yields the operands whose difference a node computes, if both are exact."""
        if self.exact.issuperset(node.inputs) and subtracts(self._graph, node):
            size = self._graph.values[node.outputs[0]].size
            one, other = (self._may_repeat(value, size) for value in node.inputs)
            if not one.isdisjoint(other) and not any(map(self._is_small, node.inputs)):
                yield from node.inputs

    def _may_repeat(self, value: int, size: int) -> set[bool]:
        """Tells if a value is broadcast to a size, before other moves or after.

        Both answers are possible if positions in an array name its elements.
        """
        found = self._graph.values[value]
        while found.size >= size and found.producer >= 0:
            size = found.size
            node = self._graph.nodes[found.producer]
            if Trait.GATHERS in node.traits:
                return {True, False}
            if len(node.inputs) != 1 or Trait.MOVES not in node.traits:
                break
            found = self._graph.values[node.inputs[0]]
        return {found.size < size}

    def _is_small(self, value: int) -> bool:
        """Checks if a single number scales a value, and may make it smaller."""
        if not is_scaled(self._graph, value):
            return False
        node = self._graph.nodes[moved(self._graph, value).producer]
        known = [self._graph.values[v].constant for v in node.inputs]
        return all(one is None or one.smallest < 1.0 for one in known)

    def _may_carry(self, node: Node, before: set[int]) -> bool:
        return node.inputs[0] in before and not self._after.isdisjoint(node.outputs)

    def _forward(self, before: set[int], carries: list[Node]) -> set[int]:
        """Returns the exact values, given those before any half dot, and exact carries."""
        found = before.union(*(node.outputs for node in carries))
        for node in self._graph.nodes:
            near = not found.isdisjoint(node.inputs) or _ADDS in node.traits
            if near and not self._after.isdisjoint(node.outputs) and self._keeps(node, found):
                found.update(node.outputs)
        return found

    def _keeps(self, node: Node, exact: set[int]) -> bool:
        """Checks if the result of a node is as exact as an operand of its size."""
        values = self._graph.values
        size = values[node.outputs[0]].size
        sums = _ADDS in node.traits
        if sums or scales(node):
            others = [v for v in node.inputs if sums or not is_one(self._graph, v)]
            large = any(v in exact and values[v].size >= size for v in others)
            blends = sums and all(self._is_weighted(v, exact) for v in others)
            return blends or (large and (sums or len(others) == 1))
        read = [v for v in node.inputs if values[v].paintable and values[v].constant is None]
        if Trait.PARTS in node.traits and not exact.isdisjoint(read):
            return True
        return not node.traits.isdisjoint(_PASSES) and bool(read) and exact.issuperset(read)

    def _is_weighted(self, value: int, exact: set[int]) -> bool:
        """Checks if a value is a product with an exact one that is as large and not repeated."""
        found = moved(self._graph, value)
        if found.producer < 0 or Trait.MULTIPLIES not in self._graph.nodes[found.producer].traits:
            return False
        return any(
            v in exact
            and self._graph.values[v].size >= found.size
            and False in self._may_repeat(v, found.size)
            for v in self._graph.nodes[found.producer].inputs
        )


def _varies(value: Value) -> bool:
    """Returns True for an array that is not the same number everywhere."""
    known = value.constant
    return value.paintable and not value.is_one and (known is None or known.low != known.high)
