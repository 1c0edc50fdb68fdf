"""Facts: relations between two values, which intervals alone cannot see.

::

    m = max(x)              x - m <= 0, and it is 0 somewhere
    e = exp(x - max(x))     in (0, 1], and sum(e) >= 1
    t / sum(t), t >= 0      in [0, 1]                                      (softmax)
    c / sqrt(k sum(c^2) + eps), c * rsqrt(…)     at most k^-1/2 in size    (norms)

A :class:`Relation` travels with a value through operations that only move it (a broadcast of the
statistic back to the shape it was computed from). It keeps, for each axis of the value, which axis
of the source that is, so that the maximum over rows is never taken for that over columns.

Who calls this: :mod:`duotone.graph.ranges.find`, for the operations in :data:`FACTS`, after the
operation's rule. A fact returns an interval that holds besides the rule's, or ``None``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from duotone.graph.graph import Node, Value
from duotone.graph.ranges.interval import Interval, Known

_ROOM = 2.0**-10
_GUARD = 2.0**-80
"""A sum of squares below this may have lost its terms to underflow, and bounds nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Relation:
    """What a value is to another one, its source.

    Attributes:
        kind: ``max`` (no element of the source is larger), ``shifted`` (the source less its
            maximum), ``exp`` (its exponential), ``sum`` (of a source with no negative elements),
            ``square`` (element by element), ``squares`` (at least ``factor`` times the sum of
            squares), ``norm`` and ``inverse`` (the square root of such, and its reciprocal).
        source: the source.
        labels: for each axis of the value, the axis of the source, or -1 where it is
            constant along it.
        axes: axes of the source that were reduced.
        exact: of ``max``: it is the maximum, not something larger.
        factor: see ``squares``.
        terms: number of elements that were reduced to one.
    """

    kind: str
    source: int
    labels: tuple[int, ...]
    axes: tuple[int, ...] = ()
    exact: bool = False
    factor: float = 1.0
    terms: int = 1


class State:
    """What one pass over the nodes has found so far.

    Attributes:
        values: of the graph.
        known: intervals by value.
        relations: by value.
        origin: the value that another one is the same as.
        unit: values whose scale is about 1, so that it is their absolute error that counts.
        numbered: operations seen, by operands, so that a second one is known as the first: people
            write a mean twice, once in the variance. Only what leads from a sum to the difference
            of a value and its mean is looked at.
        sums: values that are sums of others, perhaps scaled and broadcast.
        moved: transposed values: of what, and which of its axes each of theirs is.
    """

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.known: dict[int, Interval] = {}
        self.relations: dict[int, Relation] = {}
        self.origin: dict[int, int] = {}
        self.unit: set[int] = set()
        self.numbered: dict[tuple[object, ...], int] = {}
        self.sums: set[int] = set()
        self.moved: dict[int, tuple[int, tuple[int, ...]]] = {}

    def same(self, value: int) -> int:
        """The first value that ``value`` is the same as."""
        return self.origin.get(value, value)

    def number_it(self, node: Node, *also: object) -> None:
        """Finds out whether an operation was there before.

        Args:
            node: the operation.
            also: what makes it what it is besides its operands and the shape of its result.
        """
        result = node.outputs[0]
        operands = [self.number(v) if self.is_number(v) else (self.same(v),) for v in node.inputs]
        key = (node.op, *operands, self.values[result].shape, *also)
        first = self.numbered.setdefault(key, result)
        if first != result:
            self.origin[result] = first

    def is_number(self, value: int) -> bool:
        """Whether a value is one known number everywhere."""
        return self.number(value) is not None

    def related(self, value: int, kind: str, source: int, shape: tuple[object, ...]) -> bool:
        """Whether ``value`` is that of ``source``, axis by axis, when read beside it."""
        found = self.relations.get(value)
        if found is None or found.kind != kind or self.values[source].shape != shape:
            return False
        order = self.order(source, found.source)
        return (
            order is not None
            and len(found.labels) == len(order)
            and all(label in (-1, axis) for axis, label in zip(order, found.labels, strict=True))
        )

    def order(self, value: int, source: int) -> tuple[int, ...] | None:
        """Which axis of ``source`` each axis of ``value`` is; ``None`` if it is another value."""
        value, order = self.same(value), tuple(range(len(self.values[value].shape)))
        while value != source:
            if value not in self.moved:
                return None
            value, permutation = self.moved[value]
            order = tuple(permutation[axis] for axis in order)
        return order

    def number(self, value: int) -> float | None:
        """The number that a value is everywhere, if it is one."""
        constant = self.values[value].constant
        return constant.low if constant is not None and constant.low == constant.high else None

    def keep(self, node: Node, relation: Relation, operand: int) -> None:
        """Says that the result has the operand's shape and relation."""
        result = node.outputs[0]
        if self.values[result].shape == self.values[operand].shape:
            self.relations[result] = relation


