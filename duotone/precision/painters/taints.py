"""Taints: how far values that must not be half reach, forward from denied operations."""

from __future__ import annotations

from collections import deque

from duotone.graph.graph import Node, Paint
from duotone.graph.reach import following
from duotone.ops.entries import PASSIVE, Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.painters.painting import Canvas
from duotone.precision.rules import Rule


def spread_taint(canvas: Canvas, *, through_denied: bool = False) -> list[Taint]:
    """Paints denied nodes and spreads their taints.

    Args:
        canvas: precisions.
        through_denied: whether values that half may not hold taint the readers of denied nodes
            too, as in ``x * rsqrt(max(sum(x * x), 1e-12))``. Where a node can compute in float32
            and store half, the multiplication reads such a value in float32.

    Returns:
        The taint of each node's results.
    """
    nodes, classes = canvas.graph.nodes, canvas.classes.nodes
    taints = [Taint.NONE] * len(nodes)
    inside = _in_networks(canvas)
    queue: deque[int] = deque()
    for node in nodes:
        if canvas.open[node.index] and canvas.kind(node.index) is Kind.DENY:
            found = classes[node.index]
            canvas.paint(node.index, Paint.FULL, found.rule or Rule.DENY, found.entry.reason)
            if found.entry.taint and (found.rule is not None or node.index not in inside):
                taints[node.index] = found.entry.taint
                queue.append(node.index)
    while queue:
        index = queue.popleft()
        for value in nodes[index].outputs:
            if not canvas.graph.values[value].paintable:
                continue
            for reader, slot in canvas.consumers[value]:
                arriving = _arriving(canvas, nodes[reader], slot, taints[index])
                if through_denied and taints[index] is Taint.EVERYWHERE:
                    arriving = max(arriving, _through_denied(canvas, nodes[reader]))
                if arriving > taints[reader]:
                    taints[reader] = arriving
                    queue.append(reader)
    return taints


def _in_networks(canvas: Canvas) -> set[int]:
    """Returns short dots that follow from allow operations: those of a network (LoRA, a head).

    Such a dot computes full but does not taint, since a residual stream may be added to its result.
    """
    nodes = canvas.graph.nodes
    short = {node.index for node in canvas.graph.having(Trait.SHORT)}
    if not short:
        return short
    after = following(canvas.graph, canvas.classes.allowed)
    return {index for index in short if not after.isdisjoint(nodes[index].inputs)}


def _arriving(canvas: Canvas, node: Node, slot: int, taint: Taint) -> Taint:
    """Returns the taint that ``node`` takes from the operand in ``slot``."""
    if not canvas.open[node.index] or canvas.kind(node.index) not in PASSIVE:
        return Taint.NONE
    if not node.half_inputs[slot]:
        return Taint.NONE
    entry = canvas.entry(node.index)
    if taint is Taint.EVERYWHERE:
        return taint
    if taint is Taint.ADDITIVE and (Trait.COMMUTES in entry.traits or Trait.ADDS in entry.traits):
        return taint
    if canvas.dominates(node, slot, parts=Trait.PARTS in entry.traits):
        return Taint.DOMINANT
    return Taint.NONE


def _through_denied(canvas: Canvas, node: Node) -> Taint:
    """Returns the taint of a denied node that reads values beyond half; logarithms fit."""
    denied = canvas.kind(node.index) is Kind.DENY and Trait.LOGS not in node.traits
    return Taint.EVERYWHERE if denied else Taint.NONE
