"""Sensitive values: a small error of such a value is not a small error of the results."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from duotone.graph.graph import Graph, Node
from duotone.graph.reach import Walk
from duotone.graph.terms import moved
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait, Traits
from duotone.precision.classify.classes import Classes
from duotone.precision.ranges.decays import find_decays
from duotone.precision.ranges.find import Ranges, is_of_few
from duotone.precision.ranges.interval import Interval

POLES: Traits = frozenset({Trait.DIVIDES, Trait.POLE, Trait.UNDESCRIBED})
"""Traits of operations that magnify a small error of an operand next to some number. An undescribed
operation may do so."""
SENSITIVE: Traits = POLES | {Trait.DECIDES, Trait.MULTIPLIES_UP}
"""Traits of operations in which a small error of an operand is not a small error of the result."""
_SUMS = frozenset({Trait.SUMS, Trait.SUMS_AXES, Trait.ADDS_INTO})


def find_sensitive(
    graph: Graph,
    classes: Classes,
    ranges: Ranges,
    by: Traits = SENSITIVE,
    decays: Collection[int] | None = None,
) -> set[int]:
    """Returns the values of which some reader, now or later, needs more than their absolute value.

    The walk goes backward from logarithms, from operations with a trait of ``by``, and from
    factors that multiply one another: ``decays``, or what :func:`find_decays` finds. It ends at
    allow operations, which read half in any case, and at operations whose result is far from 0 for
    operands near it. Sums average errors out, so only a logarithm makes the terms of a sum
    sensitive.
    """
    logged = {node.inputs[0] for node in graph.having(Trait.LOGS)}
    others = {
        value
        for node in graph.having(*by, Trait.RAISES)
        if Trait.LOGS not in node.traits
        and (not node.traits.isdisjoint(by) or "exponent" in node.attributes)
        for value in _sensitive_operands(node, ranges)
    }.union(find_decays(graph, classes) if decays is None else decays)
    ends = frozenset({Trait.NONZERO})
    through_sums = _upstream(graph, classes, logged, ends)
    return through_sums | _upstream(graph, classes, others, ends | _SUMS)


def decays_near_constants(graph: Graph, classes: Classes, decays: Collection[int]) -> set[int]:
    """Returns additions of a constant that make a factor of many: ``cumprod(1 + network(x))``."""
    makers = {_maker(graph, value) for value in decays} - {-1}
    return {
        index
        for index in makers
        if classes.nodes[index].kind is Kind.INFER
        and Trait.ADDS in graph.nodes[index].traits
        and any(graph.values[v].constant is not None for v in graph.nodes[index].inputs)
    }


def _maker(graph: Graph, value: int) -> int:
    """Returns the node that makes a value, upstream of moves and of the slices of a loop."""
    index = moved(graph, value).producer
    while index >= 0 and Trait.ITERATES in graph.nodes[index].traits:
        index = moved(graph, graph.nodes[index].inputs[0]).producer
    return index


def before_steep(graph: Graph, classes: Classes) -> set[int]:
    """Returns the arithmetic between the last dots and an operation with an infinite slope.

    At an end of the domain of ``arccos``, half's rounding error of 0.0005 becomes an angle of 0.03,
    and the gradient is as wrong. The walk ends at sums of many elements, which average errors out,
    and at sums of results of different dots, which may be a residual stream.
    """
    walk = Walk(graph, (v for node in graph.having(Trait.STEEP) for v in node.inputs))
    found = set[int]()
    for _, node in walk:
        kind = classes.nodes[node.index].kind
        if kind is Kind.INFER:
            found.add(node.index)
        if kind is not Kind.ALLOW and not _averages(node, graph):
            walk.to(() if _joins_dots(node, graph, classes) else node.inputs)
    return found


def _averages(node: Node, graph: Graph) -> bool:
    """Returns True for sums over an axis of many elements."""
    return not node.traits.isdisjoint(_SUMS) and not is_of_few(graph.values, node)


def _joins_dots(node: Node, graph: Graph, classes: Classes) -> bool:
    """Returns True for sums of two values that follow from different dots."""
    if Trait.ADDS not in node.traits or len(node.inputs) != 2:
        return False
    one, other = (_last_dots(graph, classes, value) for value in node.inputs)
    return bool(one) and bool(other) and one.isdisjoint(other)


def _last_dots(graph: Graph, classes: Classes, value: int) -> set[int]:
    """Returns the allow operations from which a value follows without another one between."""
    makers = {graph.values[v].producer for v in _upstream(graph, classes, {value}, frozenset())}
    return {index for index in makers - {-1} if classes.nodes[index].kind is Kind.ALLOW}


def _upstream(graph: Graph, classes: Classes, values: Collection[int], ends: Traits) -> set[int]:
    """Returns the ancestors of values, and these, up to allow operations and ``ends``."""
    walk = Walk(graph, values)
    for _, node in walk:
        if node.traits.isdisjoint(ends) and classes.nodes[node.index].kind is not Kind.ALLOW:
            walk.to(v for v in node.inputs if graph.values[v].constant is None)
    return walk.seen


def _sensitive_operands(node: Node, ranges: Ranges) -> Iterator[int]:
    """Yields operands to whose small errors ``node`` is sensitive."""
    exponent = node.attributes.get("exponent")
    if isinstance(exponent, float) and exponent >= 0:
        return
    divides = isinstance(exponent, float) or not node.traits.isdisjoint(
        {Trait.DIVIDES, Trait.ROOTS}
    )
    for value in node.inputs[1:] if Trait.DIVIDES in node.traits else node.inputs:
        if not (divides and _away_from_zero(ranges.of(value))):
            yield value


def _away_from_zero(interval: Interval | None) -> bool:
    """Returns True if a small absolute error is a small relative one."""
    return interval is not None and (interval[0] >= 0.5 or interval[1] <= -0.5)
