"""Steps of a descent: sums that move an operand of a dot along the gradient of that dot.

``w = w - rate * gradient`` adds little to a large value, many times over. In half a small step adds
nothing at all. The optimizer of a training step is float32 because it leads to an output, but the
steps of a loop over batches, or several steps one by one, lead to dots again::

    P = dot(a, w)           a layer, or the first layer if x is what moves (an attack)
    G = dot(a, d)           the gradient: d follows from P, and is as large as P's result
    w + ... number * G ...  the step: arithmetic, moments and clips, but no dot in between

A residual stream looks different, since its layers read other weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from duotone.graph.graph import Graph, Node
from duotone.graph.reach import Walk
from duotone.graph.terms import is_one, is_state, moved, scales
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.safety.dot_operands import Dots

_SUMS = 8
"""How many sums of one step are looked at, at most."""


def find_steps(graph: Graph, classes: Classes) -> dict[int, set[int]]:
    """Finds the steps of descents after which a dot or an iteration reads the result.

    Args:
        graph: the program.
        classes: the class of each node.

    Returns:
        By the index of a sum, the indices of the arithmetic between the gradient and the sum.
    """
    search = _Search(graph, classes)
    found: dict[int, set[int]] = {}
    for node in graph.having(Trait.ADDS):
        if search.goes_on(node):
            sums, terms = search.terms(node)
            weights = filter(search.may_descend, search.weights(terms))
            ways = [search.way(weight, term) for weight in weights for term in terms]
            if any(ways):
                way = {made.index for made in sums}.union(*ways)
                found.setdefault(node.index, set()).update(way)
    return found


class _Search(Dots):
    """Searches the terms of sums for gradients of a dot that reads the other term."""

    def goes_on(self, node: Node) -> bool:
        """Returns True if arithmetic alone leads from a sum to a dot, or to a next iteration.

        A sum that the program returns is float32 anyway, since it is state.
        """
        again = not self._read_again.isdisjoint(node.outputs)
        return again and self._returned.isdisjoint(node.outputs)

    def terms(self, node: Node) -> tuple[list[Node], list[int]]:
        """Returns the sums of sums that lead to a sum, up to earlier steps, and their terms."""
        sums, terms = [node], list[int]()
        size = self.graph.values[node.outputs[0]].size
        for made in sums:
            for value in made.inputs:
                maker = self.graph.maker(value)
                adds = maker is not None and Trait.ADDS in maker.traits
                if maker is None or not adds or self._is_read(value) or len(sums) >= _SUMS:
                    terms.append(value)
                else:
                    sums.append(maker)
        return sums, [value for value in terms if self._counts(value, size)]

    def weights(self, terms: list[int]) -> set[int]:
        """Returns the sources of some terms that dots read."""
        return {source for term in terms if (source := self.source(term)) in self._read}

    def may_descend(self, weight: int) -> bool:
        """Checks if a dot may be the gradient of a weight, by the sizes of its operands alone."""
        found = self._descents.get(weight)
        if found is None:
            layers = self._read[weight]
            found = any(self._last_with(layer, weight) > layer.index for layer in layers)
            self._descents[weight] = found
        return found

    def _last_with(self, layer: Node, weight: int) -> int:
        """Returns the last dot of another operand of a layer and a value the size of its result."""
        size = self.graph.values[layer.outputs[0]].size
        sources = map(self.source, layer.inputs)
        return max((self._last.get((s, size), -1) for s in sources if s != weight), default=-1)

    @functools.cached_property
    def _descents(self) -> dict[int, bool]:
        return {}

    @functools.cached_property
    def _last(self) -> dict[tuple[int, int], int]:
        """By the source of an operand and the size of the other one, the last dot with both."""
        values, found = self.graph.values, dict[tuple[int, int], int]()
        for node in self.pairs:
            for value, other in (node.inputs, node.inputs[::-1]):
                found[self.source(other), values[value].size] = node.index
        return found

    def way(self, weight: int, term: int) -> set[int]:
        """Returns the arithmetic between the gradient of ``weight`` and a term; else nothing."""
        gradients, way = self._back(weight, term)
        scaled = any(self._is_scaled(self.graph.nodes[index]) for index in way)
        pairs = ((layer, dot) for layer in self._read[weight] for dot in gradients)
        if not scaled or not any(self._is_gradient(*pair, weight) for pair in pairs):
            return set()
        return {index for index in way if self.classes.nodes[index].kind is Kind.INFER}

    @functools.cached_property
    def _read(self) -> dict[int, list[Node]]:
        """By the source of an operand, the dots that read it."""
        found: dict[int, list[Node]] = {}
        for node in self.pairs:
            for value in set(map(self.source, node.inputs)):
                found.setdefault(value, []).append(node)
        return found

    @functools.cached_property
    def _read_again(self) -> set[int]:
        """The values from which arithmetic leads to an operand of a dot, or to a carry."""
        found, dots = set[int](), self.classes.dots(self.graph)
        values = self.graph.values
        for node in reversed(self.graph.nodes):
            if node.index in dots:
                found.update(node.inputs)
            elif is_state(node):
                found.update(node.inputs[1:])
            elif not found.isdisjoint(node.outputs):
                size = values[node.outputs[0]].size
                slices = Trait.ITERATES in node.traits
                found.update(v for v in node.inputs if slices or values[v].size == size)
        return found

    @functools.cached_property
    def _returned(self) -> set[int]:
        """The values that the program returns, moved or not."""
        return {moved(self.graph, value).index for value, _ in self.graph.outputs}

    @functools.cached_property
    def _streams(self) -> set[int]:
        """The sums that allow operations read."""
        return {
            value
            for value, dots in self._read.items()
            if (maker := self.graph.maker(value)) is not None
            and Trait.ADDS in maker.traits
            and any(self.classes.nodes[dot.index].kind is Kind.ALLOW for dot in dots)
        }

    def _is_read(self, value: int) -> bool:
        return value in self._read or any(
            is_state(self.graph.nodes[reader]) for reader, _ in self.graph.consumers[value]
        )

    def _back(self, weight: int, term: int) -> tuple[list[Node], set[int]]:
        """Walks back from a term to dots through values of one size.

        ``weight`` ends the walk, and so does any other sum that an allow operation reads: a stream.
        """
        dots, way, walk = list[Node](), set[int](), Walk(self.graph, [term])
        for value, node in walk:
            if value.index == weight or value.index in self._streams:
                continue
            if self.classes.is_dot(node):
                dots.append(node)
                continue
            way.add(node.index)
            stacks = Trait.STACKS in node.traits
            walk.to(v for v in node.inputs if stacks or self._counts(v, value.size))
        return dots, way

    def _counts(self, value: int, size: int) -> bool:
        found = self.graph.values[value]
        return found.paintable and found.size == size

    def _is_scaled(self, node: Node) -> bool:
        return scales(node) and any(is_one(self.graph, value) for value in node.inputs)

    def _is_gradient(self, layer: Node, dot: Node, weight: int) -> bool:
        """Returns True if a dot computes the gradient of another one's operand ``weight``."""
        if dot.index <= layer.index or len(dot.inputs) != 2:
            return False
        size = self.graph.values[layer.outputs[0]].size
        others = {s for s in map(self.source, layer.inputs) if s != weight}
        return any(
            self.graph.values[value].size == size and value in self._following(layer, dot.index)
            for value in self._next_to(dot, others)
        )

    def _next_to(self, dot: Node, sources: set[int]) -> Iterator[int]:
        """Yields the operands of a dot next to one that comes from one of some sources."""
        for value, other in (dot.inputs, dot.inputs[::-1]):
            if self.source(other) in sources:
                yield value
