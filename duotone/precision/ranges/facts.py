"""Facts: relations between two values, which intervals alone cannot express.

::

    m = max(x)              x - m <= 0, and it is 0 somewhere
    e = exp(x - max(x))     in (0, 1], and sum(e) >= 1
    t / sum(t), t >= 0      in [0, 1]                                      (softmax)
    where(x > c, a, x)      at most c where it is x                        (ELU, a safe logarithm)
    c / sqrt(k sum(c^2) + eps), c * rsqrt(…)     at most k^-1/2 in size    (norms)

A :class:`~duotone.precision.ranges.relations.Relation` travels with a value through
operations that only move it, such as the broadcast of a statistic back to the shape of its
operand. For each axis of the value it keeps the axis of the source. So the maximum over rows
is never confused with that over columns, nor a sum over a transposed array with one over
rows.

A fact returns an interval in addition to the rule's, or ``None``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from duotone.graph.graph import Node
from duotone.ops.registry import registering
from duotone.precision.ranges.interval import SMALLEST_NORMAL, Interval, Known, hull, meet
from duotone.precision.ranges.intervals import DTYPE_RANGES, count
from duotone.precision.ranges.relations import Findings, Relation

_ROOM = 2.0**-10
_GUARD = 2.0**-80
"""A sum of squares below this may have lost its terms to underflow, and bounds nothing."""

Fact = Callable[[Findings, Node], Known]
FACTS: dict[str, Fact] = {}
"""The facts by the name that rows of :mod:`duotone.ops` use, as for the rules of intervals."""


_fact = registering(FACTS)


# ------------------------------------------------------- where relations come from


@_fact("reduce_max")
def _maximum(findings: Findings, node: Node) -> Known:
    _reduced(findings, node, "max", findings.same(node.inputs[0]), exact=True)
    return None


@_fact("reduce_sum")
def _sum(findings: Findings, node: Node) -> Known:
    """Relates a sum to its operand, unless it may be empty or wrap around (integers)."""
    operand, axes = node.inputs[0], node.attributes.get("axes")
    findings.number_it(node, axes)
    findings.sums.add(node.outputs[0])
    if not isinstance(axes, tuple) or not count(findings.values[operand]):
        return None
    found, known = findings.relations.get(operand), findings.known.get(operand)
    if found is not None and found.kind == "square":
        _reduced(findings, node, "squares", found.source, found.labels)
        return None
    if known is None or known[0] < 0.0 or findings.values[operand].dtype in DTYPE_RANGES:
        return None
    _reduced(findings, node, "sum", findings.same(operand))
    if found is not None and found.kind == "exp":
        _, summed = _parted(found.labels, axes)
        return (1.0 - 2.0**-20, math.inf) if set(found.axes) <= set(summed) else None
    return None


def _reduced(
    findings: Findings,
    node: Node,
    kind: str,
    source: int,
    labels: Sequence[int] | None = None,
    *,
    exact: bool = False,
) -> None:
    """Records the relation of a reduction to its operand, or to the source of ``labels``."""
    axes = node.attributes.get("axes")
    operand, result = findings.values[node.inputs[0]], findings.values[node.outputs[0]]
    if not isinstance(axes, tuple) or not count(operand):
        return
    if labels is None:
        labels = range(len(operand.shape))
    kept, summed = _parted(labels, axes)
    terms = operand.size // result.size
    findings.relations[node.outputs[0]] = Relation(kind, source, kept, summed, exact, 1.0, terms)


def _parted(labels: Sequence[int], axes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the labels that remain when ``axes`` are reduced, and the reduced axes of the source.

    An axis along which the operand is constant is not an axis of the source.
    """
    kept = tuple(label for axis, label in enumerate(labels) if axis not in axes)
    return kept, tuple(labels[axis] for axis in axes if labels[axis] >= 0)


@_fact("square", "integer_pow")
def _square(findings: Findings, node: Node) -> Known:
    if node.attributes.get("exponent", 2.0) == 2.0:
        operand = node.inputs[0]
        labels = tuple(range(len(findings.values[operand].shape)))
        findings.relations[node.outputs[0]] = Relation("square", findings.same(operand), labels)
    return None


# ------------------------------------------------------- how they travel


