"""Distances and moments: dots are full if their result nearly cancels in a difference.

``sum(a**2) + sum(b**2) - 2 * a @ b.T`` computes squared distances by a dot, for nearest neighbours,
kernels, codebooks and optimal transport. The dot may add the squares itself (ONNX's ``Gemm``), or
have them in its operands: ``concat(-2 * a, sum(a**2), 1) @ concat(b, 1, sum(b**2)).T``. For near
points it is a small difference of large terms, for which half has no digits: the nearest code
changes, and a kernel is no longer positive. A dot of a value that follows from distances with the
same points is full as well. The gradient of distances, ``sum(g) * a - g @ b``, and the centres of
clusters are such dots. The sums of these terms are full too: ``a * a`` alone has two.

``conv(x * x, w) - conv(x, w) ** 2`` is a local variance, ``(x * y) @ w - (x @ w) * (y @ w)`` a
covariance, and so is ``x.T @ x / n - outer(mean, mean)``: a sum of products, less the product of
sums of the factors. Either side may add a few products (SSIM adds two variances). In flat regions
the two agree to many digits. So all dots and pools that sum are full: one, or one for each axis (a
separable window). The makers of the factors are full too, and so are other dots that weigh a value
with the same window, as the gradient does: it multiplies factors with differences of averages.

Differences of a value and an average of its neighbours are in
:mod:`duotone.precision.safety.rests`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence

from duotone.graph.graph import Node
from duotone.graph.reach import Walk
from duotone.graph.terms import keeps, subtracts
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.context import Background
from duotone.precision.rules import Rule
from duotone.precision.safety.rests import Rests

_MOST_TERMS = 8
"""How many sums are looked at, at most: two sets of points and their squares give as many."""
_REASON = "part of a squared distance: it is subtracted from the squares of its own operands"
_GRADIENT = "multiplies a value that follows from squared distances with their points: may cancel"
_TERMS = "adds the terms of such a gradient, which may cancel"
_MOMENT = "part of a variance: a product of results of dots is subtracted from a dot of the product"
_REST = "subtracted from its own operand: they may nearly cancel"
_STENCIL = "multiplies with an array whose elements add up to 0: a difference of near values"
_PRODUCTS = frozenset({Trait.RAISES, Trait.MULTIPLIES})
_ADDS, _CONTRACTS, _PARTS = Trait.ADDS, Trait.CONTRACTS, Trait.PARTS  # bound once: these are hot
_SUMS = frozenset({Trait.SUMS, Trait.ADDS})
_OF_NORMS = frozenset({Trait.ADDS, Trait.RAISES, Trait.ROOTS})


def keep_distances(classes: Classes, background: Background) -> Classes:
    """Denies dots that are added to the squares of their own operands, and dots of moments.

    Args:
        classes: the class of each node.
        background: the program.

    Returns:
        New classes; the same object if there are no such dots.
    """
    graph = background.graph
    search = _Search(graph, classes, background.ranges)
    reasons: dict[int, str] = {}
    sums = (node.index for node in graph.having(_ADDS))
    for index in sorted(classes.dots(graph).union(sums)):
        node = graph.nodes[index]
        if classes.is_dot(node) and search.is_of_distances(node):
            gradients = search.gradients(node)
            reasons |= dict.fromkeys(gradients, _GRADIENT) | {node.index: _REASON}
            terms = (index for dot in gradients for index in search.sums_of(dot))
            reasons |= dict.fromkeys(terms, _TERMS)
        pairs = search.subtracted(node)
        reasons |= dict.fromkeys(search.rest(pairs), _REST)
        if _CONTRACTS in node.traits:
            reasons |= dict.fromkeys(search.differences(node), _STENCIL)
        elif pairs:
            reasons |= search.moments(pairs)
    return classes.with_denied(reasons, Rule.DISTANCE)


class _Search(Rests):
    """Searches the sums with a dot's result as a term for squares of the dot's operands."""

    def is_of_distances(self, dot: Node) -> bool:
        parts = [part for value in dot.inputs[:2] for part in self._parts(value)]
        operands = self._squares & set(map(self.origin, parts))
        if not operands:
            return False
        joined = parts if any(map(self._is_one, parts)) else []
        return any(
            operands & self._squared(value)
            for value in (*joined, *dot.inputs[2:], *self._added_to(dot))
            if self.graph.values[value].constant is None
        )

    def _parts(self, value: int) -> Sequence[int]:
        """Returns the arrays that are concatenated to a value, or the value itself."""
        node = self.graph.maker(self.origin(value))
        return (value,) if node is None or _PARTS not in node.traits else node.inputs

    def _is_one(self, value: int) -> bool:
        """Checks if all elements are 1, the factor of the squares of the other operand."""
        known = self.graph.values[value].constant
        return known is not None and known.low == known.high == 1.0

    def _factors(self, node: Node) -> Sequence[int]:
        """Returns the operands that a node multiplies: those of a power without its exponent."""
        values = (self.graph.values[v] for v in node.inputs[1:])
        fixed = all(value.constant is not None or not value.paintable for value in values)
        return node.inputs[:1] if Trait.RAISES in node.traits and fixed else node.inputs

    @functools.cached_property
    def _squares(self) -> set[int]:
        """The values whose squares some node sums."""
        nodes = self.graph.having(_CONTRACTS, *_SUMS)
        return set[int]().union(*(self._squared_by(node) or () for node in nodes))

    def _squared_by(self, node: Node) -> set[int] | None:
        """Returns the values whose squares a node sums itself; ``None`` if it is not such a sum."""
        if _CONTRACTS in node.traits and len(set(node.inputs)) == 1:
            return {self.origin(node.inputs[0])}
        summed = [v for v in node.inputs if self.graph.values[v].paintable]  # the axes are integers
        if len(summed) == 1 and not node.traits.isdisjoint(_SUMS):
            raises = Trait.RAISES in node.traits  # a norm squares its operand itself
            return {self.origin(summed[0])} if raises else self._base(summed[0])
        return None

    def sums_of(self, dot: int) -> list[int]:
        """Returns the next sums with the result of a dot as a term, which round what cancels.

        The gradient of a residual stream is such a chain of sums too, so a few of them count.
        """
        queue = list(self.graph.nodes[dot].outputs)
        found, seen = list[int](), set(queue)
        while queue and len(found) < _MOST_TERMS:
            for reader, _ in self.graph.consumers[queue.pop(0)]:
                node = self.graph.nodes[reader]
                adds = _ADDS in node.traits and len(node.inputs) == 2
                if adds or keeps(self.graph, node):
                    found += [reader] if adds else []
                    queue += self._new(node.outputs, seen)
        return found

    def _added_to(self, dot: Node) -> list[int]:
        """Returns the other operands of sums and differences with the result of a dot."""
        found, queue, seen = list[int](), list(dot.outputs), set(dot.outputs)
        while queue:
            value = queue.pop()
            for reader, slot in self.graph.consumers[value]:
                node = self.graph.nodes[reader]
                if _ADDS in node.traits and len(node.inputs) == 2:
                    found.append(node.inputs[1 - slot])
                    queue += self._new(node.outputs, seen)
                elif keeps(self.graph, node):
                    queue += self._new(node.outputs, seen)
        return found

    def _squared(self, value: int) -> set[int]:
        """Returns the values whose squares a value sums, apart from other terms and a scale."""
        found, walk = set[int](), Walk(self.graph, [value])
        for _, node in walk:
            squares = self._squared_by(node)
            if squares is not None:
                found |= squares
            elif not node.traits.isdisjoint(_OF_NORMS) or keeps(self.graph, node):
                walk.to(self._factors(node))
        return found

    def _base(self, value: int) -> set[int]:
        """Returns the value of which a value is the square, if it is one."""
        node = self.graph.maker(value)
        if node is None or node.traits.isdisjoint(_PRODUCTS):
            return set()
        origins = set(map(self.origin, self._factors(node)))
        return origins if len(origins) == 1 else set()

    def moments(self, pairs: Iterable[Sequence[int]]) -> dict[int, str]:
        """Returns what rounds in the variance or covariance that a difference computes."""
        for value, other in pairs:
            products = self._products(other)
            for joint, factors in self._second_moments(value) if products else ():
                read = [v for product in products for v in self._factors(product)]
                means = [self._means(v, factors, joint) for v in read]
                reached = [found for _, found in means]
                if all(reached) and factors <= set[int]().union(*reached):
                    sums = [*joint, *products, *(n for way, _ in means for n in way)]
                    return self._rounding(sums, factors)
        return {}

    def _rounding(self, sums: Sequence[Node], factors: set[int]) -> dict[int, str]:
        """Returns the dots of some sums, those of their gradients, and what makes the factors.

        Where neither dots nor windows sum, the variance is that of a norm, which has its own rules.
        """
        dots = [made for made in sums if self._is_allowed(made)]
        windows = [made for made in sums if Trait.POOLS in made.traits]
        if not dots and not windows:
            return {}
        products = (made for made in sums if _CONTRACTS in made.traits)
        alike = (index for made in products for index in self._alike(made, factors))
        gradients = {*alike, *(index for dot in dots for index in self.gradients(dot))}
        found = [made.index for made in (*dots, *self._inferred((*windows, *self.makers(factors))))]
        return dict.fromkeys(gradients, _GRADIENT) | dict.fromkeys(found, _MOMENT)

    def _alike(self, dot: Node, factors: set[int]) -> list[int]:
        """Returns the dots with an operand of a dot and a value as large as its result.

        Next to a factor, this is a value made later, as in a gradient, and no weight of a layer.
        """
        values, size = self.graph.values, self.graph.values[dot.outputs[0]].size
        return [
            index
            for origin in dict.fromkeys(map(self.origin, dot.inputs))
            for index, value in self._read_with.get(origin, ())
            if values[value].size == size
            and (origin not in factors or values[value].producer > dot.index)
        ]

    def subtracted(self, node: Node) -> list[Sequence[int]]:
        """Returns the pairs of values that a node, or a dot that adds an operand, subtracts."""
        if node.attributes.get("subtracts"):
            return [(node.outputs[0], node.inputs[2])]
        pair = len(node.inputs) == 2 and subtracts(self.graph, node)
        return [node.inputs, node.inputs[::-1]] if pair else []

    def _second_moments(self, value: int) -> Iterator[tuple[tuple[Node, ...], set[int]]]:
        """Yields the sums of products that a value may be: the nodes that sum, and the factors."""
        queue: list[tuple[int, tuple[Node, ...]]] = [(value, ())]
        for reader, before in queue:
            made = self.graph.maker(self.origin(reader))
            if made is None or not self._sums(made):
                continue
            way = (*before, made)
            if len(made.inputs) == 2:
                yield way, set(map(self.origin, made.inputs))
            for operand in made.inputs:
                products = self._products(operand)
                if products:
                    yield way, {self.origin(v) for made in products for v in self._factors(made)}
                else:
                    queue.append((operand, way))

    def _products(self, value: int) -> list[Node]:
        """Returns the products that a value is the sum of: one or a few; else empty."""
        found, queue = list[Node](), [value]
        while queue and len(found) < _MOST_TERMS:
            made = self.graph.maker(self.origin(queue.pop()))
            if made is not None and self._multiplies(made):
                found.append(made)
            elif made is not None and _ADDS in made.traits:
                queue += made.inputs
            else:
                return []
        return [] if queue else found

    def _means(
        self, value: int, factors: set[int], joint: Collection[Node]
    ) -> tuple[list[Node], set[int]]:
        """Returns the nodes that sum factors up to a value, without ``joint``, and the factors."""
        way, reached, queue = list[Node](), set[int](), [self.origin(value)]
        for origin in queue:
            if way and origin in factors:
                reached.add(origin)
                continue
            made = self.graph.maker(origin)
            if made is not None and self._sums(made) and made not in joint:
                way.append(made)
                queue += map(self.origin, made.inputs)
        return way, reached

    def _multiplies(self, node: Node) -> bool:
        """Returns True if a node multiplies element by element, or is an outer product."""
        outer = Trait.CONTRACTS in node.traits and not self._is_allowed(node)
        return outer or not node.traits.isdisjoint(_PRODUCTS)

    def _sums(self, node: Node) -> bool:
        """Returns True if a node sums over an axis or a window, weighted or not."""
        return not node.traits.isdisjoint({Trait.CONTRACTS, Trait.SUMS})

    @staticmethod
    def _new(values: Iterable[int], seen: set[int]) -> list[int]:
        found = [value for value in values if value not in seen]
        seen.update(found)
        return found