Fact = Callable[[State, Node], Known]
FACTS: dict[str, Fact] = {}
"""By operation name."""


def _fact(*names: str) -> Callable[[Fact], Fact]:
    def register(fact: Fact) -> Fact:
        FACTS.update(dict.fromkeys(names, fact))
        return fact

    return register


# ------------------------------------------------------- where relations come from


@_fact("reduce_max")
def _maximum(state: State, node: Node) -> Known:
    _reduced(state, node, "max", state.same(node.inputs[0]), exact=True)
    return None


@_fact("reduce_sum")
def _sum(state: State, node: Node) -> Known:
    operand = node.inputs[0]
    state.number_it(node, node.attributes.get("axes"))
    state.sums.add(node.outputs[0])
    of_operand = state.relations.get(operand)
    if of_operand is not None and of_operand.kind == "square":
        _reduced(state, node, "squares", of_operand.source)
        return None
    known = state.known.get(operand)
    if known is None or known[0] < 0.0:
        return None
    _reduced(state, node, "sum", state.same(operand))
    axes = node.attributes.get("axes")
    if of_operand is not None and of_operand.kind == "exp" and isinstance(axes, tuple):
        whole_rows = set(of_operand.axes) <= set(axes)
        return (1.0 - 2.0**-20, math.inf) if whole_rows else None
    return None


def _reduced(state: State, node: Node, kind: str, source: int, *, exact: bool = False) -> None:
    """The relation of a reduction to its operand, all dimensions known."""
    axes = node.attributes.get("axes")
    operand = state.values[node.inputs[0]]
    if not isinstance(axes, tuple) or not all(isinstance(d, int) for d in operand.shape):
        return
    result = state.values[node.outputs[0]]
    labels = tuple(axis for axis in range(len(operand.shape)) if axis not in axes)
    terms = operand.size // max(result.size, 1)
    state.relations[node.outputs[0]] = Relation(kind, source, labels, axes, exact, 1.0, terms)


@_fact("square", "integer_pow")
def _square(state: State, node: Node) -> Known:
    if node.op == "square" or node.attributes.get("exponent") == 2.0:
        operand = node.inputs[0]
        labels = tuple(range(len(state.values[operand].shape)))
        state.relations[node.outputs[0]] = Relation("square", state.same(operand), labels)
    return None


# ------------------------------------------------------- how they travel


@_fact(
    *"call.result stop_gradient copy copy_p name optimization_barrier sharding_constraint "
    "device_put convert_element_type".split()
)
def _identity(state: State, node: Node) -> Known:
    source, result = node.inputs[0], node.outputs[0]
    if state.values[source].dtype == state.values[result].dtype:
        state.origin[result] = state.same(source)
        if source in state.relations:
            state.relations[result] = state.relations[source]
    return None


@_fact("broadcast_in_dim")
def _broadcast(state: State, node: Node) -> Known:
    found = state.relations.get(node.inputs[0])
    places = node.attributes.get("places")
    if node.inputs[0] in state.sums:
        _follow(state, node, places)
    if found is None or not isinstance(places, tuple):
        return None
    shape = state.values[node.outputs[0]].shape
    labels = [-1] * len(shape)
    for axis, place in enumerate(places):
        if state.values[node.inputs[0]].shape[axis] == shape[place]:
            labels[place] = found.labels[axis]
    state.relations[node.outputs[0]] = dataclasses.replace(found, labels=tuple(labels))
    return None


def _follow(state: State, node: Node, *also: object) -> None:
    """Numbers an operation on a sum."""
    state.number_it(node, *also)
    state.sums.add(node.outputs[0])


@_fact("reshape", "squeeze", "expand_dims")
def _reshape(state: State, node: Node) -> Known:
    """Where only dimensions of 1 come and go."""
    found = state.relations.get(node.inputs[0])
    moved = node.attributes.get("permutation")
    if node.inputs[0] in state.sums:
        _follow(state, node, moved)
    if found is None or moved is not None:
        return None
    before = state.values[node.inputs[0]].shape
    after = state.values[node.outputs[0]].shape
    if [d for d in before if d != 1] != [d for d in after if d != 1]:
        return None
    wide = iter(label for d, label in zip(before, found.labels, strict=True) if d != 1)
    labels = tuple(-1 if d == 1 else next(wide) for d in after)
    state.relations[node.outputs[0]] = dataclasses.replace(found, labels=labels)
    return None


