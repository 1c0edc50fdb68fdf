"""Shared terms: sums with one term in common that are subtracted from each other.

``moved = mean + 0.01 * step; mean - moved`` is a small difference of large sums, and so is the
product of two such sums minus the product of others (a cross product of nearly parallel vectors, a
determinant). Stored in half, a sum has an error in proportion to the shared term, which the
difference shows. So has a function of one of two near numbers: ``tanh(x + 0.01) - tanh(x)``. A
constant is a shared term too: ``(x + 30) - (y + 30)``.

::

    terms       what leads to a value by sums, by functions of one value, and by operations that
                move it, choose it, or scale it by fewer numbers
    shared      the last common terms of the operands of a difference, or of the factors of a
                difference of two products, if they follow from a half dot
    shifted     sums with a constant of at least 1, and what has such a sum as a term
    denied      what rounds between a shared term and a difference; or upstream of a difference
                of two shifted values, or of one and a constant

Differences of a residual stream and its own statistics share no sum, since a mean is no term. The
sums of a residual stream itself, ``x + dots(x)``, stay half.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from duotone.graph.graph import Graph, Node
from duotone.graph.reach import Walk
from duotone.graph.terms import LOOPS, is_one, moved, scales, subtracts
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes

_PASSES = frozenset({Trait.MOVES, Trait.CHOOSES, Trait.KEEPS, Trait.COMMUTES})
_FUNCTIONS = frozenset({Trait.KEEPS_NAN, Trait.RAISES, Trait.BOUNDS})
_LARGEST = 2.0**20
"""A constant above this is a mask, next to which float32 has few digits either."""


def find_shared(graph: Graph, classes: Classes, after: set[int]) -> set[int]:
    """Returns the nodes whose rounding a difference shows, since its operands share a term.

    Args:
        graph: the program.
        classes: the class of each node.
        after: the values that follow from a half dot.
    """
    terms, arguments = (_Terms(graph, classes, after, functions=own) for own in (False, True))
    shifted = _shifted(graph, terms)
    denied = set[int]()
    for node in graph.having(Trait.ADDS, Trait.SUBTRACTS):
        if after.isdisjoint(node.outputs) or not subtracts(graph, node) or len(node.inputs) != 2:
            continue
        one, other = node.inputs
        explicit = Trait.SUBTRACTS in node.traits  # the sums of derivatives subtract by a sign
        denied |= (arguments if explicit else terms).between(one, other)
        if all(v in shifted or _is_shift(graph, v) for v in node.inputs):
            denied |= terms.rounding_before(shifted.intersection(node.inputs), shifted)
        if not explicit:
            continue
        ones, others = _factors(graph, one), _factors(graph, other)
        for pair in itertools.product(ones, others):
            denied |= arguments.between(*pair)
        if not shifted.isdisjoint(ones) and not shifted.isdisjoint(others):
            denied |= terms.rounding_before(shifted.intersection([*ones, *others]), shifted)
    return {index for index in denied if classes.nodes[index].kind is Kind.INFER}


def _factors(graph: Graph, value: int) -> Sequence[int]:
    """Returns the factors of a product that are as large as it is."""
    found = moved(graph, value)
    if found.producer < 0:
        return ()
    node = graph.nodes[found.producer]
    if Trait.MULTIPLIES in node.traits:
        return [v for v in node.inputs if graph.values[v].size >= found.size]
    return ()


def _is_shift(graph: Graph, value: int) -> bool:
    """Checks if a value is a constant next to which half is coarse for numbers below 1."""
    known = moved(graph, value).constant
    if known is None or known.largest >= _LARGEST:
        return False
    return known.low >= 1.0 or known.high <= -1.0


def _shifted(graph: Graph, terms: _Terms) -> set[int]:
    """Returns the values that follow from a half dot and have a constant as a term."""
    found = set[int]()
    shifts = {
        node.index
        for node in graph.having(Trait.ADDS)
        if any(_is_shift(graph, value) for value in node.inputs)
    }
    for node in graph.nodes if shifts else ():
        shift = node.index in shifts
        if not shift and found.isdisjoint(node.inputs):
            continue
        if Trait.ADDS in node.traits and found.issuperset(node.inputs) and subtracts(graph, node):
            continue  # the constants cancel
        operands = terms.of(node)
        if operands and (shift or not found.isdisjoint(operands)):
            found.update(node.outputs)
    return found


class _Terms:
    """The terms of the values of a program; with ``functions``, also of functions of them."""

    def __init__(self, graph: Graph, classes: Classes, after: set[int], *, functions: bool) -> None:
        self._graph, self._classes = graph, classes
        self._after, self._functions = after, functions

    def of(self, node: Node) -> list[int]:
        """Returns the operands that are terms of the result of a node."""
        if self._after.isdisjoint(node.outputs) or not node.traits.isdisjoint(LOOPS):
            return []
        values = self._graph.values
        size = values[node.outputs[0]].size
        read = [v for v in node.inputs if v in self._after and values[v].paintable]
        if Trait.ADDS in node.traits:
            return [v for v in read if values[v].size >= size]
        if scales(node):
            rows = [v for v in node.inputs if moved(self._graph, v).size < size]
            own = node.inputs[:1] if Trait.DIVIDES in node.traits else node.inputs
            if found := [v for v in read if rows and v in own and v not in rows]:
                return found
        passes = not node.traits.isdisjoint(_PASSES)
        return read if passes or self._is_function(node) else []

    def _is_function(self, node: Node) -> bool:
        """Checks if a node computes a function of one value."""
        varying = [v for v in node.inputs if self._graph.values[v].constant is None]
        return self._functions and len(varying) == 1 and not node.traits.isdisjoint(_FUNCTIONS)

    def between(self, one: int, other: int) -> set[int]:
        """Returns the nodes that round between two values and their last common terms."""
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
        if any(self._adds_block(value, leading | common) for value in leading):
            return set()
        return self.rounding_before(leading & {one, other}, leading)

    def rounding_before(self, values: set[int], within: set[int]) -> set[int]:
        """Returns the nodes that round, between some values and the last of others in a set."""
        found, walk = set[int](), Walk(self._graph, values)
        for _, node in walk:
            if self._may_round(node):
                found.add(node.index)
            walk.to(within.intersection(self.of(node)))
        return found

    def _adds_block(self, value: int, leading: set[int]) -> bool:
        """Checks if a value is a term and what dots make of it, as in a residual stream.

        A block that first scales the term by one number is a step, of a cotangent for example.
        """
        terms = set(self._terms(value))
        start = min(terms & leading)
        queue, seen = [(v, False) for v in terms - leading], set[tuple[int, bool]]()
        while queue:
            found, after_dot = queue.pop()
            if after_dot and found in terms & leading:
                return True
            producer = self._graph.values[found].producer
            if found < start or producer < 0 or (found, after_dot) in seen:
                continue
            seen.add((found, after_dot))
            after_dot = after_dot or self._classes.nodes[producer].kind is Kind.ALLOW
            node = self._graph.nodes[producer]
            read: Sequence[int] = node.inputs
            if scales(node) and any(is_one(self._graph, v) for v in read):
                read = [v for v in read if moved(self._graph, v).index not in terms & leading]
            queue += [(v, after_dot) for v in read]
        return False

    def _may_round(self, node: Node) -> bool:
        """Checks if half would round the result of a node, unless a denied operand taints it."""
        if Trait.COMMUTES in node.traits:
            return False
        if scales(node):  # by an array with fewer elements: a norm
            return any(is_one(self._graph, v) for v in node.inputs)
        return Trait.ADDS not in node.traits or not any(map(self._is_full, node.inputs))

    def _is_full(self, value: int) -> bool:
        """Returns True for zeros, and for results of denied operations."""
        found = moved(self._graph, value)
        if found.constant is not None and found.constant.largest == 0.0:
            return True
        return found.producer >= 0 and self._classes.nodes[found.producer].kind is Kind.DENY

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
