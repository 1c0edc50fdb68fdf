"""Shared terms: sums with one term in common that are subtracted from each other.

``moved = mean + 0.01 * step; mean - moved`` is a small difference of large sums, and so is the
product of two such sums minus the product of others (a cross product of nearly parallel vectors, a
determinant). Stored in half, a sum has an error in proportion to the shared term, which the
difference shows. A constant is a shared term too: ``(x + 30) - (y + 30)``.

::

    terms       what leads to a value by sums, and by operations that move it, choose it, or
                scale it by fewer numbers
    shared      the last common terms of the operands of a difference, or of the factors of a
                difference of two products, if they follow from a half dot
    shifted     sums with a constant of at least 1, and what has such a sum as a term
    denied      sums between a shared term and a difference; the shifted sums upstream of a
                difference of two shifted values, or of one and a constant

Differences of a residual stream and its own statistics share no sum, since a mean is no term.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from duotone.graph.graph import Graph, Node
from duotone.graph.terms import moved, scales, subtracts
from duotone.ops.traits import Trait

_PASSES = frozenset({Trait.MOVES, Trait.CHOOSES, Trait.KEEPS})
_LARGEST = 2.0**20
"""A constant above this is a mask, next to which float32 has few digits either."""


def find_shared(graph: Graph, after: set[int]) -> set[int]:
    """Returns the sums whose rounding a difference shows, since its operands share a term.

    Args:
        graph: the program.
        after: the values that follow from a half dot.
    """
    terms = _Terms(graph, after)
    shifted = _shifted(graph, terms)
    denied = set[int]()
    for node in graph.nodes:
        if after.isdisjoint(node.outputs) or not subtracts(graph, node):
            continue
        for one, other in _compared(graph, node):
            denied |= terms.between(one, other)
        if all(v in shifted or _is_shift(graph, v) for v in node.inputs):
            denied |= terms.sums_before(shifted.intersection(node.inputs), shifted)
    return denied


def _compared(graph: Graph, node: Node) -> Iterator[tuple[int, int]]:
    """Yields the pairs of values that a difference compares: its operands, or their factors."""
    if len(node.inputs) != 2:
        return
    yield node.inputs[0], node.inputs[1]
    if Trait.SUBTRACTS in node.traits:
        ones, others = (_factors(graph, value) for value in node.inputs)
        yield from ((one, other) for one in ones for other in others)


def _factors(graph: Graph, value: int) -> tuple[int, ...]:
    """Returns the factors of a product, of its own size, or of the products that a sum adds."""
    found = moved(graph, value)
    if found.producer < 0:
        return ()
    node = graph.nodes[found.producer]
    if Trait.MULTIPLIES in node.traits:
        return tuple(v for v in node.inputs if graph.values[v].size >= found.size)
    return ()


def _is_shift(graph: Graph, value: int) -> bool:
    """Checks if a value is a constant next to which half is coarse for numbers below 1."""
    known = moved(graph, value).constant
    return known is not None and known.smallest >= 1.0 and known.largest < _LARGEST


def _shifted(graph: Graph, terms: _Terms) -> set[int]:
    """Returns the values that follow from a half dot and have a constant as a term."""
    found = set[int]()
    for node in graph.nodes:
        operands = terms.of(node)
        if not operands:
            continue
        adds = Trait.ADDS in node.traits
        if adds and found.issuperset(node.inputs) and subtracts(graph, node):
            continue  # the constants cancel
        if not found.isdisjoint(operands) or (
            adds and any(_is_shift(graph, v) for v in node.inputs)
        ):
            found.update(node.outputs)
    return found


class _Terms:
    """The terms of the values of a program."""

    def __init__(self, graph: Graph, after: set[int]) -> None:
        self._graph, self._after = graph, after

    def of(self, node: Node) -> list[int]:
        """Returns the operands that are terms of the result of a node."""
        if self._after.isdisjoint(node.outputs) or Trait.STRUCTURAL in node.traits:
            return []
        size = self._graph.values[node.outputs[0]].size
        read = [v for v in node.inputs if v in self._after]
        if Trait.ADDS in node.traits:
            return [v for v in read if self._graph.values[v].size >= size]
        if scales(node):
            rows = [v for v in node.inputs if moved(self._graph, v).size < size]
            own = node.inputs[:1] if Trait.DIVIDES in node.traits else node.inputs
            return [v for v in own if v in read and rows and v not in rows]
        return read if not node.traits.isdisjoint(_PASSES) else []

    def between(self, one: int, other: int) -> set[int]:
        """Returns the sums between two values and their last common terms."""
        if one == other or not {one, other} <= self._after:
            return set()
        seen = {one}, {other}
        queue = [(-one, 0), (-other, 1)]
        heapq.heapify(queue)
        common = set[int]()
        while queue:
            value, side = heapq.heappop(queue)
            if -value in seen[1 - side]:
                common.add(-value)
                continue
            if -value < min(seen[1 - side]) and all(own == side for _, own in queue):
                break
            for term in self._terms(-value):
                if term not in seen[side]:
                    seen[side].add(term)
                    heapq.heappush(queue, (-term, side))
        if not common:
            return set()
        leading = self._leading(seen[0] | seen[1], common)
        return self.sums_before(leading & {one, other}, leading)

    def sums_before(self, values: set[int], within: set[int]) -> set[int]:
        """Returns the nodes that add, between some values and the last of others in a set."""
        found, queue, seen = set[int](), [*values], set(values)
        while queue:
            value = queue.pop()
            node = self._graph.nodes[self._graph.values[value].producer]
            terms = [term for term in self._terms(value) if term in within]
            if Trait.ADDS in node.traits:
                found.add(node.index)
            queue += [term for term in terms if term not in seen]
            seen.update(terms)
        return found

    def _terms(self, value: int) -> list[int]:
        producer = self._graph.values[value].producer
        return self.of(self._graph.nodes[producer]) if producer >= 0 else []

    def _leading(self, values: set[int], common: set[int]) -> set[int]:
        """Returns those of some values that have a common term, without the terms themselves."""
        found = set[int]()
        for value in sorted(values - common):
            if not (found | common).isdisjoint(self._terms(value)):
                found.add(value)
        return found
