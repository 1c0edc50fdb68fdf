"""Distances and moments: dots of which a difference leaves little are full.

``sum(a**2) + sum(b**2) - 2 * a @ b.T`` is how squared distances are calculated by a dot:
nearest neighbours, kernels, codebooks, optimal transport. Near points are what is left of large
terms, of which half has no digits: the nearest code is another one, and a kernel is no longer
positive. A dot of what follows from distances with the same points again is full as well: the
gradient of distances, which is ``sum(g) * a - g @ b``, and centres of clusters.

``conv(x * x, w) - conv(x, w) ** 2`` is a local variance, ``(x * y) @ w - (x @ w) * (y @ w)`` a
covariance: a dot of a product, less the product of the dots of its factors. In flat regions the two
agree to many digits, so all three dots are full.
"""

from __future__ import annotations

from collections.abc import Iterable

from duotone.graph.classify.background import Background
from duotone.graph.classify.classes import Classes
from duotone.graph.classify.rules import Rule
from duotone.graph.classify.terms import scales
from duotone.graph.graph import Graph, Node
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait

_REASON = "part of a squared distance: it is subtracted from the squares of its own operands"
_AGAIN = "multiplies what follows from squared distances with the same points: it may cancel"
_MOMENT = "part of a variance: a product of results of dots is subtracted from a dot of the product"
_PRODUCTS = frozenset({Trait.RAISES, Trait.MULTIPLIES})


def keep_distances(classes: Classes, background: Background) -> Classes:
    """Denies dots that are added to the squares of their own operands, and dots of moments.

    Args:
        classes: what each node is.
        background: the program.

    Returns:
        New classes; the same where there are no such dots.
    """
    graph = background.graph
    search = _Search(graph, classes)
    reasons: dict[int, str] = {}
    for node in graph.nodes:
        allow = classes.nodes[node.index].kind is Kind.ALLOW and len(node.inputs) == 2
        if allow and search.is_of_distances(node):
            reasons |= dict.fromkeys(search.again(node), _AGAIN) | {node.index: _REASON}
        for dot in search.moments(node) if Trait.ADDS in node.traits else ():
            reasons |= dict.fromkeys(search.again(dot), _AGAIN) | {dot.index: _MOMENT}
    return classes.with_denied(reasons, Rule.DISTANCE)


class _Search:
    """Looks for squares of the operands of a dot in the sums that its result is a term of."""

    def __init__(self, graph: Graph, classes: Classes) -> None:
        self._graph, self._classes = graph, classes

    def is_of_distances(self, dot: Node) -> bool:
        operands = {self._origin(value) for value in dot.inputs}
        return any(
            operands & self._squared(value)
            for value in self._added_to(dot)
            if self._graph.values[value].constant is None
        )

    def again(self, dot: Node) -> list[int]:
        """Allow operations that read an operand of a dot, and what follows from its result."""
        values = self._graph.values
        operands = {self._origin(value) for value in dot.inputs}
        size = values[dot.outputs[0]].size
        found, follow = list[int](), set(dot.outputs)
        for node in self._graph.nodes[dot.index + 1 :]:
            if follow.isdisjoint(node.inputs):
                continue
            follow.update(value for value in node.outputs if values[value].paintable)
            if self._classes.nodes[node.index].kind is Kind.ALLOW and len(node.inputs) == 2:
                pairs = (node.inputs, node.inputs[::-1])
                if any(
                    value in follow
                    and values[value].size == size
                    and self._origin(other) in operands
                    for value, other in pairs
                ):
                    found.append(node.index)
        return found

    def _added_to(self, dot: Node) -> list[int]:
        """Values that the result of a dot is added to, or subtracted from, itself left out."""
        found, queue, seen = list[int](), list(dot.outputs), set(dot.outputs)
        while queue:
            value = queue.pop()
            for reader, slot in self._graph.consumers[value]:
                node = self._graph.nodes[reader]
                if Trait.ADDS in node.traits and len(node.inputs) == 2:
                    found.append(node.inputs[1 - slot])
                    queue += self._new(node.outputs, seen)
                elif self._keeps(node):
                    queue += self._new(node.outputs, seen)
        return found

    def _squared(self, value: int) -> set[int]:
        """Values of whose squares a value is the sum, other terms and a scale left out."""
        found, queue, seen = set[int](), [value], {value}
        while queue:
            producer = self._graph.values[queue.pop()].producer
            if producer < 0:
                continue
            node = self._graph.nodes[producer]
            if Trait.CONTRACTS in node.traits and len(set(node.inputs)) == 1:
                found.add(self._origin(node.inputs[0]))
            elif len(node.inputs) == 1 and not node.traits.isdisjoint({Trait.SUMS, Trait.ADDS}):
                found |= self._base(node.inputs[0])
            elif Trait.ADDS in node.traits or self._keeps(node):
                queue += self._new(node.inputs, seen)
        return found

    def _base(self, value: int) -> set[int]:
        """The value whose square a value is, if it is one."""
        producer = self._graph.values[value].producer
        node = self._graph.nodes[producer] if producer >= 0 else None
        if node is None or node.traits.isdisjoint(_PRODUCTS):
            return set()
        origins = {self._origin(v) for v in node.inputs}
        return origins if len(origins) == 1 else set()

    def moments(self, node: Node) -> list[Node]:
        """The dots of a variance or a covariance, if an addition or a subtraction gives one."""
        for value, other in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
            joint, product = self._dot(value), self._maker(self._origin(other))
            if joint is None or product is None or product.traits.isdisjoint(_PRODUCTS):
                continue
            means = [dot for v in product.inputs if (dot := self._dot(v)) is not None]
            read = {self._origin(v) for dot in means for v in dot.inputs}
            factors = (self._maker(self._origin(v)) for v in joint.inputs)
            if len(means) == len(product.inputs) and any(
                made is not None
                and not made.traits.isdisjoint(_PRODUCTS)
                and read.issuperset(map(self._origin, made.inputs))
                for made in factors
            ):
                return [joint, *means]
        return []

    def _maker(self, value: int) -> Node | None:
        producer = self._graph.values[value].producer
        return self._graph.nodes[producer] if producer >= 0 else None

    def _dot(self, value: int) -> Node | None:
        """The allow operation that a value comes from, moved or scaled, if there is one."""
        made = self._maker(self._origin(value))
        allow = made is not None and self._classes.nodes[made.index].kind is Kind.ALLOW
        return made if allow else None

    def _origin(self, value: int) -> int:
        """Where a value comes from, through what moves or scales it."""
        while (producer := self._graph.values[value].producer) >= 0:
            node = self._graph.nodes[producer]
            if not self._keeps(node):
                break
            value = max(node.inputs, key=lambda v: self._graph.values[v].size)
        return value

    def _keeps(self, node: Node) -> bool:
        """True if a node moves or scales all of one value."""
        if scales(node):
            values = (self._graph.values[v] for v in node.inputs)
            return any(value.size == 1 or value.constant is not None for value in values)
        real = [v for v in node.inputs if self._graph.values[v].paintable]
        loop = not node.traits.isdisjoint({Trait.CARRIES, Trait.ITERATES, Trait.STACKS})
        passes = not node.traits.isdisjoint({Trait.COMMUTES, Trait.UNDESCRIBED})
        return passes and len(real) == 1 and not loop

    @staticmethod
    def _new(values: Iterable[int], seen: set[int]) -> list[int]:
        found = [value for value in values if value not in seen]
        seen.update(found)
        return found
