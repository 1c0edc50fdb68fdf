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
the left, where both come from one rounded array; so on the right there must be none:

- both dots hand on their float32 sums (rule ``unrounded``),
- ``p``, a quotient ``e / sum(e)``, adds up to 1 only before it is rounded. ``dot(p, v)`` becomes
  ``dot(half(e), v) / sum(half(e))``, with shares that add up to 1 as they are.

Who calls this: :mod:`duotone.road`, for devices whose dots calculate on. Carried out by
:mod:`duotone.jaxpr.reductions`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from duotone.graph.factors import is_common
from duotone.graph.graph import RESHAPES, SMALL, Graph, Node, Paint
from duotone.graph.painting import Painting


@dataclasses.dataclass(frozen=True, slots=True)
class Trilinear:
    """A sum of products with a dot, from the other dot of the same operand.

    Attributes:
        dot: the result of the other dot.
        other: what it is multiplied with, as large as it is: the other operand of the first dot.
        reader: the node that reads ``other``: the first dot.
        axes: of both, to be summed.
        order: of the axes that remain, the order in which the original sum has them.
        factors: values to multiply the sum with, each with the node that reads it.
        divisors: values to divide it by, likewise.
        negative: whether the sum's sign changes.
    """

    dot: int
    other: int
    reader: int
    axes: tuple[int, ...]
    order: tuple[int, ...]
    factors: tuple[tuple[int, int], ...]
    divisors: tuple[tuple[int, int], ...]
    negative: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """A dot of shares of a sum, which is divided by the sum behind it.

    Attributes:
        slot: where the dot reads the shares.
        parts: what they are shares of the sum of.
        reader: the node that divides.
        axes: of the parts, added up by sum and dot.
        order: of the axes that remain, the order in which the dot's result has them.
        free: axes of the result that the other operand has.
    """

    slot: int
    parts: int
    reader: int
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


def plan_trilinear(graph: Graph, painting: Painting) -> Trilinears:
    """Finds sums of products with a dot that are less from another dot.

    Args:
        graph: the program.
        painting: its colours.
    """
    sums: dict[int, Trilinear] = {}
    shares: dict[int, Shares] = {}
    for node in graph.nodes:
        if node.op == "reduce_sum" and painting.is_full(node):
            found = _Finder(graph, painting, node).find()
            if found is not None:
                sums[node.index], (dot, shares[dot]) = found[0], found[1:]
    return Trilinears(sums, shares)


