"""Trilinear sums: of two contractions in a row, the one that leaves less goes first.

::

    sum over k of  p[q, k] * dot(g, v)[q, k]    =    sum over d of  g[q, d] * dot(p, v)[q, d]

Both are the sum over ``k`` and ``d`` of ``p[q, k] * g[q, d] * v[k, d]``. The gradient of an
attention's softmax subtracts the sum on the left, over all keys, from ``dot(g, v)``; on the right
is what the attention gave, with one element for each channel instead of each key. The identity is
FlashAttention's (Dao et al., 2022, arXiv:2205.14135, section B.2). With the sum known beforehand
the kernel of ``dot(g, v)`` calculates on, up to the gradient of the scores, with sums that are
never rounded; otherwise it writes them, in half, and every later dot reads them and the scores.

Values with an offset make both parts of the difference large and almost equal. Roundings cancel on
the left, where both come from one rounded array. On the right they must not arise, or be the same:

- both dots hand on their float32 sums (rule ``unrounded``),
- ``g`` is rounded as ``dot(g, v)`` reads it,
- ``p``, shares ``e / sum(e)``, adds up to 1 only before it is rounded. ``dot(p, v)`` becomes
  ``dot(half(e), v) / sum(half(e))``, of shares that add up to 1 as they are. With exponentials of
  at most about 1, as those of a softmax are, nothing overflows on the way.

Who calls this: :mod:`duotone.road`, for devices whose dots calculate on. Carried out by
:mod:`duotone.jaxpr.reductions`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from duotone.graph.factors import full_maker, is_common, parts_of
from duotone.graph.graph import RESHAPES, SMALL, Graph, Node, Paint
from duotone.graph.labels import labels_of, renamed
from duotone.graph.painting import Painting
from duotone.graph.ranges.interval import Known
from duotone.graph.rules import Rule

_LARGEST = 2.0
"""Of exponentials less their maximum, rounding errors included."""
_LONGEST_CHAIN = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Trilinear:
    """The sum of products of shares with a dot, from the dot of the shares.

    Attributes:
        summed: the node of the dot in the original sum.
        operand: what that dot reads and the other one does not, ``g``.
        result: of the dot of the shares, as large as ``operand``.
        axes: of both, to be summed.
        order: of the axes that remain, the order in which the original sum has them.
        factors: values to multiply the sum with, each with the node that reads it.
        divisors: values to divide it by, likewise.
        negative: whether the sum's sign changes.
    """

    summed: int
    operand: int
    result: int
    axes: tuple[int, ...]
    order: tuple[int, ...]
    factors: tuple[tuple[int, int], ...]
    divisors: tuple[tuple[int, int], ...]
    negative: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """A dot of shares of a sum, to be divided by the sum behind it.

    Attributes:
        slot: where the dot reads the shares.
        parts: what they are shares of the sum of.
        division: the node that makes them shares.
        axes: of the parts, added up by sum and dot.
        order: of the axes that remain, the order in which the dot's result has them.
        free: axes of the result that the other operand has.
    """

    slot: int
    parts: int
    division: int
    axes: tuple[int, ...]
    order: tuple[int, ...]
    free: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Trilinears:
    """The plans of a program.

    Attributes:
        sums: by the node of the sum.
        shares: by the node of the dot.
    """

    sums: Mapping[int, Trilinear] = dataclasses.field(default_factory=dict)
    shares: Mapping[int, Shares] = dataclasses.field(default_factory=dict)

    @property
    def nodes(self) -> set[int]:
        """What is carried out in another form."""
        return {*self.sums, *self.shares}

    @property
    def reads(self) -> Iterator[int]:
        """The values that are read for it."""
        for plan in self.sums.values():
            yield from (plan.operand, plan.result)
            yield from (value for value, _ in (*plan.factors, *plan.divisors))
        yield from (plan.parts for plan in self.shares.values())


def plan_trilinear(graph: Graph, painting: Painting, known: Callable[[int], Known]) -> Trilinears:
    """Finds sums of products with a dot that are less from another dot.

    Args:
        graph: the program.
        painting: its colours.
        known: the interval of a value, or ``None``.
    """
    sums: dict[int, Trilinear] = {}
    shares: dict[int, Shares] = {}
    for node in graph.nodes:
        if node.op == "reduce_sum" and painting.is_full(node):
            found = _Finder(graph, painting, known, node).find()
            if found is not None:
                sums[node.index], dot, plan = found
                shares[dot] = plan
    return Trilinears(sums, shares)


def unrounded(painting: Painting, plans: Trilinears) -> Painting:
    """The painting, with the dots that trilinear sums need handing on their float32 sums.

    Args:
        painting: of any painter.
        plans: the trilinear sums.
    """
    store, rules = list(painting.store), list(painting.rules)
    summed = {plan.summed for plan in plans.sums.values()}
    for index in summed | set(plans.shares):
        if store[index] is Paint.HALF:
            store[index], rules[index] = Paint.FULL, Rule.UNROUNDED
    return dataclasses.replace(painting, store=tuple(store), rules=tuple(rules))


@dataclasses.dataclass(frozen=True, slots=True)
class _Term:
    """A value, and what it must be multiplied with to be what the program has."""

    value: int
    factors: tuple[tuple[int, int], ...] = ()
    divisors: tuple[tuple[int, int], ...] = ()
    negative: bool = False

    def times(self, other: _Term) -> _Term:
        """The other's value, with the factors of both."""
        return _Term(
            other.value,
            self.factors + other.factors,
            self.divisors + other.divisors,
            self.negative ^ other.negative,
        )


