"""Fewer: if either precision of a node is right, take the one with fewer casts.

A rule that decides on one node at a time may leave a cast before each of four slices of one input,
or after each of nine branches that lead to one result. This stage weighs all of them together, by a
minimum cut::

    open, full before : state (nodes that lead to a result with no allow operation after them)
                        moves (clear, commute with casts), joins of branches
                        arithmetic that reads only weights
                        arithmetic that half did not reach, with unknown sizes and a half operand
    open, half before : moves, joins and arithmetic, except nodes that read large weights
    never             : a rounding where there was none. Nodes that become half have only half
                        readers. Moves of half values may have any readers, and state may have
                        state and results.
    choose            : the least cost of casts; ties keep the old precision

The cost of a cast is its bytes, plus the bytes that a device could move in the time that it
takes to launch a kernel. This is right if each cast is a kernel of its own, as in ONNX. With a
compiler that fuses casts, this stage gains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from duotone.graph.graph import Graph, Node, Paint, Value
from duotone.ops.entries import PASSIVE, Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.cheapest_choice import Choice
from duotone.precision.painters.painting import Painting, may_store_half
from duotone.precision.rules import Rule

BEGINS = 2**22
"""Bytes that a device could move while it launches a kernel: 2 to 4 microseconds at 1 to 2 TB/s."""
_ROUNDING = BEGINS // 64
"""The price of one more rounding on the way to a result; a saved cast is worth several."""
_GUESS = 32
"""The assumed size of an unknown dimension: a batch, a row of tokens."""
_SMALL_WEIGHT = 4096
"""The most elements that a constant may have for float32 to cost nothing."""
_PASSES = 4
"""The most rounds of choices. A node that became half gives its readers a choice in the next
round."""


def fewer_casts(graph: Graph, classes: Classes, painting: Painting) -> Painting:
    """Changes precisions if that needs fewer casts and adds no harmful rounding.

    Args:
        graph: the program.
        classes: the class of each node.
        painting: a painting in which each node stores the precision in which it computes.

    Returns:
        A painting whose casts cost no more; changed nodes have the rule ``cut``.
    """
    weights = _of_weights(graph)
    for _ in range(_PASSES):
        found = _Pass(graph, classes, painting, weights).painting()
        if found is painting:
            break
        painting = found
    return painting


class _Pass:
    """One choice, from one painting to a better one.

    Args:
        graph: the program.
        classes: the class of each node.
        before: the painting.
        weights: the nodes whose float32 operands are all constants, or results of such nodes.
    """

    def __init__(
        self,
        graph: Graph,
        classes: Classes,
        before: Painting,
        weights: Collection[int],
    ) -> None:
        self._graph, self._classes = graph, classes
        self._before, self._weights = before, weights
        self._exact = self._move_half_values()
        self._results = {value for value, _ in graph.outputs}
        self._opened = [node for node in graph.nodes if self._is_open(node)]

    def painting(self) -> Painting:
        """Returns the better painting, or the same one."""
        before, opened = self._before.compute, {node.index for node in self._opened}
        if not opened:
            return self._before
        given = [None if index in opened else paint for index, paint in enumerate(before)]
        choice = Choice(self._graph, given, _cost)
        prohibitive = 3 * choice.most
        for node in self._opened:
            choice.prefer(node.index, before[node.index], self._price(node))
            if before[node.index] is Paint.FULL and node.index not in self._exact:
                self._forbid(choice, node, prohibitive)
        chosen = choice.solve()
        old, new = map(choice.cost_of_casts, (before, chosen))
        return self._before if new >= old else self._changed(chosen)

    def _changed(self, chosen: list[Paint]) -> Painting:
        pairs = zip(self._before.rules, self._before.compute, chosen, strict=True)
        rules = tuple(rule if old is new else Rule.CUT for rule, old, new in pairs)
        details = {i: t for i, t in self._before.details.items() if rules[i] is not Rule.CUT}
        return Painting(tuple(chosen), tuple(chosen), rules, details)

    def _forbid(self, choice: Choice, node: Node, cost: int) -> None:
        """Makes it prohibitively expensive that a node is half while a reader is full."""
        state = self._before.rules[node.index] is Rule.STATE
        alone = not state and not self._results.isdisjoint(node.outputs)
        for value in node.outputs:
            for reader, slot in self._graph.consumers[value]:
                if state and self._before.rules[reader] is Rule.STATE:
                    continue
                choice.never(full=reader, half=node.index, cost=cost)
                alone = alone or not self._graph.nodes[reader].half_inputs[slot]
        if alone:
            choice.prefer(node.index, Paint.FULL, cost)

    def _price(self, node: Node) -> int:
        """Returns the bytes that a node reads and writes more if its precision changes."""
        if self._before.rules[node.index] is Rule.STATE and node.index not in self._exact:
            return _ROUNDING
        if Trait.RESHAPES in node.traits:
            return 1
        return 1 + sum(4 * _elements(self._graph.values[v]) for v in node.outputs)

    def _is_open(self, node: Node) -> bool:
        """Returns True if either precision is right for a node."""
        found, rule = self._classes.nodes[node.index], self._before.rules[node.index]
        if rule.is_decided_before or found.kind not in PASSIVE or not node.paintable:
            return False
        if not may_store_half(node, self._graph.values) or _is_carried(node):
            return False
        if self._before.compute[node.index] is Paint.HALF:
            return not self._reads_weights(node)
        if found.kind is Kind.CLEAR and (
            Trait.COMMUTES in found.entry.traits or not any(node.half_inputs)
        ):
            return True
        if rule is Rule.NO_HALF_OPERAND:
            return node.index in self._weights or self._may_belong_to_half(node)
        return rule is Rule.STATE

    def _reads_weights(self, node: Node) -> bool:
        """Checks if a node reads weights kept in float32, or results of these alone."""
        read = [self._graph.values[v] for v in node.inputs]
        made = (v for v in read if v.paintable and (_is_constant(v) or v.producer in self._weights))
        return any(v.size > _SMALL_WEIGHT for v in made)

    def _may_belong_to_half(self, node: Node) -> bool:
        """Checks if a node reads a half value, and unknown sizes hide which operand dominates."""
        values = [self._graph.values[v] for v in (*node.inputs, *node.outputs)]
        known = all(isinstance(side, int) for value in values for side in value.shape)
        return not known and any(self._stored(v) is Paint.HALF for v in node.inputs)

    def _stored(self, value: int) -> Paint:
        return self._graph.stored(self._before.store, self._graph.values[value])

    def _move_half_values(self) -> set[int]:
        """Lets moves of half values be full or half: half represents their results either way."""
        found: set[int] = set()
        for node in self._graph.nodes:
            listed = self._classes.nodes[node.index]
            if listed.kind is not Kind.CLEAR or Trait.COMMUTES not in listed.entry.traits:
                continue
            read = [self._graph.values[v] for v in node.inputs]
            floats = [v for v in read if v.paintable]
            if floats and all(
                v.producer in found or self._stored(v.index) is Paint.HALF for v in floats
            ):
                found.add(node.index)
        return found


def _is_carried(node: Node) -> bool:
    """Returns True for a node at the border of a loop, where a cast would round each turn."""
    return Trait.STRUCTURAL in node.traits and Trait.JOINS not in node.traits


def _cost(value: Value) -> int:
    """Returns the cost of a cast, in bytes."""
    return BEGINS + 6 * _elements(value)


def _elements(value: Value) -> int:
    """Returns the number of elements of a float32 value."""
    sides = (side if isinstance(side, int) else _GUESS for side in value.shape)
    return math.prod(sides) if value.paintable else 0


def _of_weights(graph: Graph) -> set[int]:
    """Returns nodes whose float32 operands are all constants, or results of such nodes."""
    found: set[int] = set()
    for node in graph.nodes:
        read = [graph.values[v] for v in node.inputs if graph.values[v].paintable]
        if read and all(v.producer in found or _is_constant(v) for v in read):
            found.add(node.index)
    return found


def _is_constant(value: Value) -> bool:
    return value.producer < 0 and value.constant is not None
