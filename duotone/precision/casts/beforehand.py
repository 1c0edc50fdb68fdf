"""Casts before any call: chooses the constant arguments that are best passed in half.

In inference the weights are the same at every call. If all readers of a weight read it in half, the
weight is cast once for all calls, and the program takes the half array. Operations that only move
such weights (a slice for each iteration of a loop, a transposition, a row of an embedding) then
move them in half as well. This changes no result, since a cast commutes with them, and it costs
next to nothing, since the cast runs only once.

::

    candidate    = a full clear operation that commutes with casts, and reads only weights
    wanted(v)    = v is read, is not a result, and every reader computes half or is a candidate
    candidates   : repeatedly remove those of which a result or an operand is not wanted
    in half      = the weights that are wanted

All other precisions stay, so the results are bit for bit the same as without this stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from duotone.graph.graph import Graph, Node, Paint
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.painting import Painting
from duotone.precision.rules import Rule


def cast_beforehand(
    graph: Graph, classes: Classes, painting: Painting, weights: Collection[int]
) -> tuple[Graph, Painting]:
    """Passes weights in half where that changes no result.

    Args:
        graph: the program.
        classes: the class of each node.
        painting: the precisions.
        weights: values of arguments that are the same at every call.

    Returns:
        The graph, in which ``Value.given`` is half for these arguments, and the painting, in which
        operations that only move them are half (rule ``weights``).
    """
    found = _Search(graph, classes, painting, weights)
    half = [value for value in weights if graph.values[value].paintable and found.wanted(value)]
    if not half:
        return graph, painting
    values = list(graph.values)
    for value in half:
        values[value] = dataclasses.replace(values[value], given=Paint.HALF)
    compute, store, rules = list(painting.compute), list(painting.store), list(painting.rules)
    for index in found.candidates:
        compute[index] = store[index] = Paint.HALF
        rules[index] = Rule.WEIGHTS
    moved = Painting(tuple(compute), tuple(store), tuple(rules), painting.details)
    return dataclasses.replace(graph, values=tuple(values)), moved


class _Search:
    """The largest set of candidates that may all be half."""

    def __init__(
        self, graph: Graph, classes: Classes, painting: Painting, weights: Collection[int]
    ) -> None:
        self._graph, self._classes, self._painting = graph, classes, painting
        self._readers = graph.consumers
        self._returned = {value for value, _ in graph.outputs}
        self._moved = {value for value in weights if graph.values[value].paintable}
        self.candidates: set[int] = set()
        for node in graph.nodes:
            if self._only_moves(node):
                self._moved.update(node.outputs)
                if painting.compute[node.index] is Paint.FULL:
                    self.candidates.add(node.index)
        while lost := [i for i in self.candidates if not self._may_be_half(graph.nodes[i])]:
            self.candidates.difference_update(lost)

    def _only_moves(self, node: Node) -> bool:
        """Returns True if a node reads only weights and values moved from them."""
        index = node.index
        found = self._classes.nodes[index]
        # An operation that selects may pick another element if rounding made two elements equal.
        moves = Trait.COMMUTES in found.entry.traits and Trait.SELECTS not in found.entry.traits
        if not moves or found.kind is not Kind.CLEAR or not node.paintable:
            return False
        if self._painting.rules[index].is_decided_before or not all(node.half_outputs):
            return False
        if self._painting.compute[index] is not self._painting.store[index]:
            return False
        floats = [v for v in node.inputs if self._graph.values[v].paintable]
        return bool(floats) and all(v in self._moved for v in floats)

    def _may_be_half(self, node: Node) -> bool:
        return all(self.wanted(v) for v in node.outputs) and all(
            self.wanted(v)
            for v, ok in zip(node.inputs, node.half_inputs, strict=True)
            if ok and not self._is_half(v)
        )

    def _is_half(self, value: int) -> bool:
        """Returns True if the painting stores a value half."""
        return self._graph.stored(self._painting.store, self._graph.values[value]) is Paint.HALF

    def wanted(self, value: int) -> bool:
        """Returns True if a value is read, and only in half."""
        readers = self._readers[value]
        return (
            bool(readers)
            and value not in self._returned
            and all(
                self._graph.nodes[reader].half_inputs[slot]
                and (self._painting.compute[reader] is Paint.HALF or reader in self.candidates)
                for reader, slot in readers
            )
        )