class _Finder:
    """Looks behind one sum."""

    def __init__(
        self, graph: Graph, painting: Painting, known: Callable[[int], Known], node: Node
    ) -> None:
        self._graph = graph
        self._painting = painting
        self._known = known
        self._node = node
        axes = node.attributes.get("axes", ())
        assert isinstance(axes, tuple)
        self._axes = axes

    def find(self) -> tuple[Trilinear, int, Shares] | None:
        """The plan for the sum, the dot of the shares and its plan; ``None`` if none pays."""
        if not self._added() >= SMALL:
            return None
        for whole in self._peeled(self._node.inputs[0]):
            made = self._full(whole.value)
            if made is None or made.op != "mul" or not self._alike(made, *made.inputs):
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
    ) -> tuple[Trilinear, int, Shares] | None:
        """The plans, if ``other`` is shares that another dot reads, or parts of such."""
        for rest in self._peeled(other):
            for shares, division in self._shares(rest):
                for reader, slot in self._graph.consumers[shares.value]:
                    dot = self._graph.nodes[reader]
                    if self._is_dot(dot) and reader < self._node.index:
                        term = product.times(shares)
                        found = self._matched(summed, order, dot, slot, term, division)
                        if found is not None:
                            return found
        return None

    def _added(self) -> float:
        """How many terms the sum has."""
        return _elements(self._graph.values[self._node.inputs[0]].shape, self._axes)

    def _maker(self, value: int) -> Node | None:
        """The node that makes a value beside the sum."""
        producer = self._graph.values[value].producer
        if producer < 0 or self._graph.nodes[producer].body != self._node.body:
            return None
        return self._graph.nodes[producer]

    def _full(self, value: int) -> Node | None:
        """The node that makes a value beside the sum, if it is full as well."""
        return full_maker(self._graph, self._painting, self._node, value)

    def _is_dot(self, node: Node) -> bool:
        """Whether a node is a dot beside the sum that takes both operands in half, and no pin."""
        return (
            "labels" in node.attributes
            and node.body == self._node.body
            and self._painting.compute[node.index] is Paint.HALF
            and self._painting.rules[node.index] is not Rule.PINNED
            and all(node.half_inputs)
        )

    def _alike(self, made: Node, *operands: int) -> bool:
        """Whether operands are as large as a node's result, instead of repeated to be so."""
        values = self._graph.values
        return all(values[each].shape == values[made.outputs[0]].shape for each in operands)

    def _peeled(self, value: int) -> Iterator[_Term]:
        """A value, and what is left of it without one common factor after the other."""
        term: _Term | None = _Term(value)
        for _ in range(_LONGEST_CHAIN):
            if term is None:
                return
            yield term
            made = self._full(term.value)
            step = None if made is None else self._without_factor(made)
            term = None if step is None else term.times(step)

    def _without_factor(self, made: Node) -> _Term | None:
        if made.op == "div" and self._combines(made, *made.inputs):
            return _Term(made.inputs[0], divisors=((made.inputs[1], made.index),))
        operand, factor = parts_of(self._graph, made, self._axes)
        if operand is None:
            return None
        if factor is None:
            return _Term(operand, negative=True)
        return _Term(operand, factors=((factor, made.index),))

    def _combines(self, made: Node, operand: int, factor: int) -> bool:
        """Whether a node only combines ``operand`` with what is the same for all added up."""
        values = self._graph.values
        shape = values[made.outputs[0]].shape
        return self._alike(made, operand) and is_common(values[factor].shape, shape, self._axes)

    def _shares(self, term: _Term) -> Iterator[tuple[_Term, Node]]:
        """The value of ``term`` if it is shares, or shares of which it is the parts.

        Each with the node that divides.
        """
        made = self._full(term.value)
        if made is not None and self._is_softmax(made):
            yield term, made
        for reader, slot in self._graph.consumers[term.value]:
            division = self._graph.nodes[reader]
            if slot == 0 and self._painting.is_full(division) and self._is_softmax(division):
                divisor = (division.inputs[1], division.index)
                yield term.times(_Term(division.outputs[0], factors=(divisor,))), division

    def _is_softmax(self, division: Node) -> bool:
        """Whether a node divides exponentials by their sum over the axes of ours.

        Of numbers that cancel, the sum of rounded ones may be another one altogether.
        """
        if division.op != "div" or not self._combines(division, *division.inputs):
            return False
        parts, total = division.inputs
        exponential, known = self._full(parts), self._known(parts)
        if exponential is None or exponential.op not in ("exp", "exp2"):
            return False
        if known is None or not known[1] <= _LARGEST:
            return False
        added = self._unshaped(total)
        return (
            added is not None
            and added.op == "reduce_sum"
            and added.inputs[0] == parts
            and added.attributes.get("axes") == self._axes
        )

    def _unshaped(self, value: int) -> Node | None:
        """What makes the elements of a value, in this order."""
        size = self._graph.values[value].size
        while (made := self._full(value)) is not None and made.op in RESHAPES:
            value = made.inputs[0]
            if self._graph.values[value].size != size or "permutation" in made.attributes:
                return None
        return made

    def _dot(self, value: int) -> tuple[Node | None, Sequence[int]]:
        """The dot that makes a value, and how its result is transposed."""
        made = self._maker(value)
        order: Sequence[int] = range(len(self._graph.values[value].shape))
        if made is not None and made.op == "transpose":
            permutation = made.attributes["permutation"]
            assert isinstance(permutation, tuple)
            order, made = permutation, self._maker(made.inputs[0])
        return (made if made is not None and self._is_dot(made) else None), order

    def _matched(
        self,
        summed: Node,
        order: Sequence[int],
        dot: Node,
        slot: int,
        term: _Term,
        division: Node,
    ) -> tuple[Trilinear, int, Shares] | None:
        """The plans, if the operands of both dots and the sum are those of one trilinear form.

        Args:
            summed: the dot whose result is multiplied.
            order: how its result is transposed.
            dot: the dot of the shares.
            slot: where it reads them.
            term: the shares and the factors.
            division: the node that makes the shares.
        """
        values = self._graph.values
        shared, result = dot.inputs[1 - slot], dot.outputs[0]
        if shared not in summed.inputs:
            return None
        operand = summed.inputs[1 - summed.inputs.index(shared)]
        if values[operand].shape != values[result].shape:
            return None
        left, right, out = labels_of(self._graph, dot)
        mine, theirs = (left, right) if slot == 0 else (right, left)
        names = renamed(self._graph, summed, shared, theirs, out)
        if names is None or [names[axis] for axis in order] != [*mine]:
            return None
        kept = [label for label in mine if label in out]
        if [axis for axis, label in enumerate(mine) if label not in out] != sorted(self._axes):
            return None
        here = [label for label in out if label in kept]
        free = tuple(axis for axis, label in enumerate(out) if label not in kept)
        if not _elements(values[result].shape, free) * SMALL <= self._added():
            return None  # what is written in float32 would cost as much as is saved
        there = tuple(here.index(label) for label in kept)
        back = tuple(kept.index(label) for label in here)
        plan = Trilinear(
            summed.index, operand, result, free, there, term.factors, term.divisors, term.negative
        )
        parts = division.inputs[0]
        return plan, dot.index, Shares(slot, parts, division.index, self._axes, back, free)


def _elements(shape: Sequence[object], axes: Sequence[int]) -> float:
    """How many elements there are along some axes; NaN where a dimension is symbolic."""
    sizes = [shape[axis] for axis in axes]
    return math.prod([float(size) if isinstance(size, int) else math.nan for size in sizes])
