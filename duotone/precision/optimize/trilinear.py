"""Trilinear sums: of two contractions in a row, the one with the smaller result goes first.

::

    sum over k of  p[q, k] * dot(g, v)[q, k]    =    sum over d of  g[q, d] * dot(p, v)[q, d]

Both are the sum over ``k`` and ``d`` of ``p[q, k] * g[q, d] * v[k, d]``. The gradient of an
attention's softmax subtracts the sum on the left, over all keys, from ``dot(g, v)``. The right
side uses the result of the attention, which has one element per channel instead of per key. The
identity is FlashAttention's (Dao et al., 2022, arXiv:2205.14135, section B.2). If the sum is
known beforehand, the kernel of ``dot(g, v)`` also computes the gradient of the scores, from
float32 sums that it never rounds. Otherwise it writes ``dot(g, v)`` in half, and every later dot
reads that and the scores.

If the values have an offset, both terms of the difference are large and almost equal. On the left
the roundings cancel, because both terms come from one rounded array. On the right there must be no
roundings, or they must be the same in both terms:

- Both dots keep their float32 accumulators (rule ``unrounded``).
- ``g`` is rounded in the same way as ``dot(g, v)`` reads it.
- The shares ``p = e / sum(e)`` add up to 1 only before they are rounded. So ``dot(p, v)`` becomes
  ``dot(half(e), v) / sum(half(e))``, whose shares add up to 1 as they are. Nothing overflows on the
  way, because the exponentials of a softmax are at most about 1.

The derivatives of both are those of the original operations. This is for devices whose compiler
fuses elementwise operations into a dot's kernel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from duotone.graph.graph import SMALL, Node, Paint
from duotone.ops.traits import Trait
from duotone.precision.optimize.factors import parts_of, write_factor
from duotone.precision.optimize.labels import labels_of, renamed
from duotone.precision.optimize.optimization import NOBODY, Expression, ExpressionStep, Optimization
from duotone.precision.optimize.painted_view import View
from duotone.precision.rules import Rule

NAME = "trilinear"
_LARGEST = 2.0
"""The largest exponential of numbers less their maximum, rounding errors included."""
_LONGEST_CHAIN = 16


def match(node: Node, view: View) -> Optimization | None:
    """Matches a sum of products of shares with a dot, and computes it from the shares' dot."""
    return _Finder(node, view).find() if view.is_full(node) else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Term:
    """A value, and the factors and divisors that turn it into the program's value."""

    value: int
    factors: tuple[tuple[int, int], ...] = ()
    divisors: tuple[tuple[int, int], ...] = ()
    negative: bool = False

    def times(self, other: _Term) -> _Term:
        """Returns the other's value, with the factors of both."""
        return _Term(
            other.value,
            self.factors + other.factors,
            self.divisors + other.divisors,
            self.negative ^ other.negative,
        )