def unrounded(painting: Painting, plans: Trilinears) -> Painting:
    """The painting, with the dots that trilinear sums need handing on their float32 sums.

    Args:
        painting: of any painter.
        plans: the trilinear sums.
    """
    store, rules = list(painting.store), list(painting.rules)
    firsts = {plan.reader for plan in plans.sums.values()}
    for index in firsts | set(plans.shares):
        if store[index] is Paint.HALF:
            store[index], rules[index] = Paint.FULL, "unrounded"
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

    def __init__(self, graph: Graph, painting: Painting, node: Node) -> None:
        self._graph = graph
        self._painting = painting
        self._node = node
        axes = node.attributes.get("axes", ())
        assert isinstance(axes, tuple)
        self._axes = axes

    def find(self) -> tuple[Trilinear, int, Shares] | None:
        """The plan for the sum, the other dot and its plan; ``None`` if there is none that pays."""
        for whole in self._peeled(self._node.inputs[0]):
            made = self._full(whole.value)
            if made is None or made.op != "mul" or not self._alike(made, *made.inputs):
                continue
            for one, other in (made.inputs, made.inputs[::-1]):
                for product in self._peeled(one):
                    dot, order = self._dot(product.value)
                    if dot is not None:
                        return self._of_shares(dot, order, whole.times(product), other)
        return None

    def _of_shares(
        self, dot: Node, order: Sequence[int], product: _Term, other: int
    ) -> tuple[Trilinear, int, Shares] | None:
        """The plans, if ``other`` comes from shares that another dot reads."""
        for rest in self._peeled(other):
            for shares, division in self._shares(rest):
                for reader, slot in self._graph.consumers[shares.value]:
                    second = self._graph.nodes[reader]
                    if self._is_dot(second) and reader < self._node.index:
                        term = product.times(shares)
                        found = self._matched(dot, order, second, slot, term, division)
                        if found is not None:
                            return found
        return None

    def _maker(self, value: int) -> Node | None:
        """The node that makes a value beside the sum."""
        producer = self._graph.values[value].producer
        if producer < 0 or self._graph.nodes[producer].body != self._node.body:
            return None
        return self._graph.nodes[producer]

    def _full(self, value: int) -> Node | None:
        """The node that makes a value beside the sum, if it is full as well."""
        made = self._maker(value)
        return made if made is not None and self._painting.is_full(made) else None

    def _is_dot(self, node: Node) -> bool:
        """Whether a node is a dot beside the sum with half operands, and no pin."""
        free = self._painting.rules[node.index] != "pinned"
        half = free and self._painting.compute[node.index] is Paint.HALF
        return half and "labels" in node.attributes and node.body == self._node.body

    def _alike(self, made: Node, *operands: int) -> bool:
        """Whether operands are as large as a node's result, instead of repeated to be so."""
        values = self._graph.values
        return all(values[each].shape == values[made.outputs[0]].shape for each in operands)

    def _peeled(self, value: int) -> Iterator[_Term]:
        """A value, and what is left of it without one common factor after the other."""
        term: _Term | None = _Term(value)
        while term is not None:
            yield term
            made = self._full(term.value)
            step = None if made is None else self._without_factor(made)
            term = None if step is None else term.times(step)

    def _without_factor(self, made: Node) -> _Term | None:
        if made.op == "neg":
            return _Term(made.inputs[0], negative=True)
        if made.op == "div" and self._combines(made, *made.inputs):
            return _Term(made.inputs[0], divisors=((made.inputs[1], made.index),))
        if made.op == "mul":
            for operand, factor in (made.inputs, made.inputs[::-1]):
                if self._combines(made, operand, factor):
                    return _Term(operand, factors=((factor, made.index),))
        return None

    def _combines(self, made: Node, operand: int, factor: int) -> bool:
        """Whether a node only combines ``operand`` with what is the same for all added up."""
        values = self._graph.values
        shape = values[made.outputs[0]].shape
        return self._alike(made, operand) and is_common(values[factor].shape, shape, self._axes)

    def _shares(self, term: _Term) -> Iterator[tuple[_Term, Node]]:
        """Shares that a value is, or that it has the parts of, and the division."""
        made = self._full(term.value)
        if made is not None and self._is_softmax(made):
            yield term, made
        for reader, slot in self._graph.consumers[term.value]:
            made = self._graph.nodes[reader]
            if slot == 0 and self._painting.is_full(made) and self._is_softmax(made):
                divisor = (made.inputs[1], made.index)
                yield term.times(_Term(made.outputs[0], factors=(divisor,))), made

    def _is_softmax(self, made: Node) -> bool:
        """Whether a node divides exponentials by their sum over the axes of ours.

        Of numbers that cancel, the sum of rounded ones may be another one altogether.
        """
        if made.op != "div" or not self._combines(made, *made.inputs):
            return False
        parts, total = made.inputs
        exponential = self._full(parts)
        if exponential is None or exponential.op not in ("exp", "exp2"):
            return False
        size = self._graph.values[total].size
        while (before := self._full(total)) is not None and before.op in RESHAPES:
            total = before.inputs[0]
            if self._graph.values[total].size != size:
                return False
        return (
            before is not None
            and before.op == "reduce_sum"
            and before.inputs[0] == parts
            and before.attributes.get("axes") == self._axes
        )

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
        dot: Node,
        order: Sequence[int],
        second: Node,
        slot: int,
        term: _Term,
        division: Node,
    ) -> tuple[Trilinear, int, Shares] | None:
        """The plans, if the operands of both dots and the sum are those of one trilinear form.

        Args:
            dot: the dot whose result is multiplied.
            order: how its result is transposed.
            second: the other dot.
            slot: where it reads the shares.
            term: the shares and the factors.
            division: the node that makes the shares.
        """
        values = self._graph.values
        shared, result = second.inputs[1 - slot], second.outputs[0]
        if shared not in dot.inputs:
            return None
        other = dot.inputs[1 - dot.inputs.index(shared)]
        if not (values[other].paintable and values[other].shape == values[result].shape):
            return None
        left, right, out = labels_of(self._graph, second)
        mine, theirs = (left, right) if slot == 0 else (right, left)
        names = _renamed(self._graph, dot, shared, theirs, out)
        if names is None or [names[axis] for axis in order] != [*mine]:
            return None
        kept = [label for label in mine if label in out]
        if [axis for axis, label in enumerate(mine) if label not in out] != sorted(self._axes):
            return None
        here = [label for label in out if label in kept]
        free = tuple(axis for axis, label in enumerate(out) if label not in kept)
        less = _elements(values[result].shape, free) * SMALL
        if not less <= _elements(values[term.value].shape, self._axes):
            return None  # what is written in float32 would cost as much as is saved
        there = tuple(here.index(label) for label in kept)
        back = tuple(kept.index(label) for label in here)
        plan = Trilinear(
            result, other, dot.index, free, there, term.factors, term.divisors, term.negative
        )
        shares = Shares(slot, division.inputs[0], division.index, self._axes, back, free)
        return plan, second.index, shares


def _elements(shape: Sequence[object], axes: Sequence[int]) -> float:
    """How many elements there are along some axes; NaN where a dimension is symbolic."""
    sizes = [shape[axis] for axis in axes]
    return math.prod(size if isinstance(size, int) else math.nan for size in sizes)


def labels_of(graph: Graph, dot: Node) -> tuple[tuple[int, ...], ...]:
    """The labels of the axes of a dot's left operand, right operand and result."""
    labels = dot.attributes["labels"]
    assert isinstance(labels, tuple)
    left, right = (len(graph.values[value].shape) for value in dot.inputs)
    return labels[:left], labels[left : left + right], labels[left + right :]


def _renamed(
    graph: Graph, dot: Node, shared: int, theirs: Sequence[int], out: Sequence[int]
) -> list[int] | None:
    """The labels of a dot's result, as another dot names them; ``None`` if the two do not fit.

    Args:
        graph: the program.
        dot: a dot of ``shared`` and of an operand with the axes of the other dot's result.
        shared: the operand that both dots have.
        theirs: how the other dot names the axes of ``shared``.
        out: how it names those of its result.
    """
    left, right, result = labels_of(graph, dot)
    first, second = (left, right) if dot.inputs[0] == shared else (right, left)
    names: dict[int, int] = dict(zip(first, theirs, strict=True))
    for label, name in zip(second, out, strict=True):
        if names.setdefault(label, name) != name:
            return None
    if len(set(names.values())) < len(names):
        return None
    return [names[label] for label in result]
