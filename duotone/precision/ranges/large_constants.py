"""Large constants: dots and arithmetic of values that follow from a constant too large for half.

An operation that multiplies with such a constant, or adds it, is float32 already, and so is the
arithmetic that reads its result. A dot takes half operands, whatever reaches it, so the value would
be infinite there. This rule denies such a dot, and the arithmetic after it (the derivative of an
activation, which multiplies the dot's gradient with a half value). A value counts until an
operation makes it small. An operation does so if

- its range is known to fit half (a softmax, a sigmoid, a clip),
- it is an exponential, a logarithm, or a normalization by the operand's own statistics, or
- it divides by another such value.

Values that follow from constants and counters alone count as well if their range exceeds half
(``sinh(linspace(-20, 20, 255))``, the bins of a distribution): nothing that a caller passes can
make them smaller.
"""

from __future__ import annotations

import math

from duotone.graph.graph import UPDATE, Graph, HalfType, Node
from duotone.ops.entries import PASSIVE, Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes, computes_with_large
from duotone.precision.context import Background
from duotone.precision.ranges.find import Ranges
from duotone.precision.ranges.interval import bound
from duotone.precision.rules import Rule

_SHRINKS = frozenset({Trait.EXPONENTIAL, Trait.LOGS, Trait.NORMALIZES})


def keep_dots_of_large(classes: Classes, background: Background) -> Classes:
    """Denies dots of values that a constant makes too large for half, and what follows from them.

    Args:
        classes: the class of each node.
        background: the program, and the ranges of its values.

    Returns:
        New classes; the same object if there is no such dot.
    """
    graph = background.graph
    large = _large_values(classes, background)
    reason = f"it reads a value that follows from a constant too large for {background.half.name}"
    dots = [
        node.index
        for node in graph.nodes
        if large and classes.nodes[node.index].kind is Kind.ALLOW and _reads(node, large)
    ]
    arithmetic = (
        node.index
        for node in graph.nodes
        if dots and classes.nodes[node.index].kind in PASSIVE and not large.isdisjoint(node.outputs)
    )
    return classes.with_denied(dict.fromkeys([*dots, *arithmetic], reason), Rule.OVERFLOW)


def _reads(node: Node, values: set[int]) -> bool:
    return any(v in values for v, ok in zip(node.inputs, node.half_inputs, strict=True) if ok)


def _large_values(classes: Classes, background: Background) -> set[int]:
    """Returns values that follow from a constant too large for half, in all iterations of loops."""
    graph, half, ranges = background.graph, background.half, background.ranges
    found = {
        value
        for node in (graph.nodes[index] for index in graph.constants)
        if node.region != UPDATE  # a loss scale: its steps are skipped where they overflow
        and computes_with_large(node, classes.nodes[node.index].listed, graph, half)
        for value in node.outputs
        if not _fits(value, ranges, half)
    } | _large_from_counters(graph, ranges, half)
    before = -1
    while found and len(found) > before:
        before = len(found)
        for node in graph.nodes:
            if not found.isdisjoint(node.inputs) and _passes(node, found, graph):
                found.update(v for v in node.outputs if not _fits(v, ranges, half))
    return {value for value in found if graph.values[value].paintable}


def _large_from_counters(graph: Graph, ranges: Ranges, half: HalfType) -> set[int]:
    """Returns values beyond half that follow from counters and constants within half alone.

    A constant beyond half may be a mask, which :func:`computes_with_large` knows.
    """
    known = {
        value.index
        for value in graph.values
        if value.constant is not None and value.constant.largest <= half.largest
    }
    found = set[int]()
    for node in graph.nodes:
        if known.issuperset(node.inputs) and Trait.UNDESCRIBED not in node.traits:
            known.update(node.outputs)
            found.update(v for v in node.outputs if _exceeds(v, ranges, half))
    return found


def _exceeds(value: int, ranges: Ranges, half: HalfType) -> bool:
    interval = ranges.of(value)
    return interval is not None and half.largest < bound(interval) < math.inf


def _fits(value: int, ranges: Ranges, half: HalfType) -> bool:
    interval = ranges.of(value)
    return interval is not None and bound(interval) <= half.largest


def _passes(node: Node, large: set[int], graph: Graph) -> bool:
    """Returns True if the result of a node may be large because an operand is."""
    if not node.traits.isdisjoint(_SHRINKS):
        return False
    if Trait.DIVIDES in node.traits:
        return node.inputs[1] not in large
    return any(v in large and graph.values[v].paintable for v in node.inputs)