@_fact("same", "convert_element_type")
def _identity(findings: Findings, node: Node) -> Known:
    source, result = node.inputs[0], node.outputs[0]
    if findings.values[source].dtype == findings.values[result].dtype:
        findings.origin[result] = findings.same(source)
        if source in findings.relations:
            findings.relations[result] = findings.relations[source]
    return None


@_fact("broadcast_in_dim")
def _broadcast(findings: Findings, node: Node) -> Known:
    found = findings.relations.get(node.inputs[0])
    axes = node.attributes.get("places")
    if node.inputs[0] in findings.sums:
        _follow(findings, node, axes)
    if found is None or not isinstance(axes, tuple):
        return None
    shape = findings.values[node.outputs[0]].shape
    labels = [-1] * len(shape)
    for axis, target in enumerate(axes):
        if findings.values[node.inputs[0]].shape[axis] == shape[target]:
            labels[target] = found.labels[axis]
    findings.relations[node.outputs[0]] = dataclasses.replace(found, labels=tuple(labels))
    return None


def _follow(findings: Findings, node: Node, *also: object) -> None:
    """Records an operation on a sum."""
    findings.number_it(node, *also)
    findings.sums.add(node.outputs[0])


@_fact("reshape")
def _reshape(findings: Findings, node: Node) -> Known:
    """Applies if the reshape only adds and removes dimensions of 1."""
    found = findings.relations.get(node.inputs[0])
    moved = node.attributes.get("permutation")
    if node.inputs[0] in findings.sums:
        _follow(findings, node, moved)
    if found is None or moved is not None:
        return None
    before = findings.values[node.inputs[0]].shape
    after = findings.values[node.outputs[0]].shape
    if [d for d in before if d != 1] != [d for d in after if d != 1]:
        return None
    wide = iter(label for d, label in zip(before, found.labels, strict=True) if d != 1)
    labels = tuple(-1 if d == 1 else next(wide) for d in after)
    findings.relations[node.outputs[0]] = dataclasses.replace(found, labels=labels)
    return None


@_fact("transpose")
def _transpose(findings: Findings, node: Node) -> Known:
    found = findings.relations.get(node.inputs[0])
    permutation = node.attributes.get("permutation")
    if not isinstance(permutation, tuple):
        return None
    if found is not None:
        labels = tuple(found.labels[axis] for axis in permutation)
        findings.relations[node.outputs[0]] = dataclasses.replace(found, labels=labels)
    findings.moved[node.outputs[0]] = findings.same(node.inputs[0]), permutation
    return None


@_fact("max")
def _larger(findings: Findings, node: Node) -> Known:
    """Keeps the relation of a value above a maximum, a sum of squares or a norm."""
    if len(node.inputs) != 2:
        return None
    for operand, other in (node.inputs, reversed(node.inputs)):
        found = findings.relations.get(operand)
        if found is not None and found.kind in ("max", "squares", "norm"):
            exact = found.exact and findings.number(other) == -math.inf
            findings.keep(node, dataclasses.replace(found, exact=exact), operand)
            break
    return None


@_fact("add")
def _added(findings: Findings, node: Node) -> Known:
    """Keeps a relation where a nonnegative value (an epsilon) is added to a norm."""
    for operand, other in (node.inputs, reversed(node.inputs)):
        found = findings.relations.get(operand)
        if found is not None and found.kind in ("squares", "norm"):
            known = findings.known.get(other)
            if known is not None and known[0] >= 0.0:
                findings.keep(node, found, operand)
                break
    return None


@_fact("sqrt")
def _root(findings: Findings, node: Node) -> Known:
    return _norm(findings, node, "norm")


@_fact("rsqrt")
def _inverse_root(findings: Findings, node: Node) -> Known:
    return _norm(findings, node, "inverse")


def _norm(findings: Findings, node: Node, kind: str) -> Known:
    """Returns the root of a sum of squares, or its reciprocal."""
    found = findings.relations.get(node.inputs[0])
    known = findings.known.get(node.inputs[0])
    if found is None or found.kind != "squares" or known is None:
        return None
    if known[0] >= _GUARD * max(found.factor, 1.0):
        findings.keep(node, dataclasses.replace(found, kind=kind), node.inputs[0])
    return None


@_fact("exp")
def _exponential(findings: Findings, node: Node) -> Known:
    found = findings.relations.get(node.inputs[0])
    if found is not None and found.kind == "shifted":
        findings.keep(node, dataclasses.replace(found, kind="exp"), node.inputs[0])
    return None


