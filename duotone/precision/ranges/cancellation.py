"""Sensitive values: a small error of such a value is not a small error of the results."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from duotone.graph.graph import Graph, Node
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait, Traits
from duotone.precision.classify.classes import Classes
from duotone.precision.ranges.decays import find_decays
from duotone.precision.ranges.find import Ranges
from duotone.precision.ranges.interval import Interval

POLES: Traits = frozenset({Trait.DIVIDES, Trait.POLE, Trait.UNDESCRIBED})
"""Traits of operations that magnify a small error of an operand next to some number. An undescribed
operation may do so."""
SENSITIVE: Traits = POLES | {Trait.DECIDES, Trait.MULTIPLIES_UP}
"""Traits of operations in which a small error of an operand is not a small error of the result."""
_LOGS = Trait.LOGS
_SUMS = frozenset({Trait.SUMS, Trait.SUMS_AXES, Trait.ADDS_INTO})
_DIVISIONS = frozenset({Trait.DIVIDES, Trait.ROOTS})


def find_sensitive(
    graph: Graph, classes: Classes, ranges: Ranges, by: Traits = SENSITIVE
) -> set[int]:
    """Returns the values of which some reader, now or later, needs more than their absolute value.

    The walk goes backward from logarithms, from operations with a trait of ``by``, and from
    factors that multiply one another (:mod:`duotone.precision.ranges.decays`). It ends at allow
    operations, which read half in any case, and at operations whose result is far from 0 for
    operands near it. Sums average errors out, so only a logarithm makes the terms of a sum
    sensitive.
    """
    logged = {node.inputs[0] for node in graph.nodes if _LOGS in node.traits}
    others = {
        value
        for node in graph.nodes
        if _LOGS not in node.traits
        and (not node.traits.isdisjoint(by) or "exponent" in node.attributes)
        for value in _sensitive_operands(node, ranges)
    } | find_decays(graph, classes)
    ends = frozenset({Trait.NONZERO})
    through_sums = _upstream(graph, classes, logged, ends)
    return through_sums | _upstream(graph, classes, others, ends | _SUMS)


def _upstream(graph: Graph, classes: Classes, values: Collection[int], ends: Traits) -> set[int]:
    """Returns the ancestors of values, and these, up to allow operations and ``ends``."""
    found, queue = set(values), list(values)
    while queue:
        producer = graph.values[queue.pop()].producer
        if producer < 0 or classes.nodes[producer].kind is Kind.ALLOW:
            continue
        node = graph.nodes[producer]
        if node.traits.isdisjoint(ends):
            operands = {v for v in node.inputs if graph.values[v].constant is None}
            queue += operands - found
            found |= operands
    return found


def _sensitive_operands(node: Node, ranges: Ranges) -> Iterator[int]:
    """Yields operands to whose small errors ``node`` is sensitive."""
    exponent = node.attributes.get("exponent")
    if isinstance(exponent, float) and exponent >= 0:
        return
    divides = isinstance(exponent, float) or not node.traits.isdisjoint(_DIVISIONS)
    for value in node.inputs[1:] if Trait.DIVIDES in node.traits else node.inputs:
        if not (divides and _away_from_zero(ranges.of(value))):
            yield value


def _away_from_zero(interval: Interval | None) -> bool:
    """Returns True if a small absolute error is a small relative one."""
    return interval is not None and (interval[0] >= 0.5 or interval[1] <= -0.5)
