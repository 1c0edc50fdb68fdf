"""Rests: what is left of a value without an average of its neighbours.

A dot or convolution with a constant whose elements add up to 0 (a Sobel filter, a second
derivative, the Laplacian of a known graph) is a difference of nearly equal values, so it is full
with what makes its operand. So is one with a computed difference of known arrays (a centring
matrix), unless all its elements have one sign, and one with the difference of a matrix and its own
sums at known positions: the Laplacian of a graph, ``diag(sum(a, 1)) - a``.

``degree * x - a @ x`` and ``x - conv(x, mean)`` are what is left of a value without an average of
its neighbours: a graph's Laplacian, a trend or a blur taken away. Where the value has a large mean,
the two agree to many digits, so a dot that is subtracted from its own operand is full. Its result
and the operand may be weighted by an array with fewer elements, but by no constant: a small step
``w - 0.1 * a @ w`` cancels nothing. ``x - (x @ v) @ v.T`` is the rest of a projection. Its last dot
is subtracted from the operand of an earlier one, so up to three dots in a row are full.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from duotone.graph.graph import Graph, Node
from duotone.graph.reach import Walk, following, start
from duotone.graph.terms import is_one, keeps, kept, moved, scales
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.ranges.find import Ranges
from duotone.precision.safety.dot_operands import Dots

_MOST_IN_A_ROW = 3
"""How many dots in a row are looked at, at most: two project a value, and a third one weighs."""
_MOVES = frozenset({Trait.COMMUTES, Trait.UNDESCRIBED})


class Rests(Dots):
    """Searches dots that are subtracted from their own operand, or whose products cancel."""

    def __init__(self, graph: Graph, classes: Classes, ranges: Ranges) -> None:
        super().__init__(graph, classes)
        self._ranges = ranges

    def rest(self, pairs: Iterable[Sequence[int]]) -> list[int]:
        """Returns the dots that a difference subtracts from their own operand, and its maker."""
        found = list[int]()
        for value, other in pairs:
            origin = self._unweighted(other)
            way = [dot for dot in self._way(origin, value) if self._is_allowed(dot)]
            way += self._inferred(self.makers([origin])) if way else []
            found += [node.index for node in way]
        return found

    def differences(self, dot: Node) -> list[int]:
        """Returns a dot with an array whose elements cancel, and what makes its operands.

        Further dots with its other operand are those of a quadratic form, ``x.T @ laplacian @ x``.
        """
        if not any(map(self._cancels, dot.inputs)):
            return []
        dots = [dot] if self._is_allowed(dot) else []
        makers = self.makers(map(self.origin, dot.inputs))
        products = [made for made in makers if self._is_of_results(made)]
        gradients = [index for made in (*products, dot) for index in self.gradients(made)]
        makers += self.makers(self.origin(v) for made in products for v in made.inputs)
        return [n.index for n in (*dots, *products, *self._inferred(makers))] + gradients

    def _cancels(self, value: int) -> bool:
        """Checks if the elements of an array cancel; it may be scaled, but is no part of another.

        A difference of arrays that are known before any call counts, such as ``eye(n) - 1 / n``,
        unless all its elements have one sign.
        """
        graph = self.graph
        found = graph.values[start(graph, value, _unknown)]
        if found.constant is not None:
            return found.constant.cancels
        made = graph.maker(found.index)
        if made is None or Trait.SUBTRACTS not in made.traits:
            return False
        if found.index not in graph.known:
            return self._is_laplacian(*made.inputs) or self._is_laplacian(*made.inputs[::-1])
        interval = self._ranges.of(found.index)
        return interval is None or interval[0] < 0.0 < interval[1]

    def _is_laplacian(self, diagonal: int, matrix: int) -> bool:
        """Checks if a value has sums of a matrix at positions that are known before any call."""
        walk, masked = Walk(self.graph, [diagonal]), False
        for _, node in walk:
            if Trait.SUMS_AXES in node.traits:
                return masked and self.origin(node.inputs[0]) == self.origin(matrix)
            masks = node.inputs[:1] if Trait.CHOOSES in node.traits else ()
            masks = node.inputs if Trait.MULTIPLIES in node.traits else masks
            known = self.graph.known.intersection(masks)
            masked = masked or not all(is_one(self.graph, v) for v in known)
            walk.to(node.inputs if masks or not node.traits.isdisjoint(_MOVES) else ())
        return False

    def _is_of_results(self, dot: Node) -> bool:
        """Checks if all operands of a half dot follow from half dots, as in ``y @ y.T``."""
        return self._is_allowed(dot) and self._after.issuperset(dot.inputs)

    @functools.cached_property
    def _after(self) -> set[int]:
        """The values that follow from half dots."""
        return following(self.graph, self.classes.allowed)

    def _way(self, origin: int, value: int, most: int = _MOST_IN_A_ROW) -> list[Node]:
        """Returns the dots in a row that lead from an operand to a value; else empty."""
        dot = self.graph.maker(self._unweighted(value))
        if dot is None or Trait.CONTRACTS not in dot.traits or not most:
            return []
        operands = dot.inputs[:2] if dot.attributes.get("subtracts") else dot.inputs
        if origin in map(self._unweighted, operands):
            return [dot]
        for operand in operands:
            way = self._way(origin, operand, most - 1)
            if way:
                return [*way, dot]
        return []

    def _unweighted(self, value: int) -> int:
        """Returns the origin of a value, upstream of moves and of weights with fewer elements."""
        return start(self.graph, value, _weighted)

    def _inferred(self, nodes: Iterable[Node]) -> list[Node]:
        """Returns those of some nodes that round where they are half; a dot sums in float32."""
        kinds = self.classes.nodes
        return [node for node in nodes if kinds[node.index].kind is Kind.INFER]

    def _is_allowed(self, node: Node) -> bool:
        return self.classes.nodes[node.index].kind is Kind.ALLOW


def _unknown(graph: Graph, node: Node) -> int | None:
    """Returns the value that a node moves or scales to one that is no constant."""
    return kept(graph, node) if graph.values[node.outputs[0]].constant is None else None


def _weighted(graph: Graph, node: Node) -> int | None:
    """Returns the value that a node moves, or weights by an array with fewer elements."""
    if not scales(node):
        return max(node.inputs, key=lambda v: moved(graph, v).size) if keeps(graph, node) else None
    sizes = {v: moved(graph, v).size for v in node.inputs}
    value, weight = sorted(node.inputs, key=sizes.__getitem__, reverse=True)
    if Trait.DIVIDES in node.traits and node.inputs[0] != value:
        return None
    weights = 1 < sizes[weight] < sizes[value] and graph.values[weight].constant is None
    return value if weights else None
