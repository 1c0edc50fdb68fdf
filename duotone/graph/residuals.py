"""Residuals: what is calculated again where it is read, instead of being kept.

A value of the forward pass that the backward pass reads crosses memory twice, whatever its dtype. A
compiler calculates it again where that costs nothing, but keeps the results of transcendental
functions: of a GELU between two dots it keeps three or four arrays, though all of them follow from
the first dot's result, which is in memory anyway. Storing them in half does not help either, since
a compiler drops the rounding of a value that is rounded and widened again (see
``docs/architecture.md``). So such a value is calculated again, from what the half dots gave, behind
a barrier that keeps the compiler from finding the first calculation.

::

    far reader   = a reader on a higher level (``levels.py``): never in one kernel with the producer
    chain(v)     = the pointwise operations that lead to v from roots: values that are in memory
                   anyway (results of other operations, operands of allow operations, arguments);
                   small values on the way are kept, constants are not counted
    v is calculated again for its far readers if its chain holds a transcendental operation and the
    roots that nothing else keeps are no more bytes than v

What is cheap throughout is left to the compiler, which does the same unasked. Nothing but pointwise
operations is ever calculated again: nothing random and nothing with effects.

References:
    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), and ``jax.checkpoint``, of
    which this is the case that costs no dot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from duotone.graph.classes import Classes
from duotone.graph.graph import STRUCTURAL, Graph, Node, Paint, Value
from duotone.graph.levels import find_levels
from duotone.graph.lists import Pointwise
from duotone.graph.painting import Painting

_LONGEST_CHAIN = 48
_SMALL = 8
"""A value is small beside one with so many times its elements."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recompute:
    """What is calculated again.

    Attributes:
        reads: for each (node, value) that takes the second calculation, its place. A place is one
            level of one body: what is calculated again there is shared.
        again: for each place, the values that are calculated again.
        roots: for each place, the large values from which they are calculated.
    """

    reads: Mapping[tuple[int, int], int]
    again: Mapping[int, frozenset[int]]
    roots: Mapping[int, frozenset[int]]

    def nodes(self, graph: Graph) -> set[int]:
        """The nodes that must be carried out one by one: readers, and what they read comes from."""
        found = {reader for reader, _ in self.reads}
        for value in frozenset().union(*self.again.values()):
            maker = graph.values[value].producer
            found.add(maker)
            found.update(graph.values[operand].producer for operand in graph.nodes[maker].inputs)
        return found


NOTHING = Recompute({}, {}, {})


def plan_residuals(graph: Graph, classes: Classes, painting: Painting) -> Recompute:
    """Finds the values that are cheaper to calculate again than to keep.

    Args:
        graph: the program.
        classes: what each node is.
        painting: its colours.

    Returns:
        The reads that take a second calculation, and what that needs.
    """
    return _Planner(graph, classes, painting).plan()