class _Finder:
    """The search upstream of one sum."""

    def __init__(self, node: Node, view: View) -> None:
        self._node = node
        self._view = view
        self._axes = view.axes(node)

    def find(self) -> Optimization | None:
        """Returns the optimization of the sum and of the shares' dot; ``None`` if none pays."""
        if not self._added() >= SMALL:
            return None
        for whole in self._peeled(self._node.inputs[0]):
            made = self._full(whole.value)
            multiplied = made is not None and Trait.MULTIPLIES in made.traits
            if made is None or not (multiplied and self._alike(made, *made.inputs)):
                continue
            for one, other in (made.inputs, made.inputs[::-1]):
                for product in self._peeled(one):
                    summed, order = self._dot(product.value)
                    if summed is not None:
                        found = self._of_shares(summed, order, whole.times(product), other)
                        if found is not None:
                            return found
        return None

    def _of_shares(
        self, summed: Node, order: Sequence[int], product: _Term, other: int
    ) -> Optimization | None:
        """Returns the optimization, if another dot reads ``other`` or the whole shares."""
        for rest in self._peeled(other):
            for shares, division in self._shares(rest):
                for dot, slot in self._view.readers(shares.value):
                    if self._is_dot(dot) and dot.index < self._node.index:
                        term = product.times(shares)
                        found = self._matched(summed, order, dot, slot, term, division)
                        if found is not None:
                            return found
        return None

    def _added(self) -> float:
        """Returns the number of terms of the sum."""
        return _elements(self._view.shape(self._node.inputs[0]), self._axes)

    def _maker(self, value: int) -> Node | None:
        return self._view.maker_in_body(self._node, value)

    def _full(self, value: int) -> Node | None:
        return self._view.full_maker(self._node, value)

    def _is_dot(self, node: Node) -> bool:
        """Checks if a node is an unpinned dot of the sum's body with two half operands."""
        return (
            "labels" in node.attributes
            and node.body == self._node.body
            and self._view.computes_half(node)
            and self._view.painting.rules[node.index] is not Rule.PINNED
            and all(node.half_inputs)
        )

    def _alike(self, made: Node, *operands: int) -> bool:
        """Checks if operands are as large as a node's result, instead of being broadcast to it."""
        shape = self._view.shape(made.outputs[0])
        return all(self._view.shape(operand) == shape for operand in operands)

    def _peeled(self, value: int) -> Iterator[_Term]:
        """Yields a value, then the same value without one common factor, without two, and so on."""
        term: _Term | None = _Term(value)
        for _ in range(_LONGEST_CHAIN):
            if term is None:
                return
            yield term
            made = self._full(term.value)
            step = None if made is None else self._without_factor(made)
            term = None if step is None else term.times(step)

    def _without_factor(self, made: Node) -> _Term | None:
        if Trait.DIVIDES in made.traits and self._combines(made, *made.inputs):
            return _Term(made.inputs[0], divisors=((made.inputs[1], made.index),))
        operand, factor = parts_of(self._view, made, self._axes)
        if operand is None:
            return None
        if factor is None:
            return _Term(operand, negative=True)
        return _Term(operand, factors=((factor, made.index),))

    def _combines(self, made: Node, operand: int, factor: int) -> bool:
        """Checks if a node combines ``operand`` with a value that all terms of the sum share."""
        shape = self._view.shape(made.outputs[0])
        return self._alike(made, operand) and self._view.is_common(factor, shape, self._axes)

    def _shares(self, term: _Term) -> Iterator[tuple[_Term, Node]]:
        """Yields shares with the node that divides, if ``term`` is shares or their numerators."""
        made = self._full(term.value)
        if made is not None and self._is_softmax(made):
            yield term, made
        for division, slot in self._view.readers(term.value):
            if slot == 0 and self._view.is_full(division) and self._is_softmax(division):
                divisor = (division.inputs[1], division.index)
                yield term.times(_Term(division.outputs[0], factors=(divisor,))), division

    def _is_softmax(self, division: Node) -> bool:
        """Returns True if a node divides exponentials by their sum over the same axes as the sum's.

        For numbers of both signs the test fails, since the sum of their roundings may be far off.
        """
        if Trait.DIVIDES not in division.traits or not self._combines(division, *division.inputs):
            return False
        parts, total = division.inputs
        exponential, known = self._full(parts), self._view.known(parts)
        if exponential is None or Trait.EXPONENTIAL not in exponential.traits:
            return False
        if known is None or not 0.0 <= known[0] <= known[1] <= _LARGEST:
            return False
        added = self._unshaped(total)
        return (
            added is not None
            and Trait.SUMS_AXES in added.traits
            and added.inputs[0] == parts
            and added.attributes.get("axes") == self._axes
        )

    def _unshaped(self, value: int) -> Node | None:
        """Returns the node that makes the elements of a value in this order, through reshapes."""
        size = self._view.value(value).size
        while (made := self._full(value)) is not None and Trait.RESHAPES in made.traits:
            value = made.inputs[0]
            if self._view.value(value).size != size or "permutation" in made.attributes:
                return None
        return made

    def _dot(self, value: int) -> tuple[Node | None, Sequence[int]]:
        """Returns the dot that makes a value, and the permutation of its result."""
        made = self._maker(value)
        order: Sequence[int] = range(len(self._view.shape(value)))
        if made is not None and Trait.TRANSPOSES in made.traits:
            order = self._view.axes(made, "permutation")
            made = self._maker(made.inputs[0])
        return (made if made is not None and self._is_dot(made) else None), order

    def _matched(
        self,
        summed: Node,
        order: Sequence[int],
        dot: Node,
        slot: int,
        term: _Term,
        division: Node,
    ) -> Optimization | None:
        """Returns the optimization, if both dots and the sum are one trilinear form.

        Args:
            summed: the dot whose result the sum's operand is a product of.
            order: the permutation of that result.
            dot: the dot that reads the shares.
            slot: the slot in which it reads them.
            term: the shares and the factors.
            division: the node that makes the shares.
        """
        view, graph = self._view, self._view.graph
        shared, result = dot.inputs[1 - slot], dot.outputs[0]
        if shared not in summed.inputs:
            return None
        operand = summed.inputs[1 - summed.inputs.index(shared)]
        if view.shape(operand) != view.shape(result):
            return None
        left, right, out = labels_of(graph, dot)
        mine, theirs = (left, right) if slot == 0 else (right, left)
        names = renamed(graph, summed, shared, theirs, out)
        if names is None or [names[axis] for axis in order] != [*mine]:
            return None
        kept = [label for label in mine if label in out]
        if [axis for axis, label in enumerate(mine) if label not in out] != sorted(self._axes):
            return None
        here = [label for label in out if label in kept]
        free = tuple(axis for axis, label in enumerate(out) if label not in kept)
        if not _elements(view.shape(result), free) * SMALL <= self._added():
            return None  # writing the result in float32 would cost as much as this saves
        there = tuple(here.index(label) for label in kept)
        back = tuple(kept.index(label) for label in here)
        return Optimization(
            NAME,
            self._node.index,
            f"from the {dot.op} that gave {view.value(result).size} elements, not of "
            f"{view.value(summed.outputs[0]).size}",
            self._sum(summed, operand, result, (free, there), term),
            (summed.index, dot.index),
            (
                Optimization(
                    NAME,
                    dot.index,
                    "divided by the sum of the parts that it reads, for a sum of its result",
                    self._dot_of_shares(dot, slot, division, (back, free)),
                ),
            ),
        )

    def _sum(
        self,
        summed: Node,
        operand: int,
        result: int,
        axes: tuple[tuple[int, ...], tuple[int, ...]],
        term: _Term,
    ) -> tuple[ExpressionStep, ...]:
        """Returns the sum of products with a result, along ``axes[0]``, permuted by ``axes[1]``."""
        node, view, write = self._node, self._view, Expression()
        plain = write("own", write.read(node.inputs[0], node.index))
        rounded = write("rounded", write.read(operand, summed.index))
        products = write("multiply", rounded, write.read(result, NOBODY))
        found = write("transpose", write("sum", products, to=axes[:1]), to=axes[1:])
        for name, values in (("multiply", term.factors), ("divide", term.divisors)):
            for value, reader in values:
                found = write(name, found, write_factor(view, write, node, value, reader))
        write("instead", plain, write("negate", found) if term.negative else found)
        return write.steps

    def _dot_of_shares(
        self, dot: Node, slot: int, division: Node, axes: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> tuple[ExpressionStep, ...]:
        """Returns the dot of the numerators, divided by their sum.

        Dot and sum read the same rounded numerators, so that their shares add up to 1.
        """
        write, (back, free) = Expression(), axes
        operands = [write.read(value, dot.index, Paint.HALF) for value in dot.inputs]
        plain = write("own", *operands)
        parts = division.inputs[0]
        operands[slot] = write.read(parts, division.index, Paint.HALF)
        rounded = write("rounded", write.read(parts, division.index))
        total = write("transpose", write("sum", rounded, to=(self._axes,)), to=(back,))
        wide = write("own", *operands)
        write("instead", plain, write("divide", wide, write("expand", total, to=(free,))))
        return write.steps


def _elements(shape: Sequence[object], axes: Sequence[int]) -> float:
    """Returns the number of elements along some axes; NaN if a dimension is symbolic."""
    sizes = [shape[axis] for axis in axes]
    return math.prod([float(size) if isinstance(size, int) else math.nan for size in sizes])