@_fact("transpose")
def _transpose(state: State, node: Node) -> Known:
    found = state.relations.get(node.inputs[0])
    permutation = node.attributes.get("permutation")
    if not isinstance(permutation, tuple):
        return None
    if found is not None:
        labels = tuple(found.labels[axis] for axis in permutation)
        state.relations[node.outputs[0]] = dataclasses.replace(found, labels=labels)
    state.moved[node.outputs[0]] = state.same(node.inputs[0]), permutation
    return None


@_fact("max")
def _larger(state: State, node: Node) -> Known:
    """What is larger than a maximum, a sum of squares or a norm still bounds what those bound."""
    for operand, other in (node.inputs, reversed(node.inputs)):
        found = state.relations.get(operand)
        if found is not None and found.kind in ("max", "squares", "norm"):
            exact = found.exact and state.number(other) == -math.inf
            state.keep(node, dataclasses.replace(found, exact=exact), operand)
            break
    return None


@_fact("add")
def _added(state: State, node: Node) -> Known:
    """Something that is not negative added to a sum of squares or a norm (an epsilon)."""
    for operand, other in (node.inputs, reversed(node.inputs)):
        found = state.relations.get(operand)
        if found is not None and found.kind in ("squares", "norm"):
            known = state.known.get(other)
            if known is not None and known[0] >= 0.0:
                state.keep(node, found, operand)
                break
    return None


@_fact("sqrt", "rsqrt")
def _root(state: State, node: Node) -> Known:
    found = state.relations.get(node.inputs[0])
    known = state.known.get(node.inputs[0])
    if found is not None and found.kind == "squares" and known is not None and known[0] >= _GUARD:
        kind = "norm" if node.op == "sqrt" else "inverse"
        state.keep(node, dataclasses.replace(found, kind=kind), node.inputs[0])
    return None


@_fact("exp")
def _exponential(state: State, node: Node) -> Known:
    found = state.relations.get(node.inputs[0])
    if found is not None and found.kind == "shifted":
        state.keep(node, dataclasses.replace(found, kind="exp"), node.inputs[0])
    return None


# ------------------------------------------------------- what they say


@_fact("sub")
def _difference(state: State, node: Node) -> Known:
    x, other = node.inputs
    result = node.outputs[0]
    state.number_it(node)
    shape = state.values[result].shape
    if not state.related(other, "max", x, shape):
        return None
    found = state.relations[other]
    if found.exact:
        labels = tuple(range(len(shape)))
        order = state.order(x, found.source) or ()
        axes = tuple(axis for axis, origin in enumerate(order) if origin in found.axes)
        state.relations[result] = Relation("shifted", result, labels, axes)
    return -math.inf, 0.0


@_fact("div")
def _quotient(state: State, node: Node) -> Known:
    x, other = node.inputs
    found = state.relations.get(x)
    number = state.number(other)
    if number is not None and x in state.sums:
        _follow(state, node)
    if found is not None and found.kind == "squares" and number is not None and number > 0.0:
        state.keep(node, dataclasses.replace(found, factor=found.factor / number), x)
        return None
    shape = state.values[node.outputs[0]].shape
    if state.related(other, "sum", x, shape):
        state.unit.add(node.outputs[0])  # the row sums to 1
        return 0.0, 1.0 + 2.0**-20
    if state.related(other, "norm", x, shape):
        return _normalised(state, node, state.relations[other])
    return None


@_fact("mul")
def _product(state: State, node: Node) -> Known:
    if node.inputs[0] == node.inputs[1]:
        return _square(state, dataclasses.replace(node, op="square"))
    for x, other in (node.inputs, reversed(node.inputs)):
        found = state.relations.get(other)
        number = state.number(x)
        if number is not None and other in state.sums:
            _follow(state, node)
        if found is None:
            continue
        if found.kind == "squares" and number is not None and number > 0.0:
            state.keep(node, dataclasses.replace(found, factor=found.factor * number), other)
        elif state.related(other, "inverse", x, state.values[node.outputs[0]].shape):
            return _normalised(state, node, found)
    return None


def _normalised(state: State, node: Node, norm: Relation) -> Known:
    """No element is larger than the norm of its row."""
    state.unit.add(node.outputs[0])
    most = norm.factor**-0.5 * (1.0 + _ROOM + norm.terms * 2.0**-22)
    return -most, most