class _Planner:
    """The analysis of one program; values are looked at in program order."""

    def __init__(self, graph: Graph, classes: Classes, painting: Painting) -> None:
        self.graph = graph
        self.classes = classes
        self.painting = painting
        self.readers = graph.consumers()
        self.levels = find_levels(graph, classes)
        nodes = self.levels.nodes
        self.furthest = [max((nodes[r] for r, _ in rs), default=0) for rs in self.readers]
        self.kept: set[int] = {value for value, _ in graph.outputs}
        self.places: dict[tuple[int, int], int] = {}
        self.reads: dict[tuple[int, int], int] = {}
        self.again: dict[int, set[int]] = {}
        self.roots: dict[int, set[int]] = {}
        for node in graph.nodes:
            if self.levels.anchors[node.index]:
                self.kept.update(node.inputs)

    def plan(self) -> Recompute:
        """One pass over all values, in program order."""
        for node in self.graph.nodes:
            for value in node.outputs:
                far = self._far_readers(value)
                if far:
                    self._decide(node, self.graph.values[value], far)
        self._share()
        return Recompute(
            self.reads,
            {place: frozenset(values) for place, values in self.again.items()},
            {place: frozenset(values) for place, values in self.roots.items()},
        )

    def _share(self) -> None:
        """What is calculated again at a place is read by all far readers there, cheap or dear."""
        for node in self.graph.nodes:
            place = self.places.get((node.body, self.levels.nodes[node.index]))
            if place is None or not self._may_read_again(node.index, node.body):
                continue
            for value in node.inputs:
                far = self.levels.is_far(value, node.index)
                if far and self._follows(value, place, node.body):
                    self.reads[node.index, value] = place

    def _follows(self, value: int, place: int, body: int) -> bool:
        """Whether a value is calculated again at a place, or can be from what is there.

        A value of the program around is not: what it is made from may not be handed in.
        """
        if value in self.again[place]:
            return True
        producer = self.graph.values[value].producer
        if producer < 0 or value in self.kept or self.graph.values[value].body != body:
            return False
        found = self._chain(self.graph.nodes[producer], self.graph.values[value])
        if found is None or not found[1] or not found[1] <= self.roots[place]:
            return False
        self.again[place] |= found[0]
        return True

    def _has_far_readers(self, value: int) -> bool:
        return self.furthest[value] > self.levels.values[value]

    def _far_readers(self, value: int) -> list[int]:
        if not self._has_far_readers(value):
            return []
        return [reader for reader, _ in self.readers[value] if self.levels.is_far(value, reader)]

    def _decide(self, node: Node, value: Value, far: list[int]) -> None:
        """Keeps a value with far readers, calculates it again for them, or leaves it alone."""
        found = self._chain(node, value)
        if found is None or value.index in self.kept:
            self.kept.add(value.index)
            return
        chain, roots = found
        if not any(self._pointwise(made) is Pointwise.DEAR for made in chain):
            if len(roots) > 1:
                self.kept.add(value.index)
            return
        needed = sum(self._bytes(root) for root in roots if not self._is_kept(root))
        here = all(self._may_read_again(reader, node.body) for reader in far)
        # A key, a token or a reference is not hidden from the compiler.
        numbers = all(self._bytes(root) for root in roots)
        if not (here and roots and numbers) or needed > self._bytes(value.index):
            self.kept.add(value.index)
            return
        self.kept.update(roots)
        for reader in far:
            level = self.levels.nodes[reader]
            place = self.places.setdefault((node.body, level), len(self.places))
            self.reads[reader, value.index] = place
            self.again.setdefault(place, set()).update(chain)
            self.roots.setdefault(place, set()).update(roots)

    def _may_read_again(self, reader: int, body: int) -> bool:
        node = self.graph.nodes[reader]
        compares = self.classes.nodes[reader].entry.compares
        return node.body == body and node.op not in STRUCTURAL and not compares

    def _is_kept(self, value: int) -> bool:
        """Whether a value is in memory for far readers whatever is decided here."""
        return value in self.kept and self._has_far_readers(value)

    def _chain(self, node: Node, value: Value) -> tuple[set[int], set[int]] | None:
        """The values to calculate again for one value, it included, and their large roots."""
        chain: set[int] = set()
        roots: set[int] = set()
        stack = [value.index]
        while stack:
            index = stack.pop()
            held = self.graph.values[index]
            if index in chain or index in roots or self._costs_nothing(held, value):
                continue
            if index != value.index and index in self.kept:
                roots.add(index)
            elif held.body == node.body and self._pointwise(index) is not Pointwise.NO:
                chain.add(index)
                stack.extend(self.graph.nodes[held.producer].inputs)
            else:
                roots.add(index)
            if len(chain) > _LONGEST_CHAIN:
                return None
        return (chain, roots) if chain else None

    def _costs_nothing(self, held: Value, value: Value) -> bool:
        """Whether an operand is read as it is: it is small, or not in memory at all."""
        if held.index == value.index:
            return False
        if held.constant is not None or not held.shape:
            return True
        return held.size * _SMALL <= value.size

    def _pointwise(self, value: int) -> Pointwise:
        producer = self.graph.values[value].producer
        if producer < 0 or len(self.graph.nodes[producer].outputs) != 1:
            return Pointwise.NO
        return self.classes.nodes[producer].entry.pointwise

    def _bytes(self, value: int) -> int:
        held = self.graph.values[value]
        half = self.graph.stored(self.painting.store, held) is Paint.HALF
        return held.bytes(half=half)
