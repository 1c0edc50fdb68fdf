"""Values to look at closely: a small error of theirs is not a small error of what follows."""

from __future__ import annotations

from collections.abc import Iterator

from duotone.graph.graph import Graph, Node
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait, Traits
from duotone.precision.classify.classes import Classes
from duotone.precision.ranges.find import Ranges
from duotone.precision.ranges.interval import Interval

POLES: Traits = frozenset({Trait.DIVIDES, Trait.POLE, Trait.UNDESCRIBED})
"""Traits of operations that magnify a small error of an operand next to some number. An operation
that nobody described may."""
CLOSELY: Traits = POLES | {Trait.DECIDES, Trait.MULTIPLIES_UP}
"""Traits of operations in which a small error of an operand is not a small error of the result."""
_LOGS = Trait.LOGS
_SUMS = frozenset({Trait.SUMS, Trait.SUMS_AXES, Trait.ADDS_INTO})
_DIVISIONS = frozenset({Trait.DIVIDES, Trait.ROOTS})


def looked_at_closely(
    graph: Graph, classes: Classes, ranges: Ranges, by: Traits = CLOSELY
) -> set[int]:
    """Values of which some reader, now or later, needs more than their absolute value.

    Backward from operations with a trait of ``by`` and logarithms through everything but allow
    operations, which read half in any case, and what is far from 0 where its operand is near it.
    Sums even out errors, so only what is logged afterwards is looked at closely through one.
    """
    close: dict[int, bool] = {}
    queue: list[int] = []

    def mark(value: int, logged: bool) -> None:
        if value not in close or (logged and not close[value]):
            close[value] = logged
            queue.append(value)

    for node in graph.nodes:
        traits = node.traits
        if _LOGS in traits:
            mark(node.inputs[0], True)
        elif not traits.isdisjoint(by) or "exponent" in node.attributes:
            for value in _close_operands(node, ranges):
                mark(value, False)
    values, nodes = graph.values, graph.nodes
    while queue:
        value = queue.pop()
        producer = values[value].producer
        if producer < 0:
            continue
        traits = nodes[producer].traits
        allowed = classes.nodes[producer].kind is Kind.ALLOW
        evens_out = not close[value] and not traits.isdisjoint(_SUMS)
        if not (allowed or evens_out or Trait.NONZERO in traits):
            for operand in nodes[producer].inputs:
                if values[operand].constant is None:
                    mark(operand, close[value])
    return set(close)


def _close_operands(node: Node, ranges: Ranges) -> Iterator[int]:
    """Operands that ``node`` looks at closely."""
    exponent = node.attributes.get("exponent")
    if isinstance(exponent, float) and exponent >= 0:
        return
    divides = isinstance(exponent, float) or not node.traits.isdisjoint(_DIVISIONS)
    for value in node.inputs[1:] if Trait.DIVIDES in node.traits else node.inputs:
        if not (divides and _away_from_zero(ranges.of(value))):
            yield value


def _away_from_zero(interval: Interval | None) -> bool:
    """True if a small absolute error is a small relative one."""
    return interval is not None and (interval[0] >= 0.5 or interval[1] <= -0.5)