# ------------------------------------------------------- what they say


@_fact("sub")
def _difference(findings: Findings, node: Node) -> Known:
    x, other = node.inputs
    result = node.outputs[0]
    findings.number_it(node)
    shape = findings.values[result].shape
    if not findings.related(other, "max", x, shape):
        return None
    found = findings.relations[other]
    if found.exact:
        labels = tuple(range(len(shape)))
        order = findings.order(x, found.source) or ()
        axes = tuple(axis for axis, origin in enumerate(order) if origin in found.axes)
        findings.relations[result] = Relation("shifted", result, labels, axes)
    return -math.inf, 0.0


@_fact("greater")
def _greater(findings: Findings, node: Node) -> Known:
    return _compared(findings, node, *node.inputs)


@_fact("less")
def _less(findings: Findings, node: Node) -> Known:
    return _compared(findings, node, *reversed(node.inputs))


def _compared(findings: Findings, node: Node, large: int, small: int) -> Known:
    """Bounds each operand of a comparison by the other, on both sides, for later selects.

    Devices compare subnormal numbers as 0.
    """
    sides: dict[int, tuple[Interval, Interval]] = {}
    for x, other, greater in ((large, small, True), (small, large, False)):
        bounds = findings.known.get(other)
        if bounds is not None:
            most = SMALLEST_NORMAL if abs(bounds[1]) < SMALLEST_NORMAL else bounds[1]
            least = -SMALLEST_NORMAL if abs(bounds[0]) < SMALLEST_NORMAL else bounds[0]
            below, above = (-math.inf, most), (least, math.inf)
            sides[findings.same(x)] = (below, above) if greater else (above, below)  # false first
    findings.compared[node.outputs[0]] = sides
    return None


@_fact("select_n")
def _selected(findings: Findings, node: Node) -> Known:
    """Bounds a compared value by its side where the comparison selects it."""
    which, *cases = node.inputs
    sides = findings.compared.get(findings.same(which), {})
    if len(cases) != 2 or sides.keys().isdisjoint(map(findings.same, cases)):
        return None
    known = [findings.known.get(case) for case in cases]
    for side, case in enumerate(cases):
        bounds = sides.get(findings.same(case))
        if bounds is not None:
            known[side] = meet(known[side], bounds[side])
    return hull(known)


@_fact("div")
def _quotient(findings: Findings, node: Node) -> Known:
    x, other = node.inputs
    found = findings.relations.get(x)
    number = findings.number(other)
    if number is not None and x in findings.sums:
        _follow(findings, node)
    if found is not None and found.kind == "squares" and number is not None:
        _scale(findings, node, x, number, found.factor / number if number else 0.0)
        return None
    shape = findings.values[node.outputs[0]].shape
    if findings.related(other, "sum", x, shape):
        findings.unit.add(node.outputs[0])  # the row sums to 1
        return 0.0, 1.0 + 2.0**-20
    if findings.related(other, "norm", x, shape):
        return _normalised(findings, node, findings.relations[other])
    return None


@_fact("mul")
def _product(findings: Findings, node: Node) -> Known:
    if node.inputs[0] == node.inputs[1]:
        return _square(findings, node)
    for x, other in (node.inputs, reversed(node.inputs)):
        found = findings.relations.get(other)
        number = findings.number(x)
        if number is not None and other in findings.sums:
            _follow(findings, node)
        if found is None:
            continue
        if found.kind == "squares" and number is not None:
            _scale(findings, node, other, number, found.factor * number)
        elif findings.related(other, "inverse", x, findings.values[node.outputs[0]].shape):
            return _normalised(findings, node, found)
    return None


def _scale(findings: Findings, node: Node, squares: int, number: float, factor: float) -> None:
    """Follows a sum of squares times or divided by a number that is not subnormal."""
    if all(SMALLEST_NORMAL <= x <= 1.0 / SMALLEST_NORMAL for x in (number, factor)):
        scaled = dataclasses.replace(findings.relations[squares], factor=factor)
        findings.keep(node, scaled, squares)


def _normalised(findings: Findings, node: Node, norm: Relation) -> Known:
    """No element is larger than the norm of its row."""
    findings.unit.add(node.outputs[0])
    most = norm.factor**-0.5 * (1.0 + _ROOM + norm.terms * 2.0**-22)
    return -most, most
