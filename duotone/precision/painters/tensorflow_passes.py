"""TensorFlow's painter: the passes of ``auto_mixed_precision``, the reference.

::

    1 allow-list nodes are allow
    2 deny runs forward from deny-list nodes through infer, deny and clear; through a clear node
      only if clear nodes lead from it to an infer or deny node
    3 infer and clear nodes on a path from allow to allow without deny become allow
    4 an infer node with a direct allow operand and no denied operand becomes allow (TensorFlow 2.20
      and later); nodes are walked in program order and see earlier results
    5 allow runs both ways through clear nodes that are not denied

This is the general algorithm, on the neutral graph, without dominant operands or state. The front
end of GraphDef handles what only concerns GraphDef (type attributes, TensorLists, kernels).

References:
    TensorFlow, ``tensorflow/core/grappler/optimizers/auto_mixed_precision.cc``, version 2.21.
"""

from __future__ import annotations

from collections.abc import Collection

from duotone.graph.graph import Graph, Paint
from duotone.graph.reach import reach
from duotone.ops.entries import Kind
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.painting import Canvas, Painting
from duotone.precision.rules import Rule


def paint_tensorflow(graph: Graph, classes: Classes, off: Collection[str] = ()) -> Painting:
    """Paints a graph as TensorFlow's pass does.

    Args:
        graph: the program.
        classes: the class of each node.
        off: ignored, since no rule of these passes can be switched off.

    Returns:
        A precision and a rule for every node.
    """
    canvas = Canvas(graph, classes)
    flow = _Flow(canvas)
    allow = {n.index for n in graph.nodes if flow.of_kind(n.index, Kind.ALLOW)}
    deny: set[int] = set()
    if allow:
        deny = _denied(flow)
        allow |= _between(flow, allow, deny)
        _extend_to_infer(flow, allow, deny)
        _spread_through_clear(flow, allow, deny)
    for node in graph.nodes:
        index = node.index
        if not canvas.open[index]:
            continue
        if index in allow:
            direct = canvas.kind(index) is Kind.ALLOW
            canvas.paint(index, Paint.HALF, Rule.ALLOW if direct else Rule.TENSORFLOW)
        elif flow.of_kind(index, Kind.DENY):
            found = classes.nodes[index]
            canvas.paint(index, Paint.FULL, found.rule or Rule.DENY, found.entry.reason)
        else:
            canvas.paint(index, Paint.FULL, Rule.TAINT if index in deny else Rule.NO_HALF_OPERAND)
    return canvas.finish()


class _Flow:
    """The graph as nodes connected by float32 values, forward and backward."""

    def __init__(self, canvas: Canvas) -> None:
        self.canvas = canvas
        graph = canvas.graph
        self.after: list[list[int]] = [[] for _ in graph.nodes]
        self.before: list[list[int]] = [[] for _ in graph.nodes]
        for node in graph.nodes:
            for value, may_be_half in zip(node.inputs, node.half_inputs, strict=True):
                producer = graph.values[value].producer
                if may_be_half and producer >= 0:
                    self.after[producer].append(node.index)
                    self.before[node.index].append(producer)

    def of_kind(self, node: int, *kinds: Kind) -> bool:
        """Returns True if the rules decide ``node`` and it is on one of the lists."""
        return self.canvas.open[node] and self.canvas.kind(node) in kinds


def _denied(flow: _Flow) -> set[int]:
    """Pass 2."""
    nodes = range(len(flow.after))
    stops = [i for i in nodes if flow.of_kind(i, Kind.INFER, Kind.DENY)]
    above = reach(stops, flow.before, lambda i: flow.of_kind(i, Kind.CLEAR)) | set(stops)
    roots = {i for i in nodes if flow.of_kind(i, Kind.DENY)}
    return roots | reach(roots, flow.after, lambda i: i in above)


def _between(flow: _Flow, allow: set[int], deny: set[int]) -> set[int]:
    """Pass 3."""

    def passes(index: int) -> bool:
        return index not in deny and flow.of_kind(index, Kind.INFER, Kind.CLEAR)

    return reach(allow, flow.after, passes) & reach(allow, flow.before, passes)


def _extend_to_infer(flow: _Flow, allow: set[int], deny: set[int]) -> None:
    """Pass 4; adds to ``allow``."""
    for index in range(len(flow.after)):
        if index in allow or index in deny or not flow.of_kind(index, Kind.INFER):
            continue
        operands = flow.before[index]
        if any(o in allow for o in operands) and not any(o in deny for o in operands):
            allow.add(index)


def _spread_through_clear(flow: _Flow, allow: set[int], deny: set[int]) -> None:
    """Pass 5; adds to ``allow``."""

    def passes(index: int) -> bool:
        return index not in deny and flow.of_kind(index, Kind.CLEAR)

    edges = [a + b for a, b in zip(flow.after, flow.before, strict=True)]
    allow |= reach(set(allow), edges, passes)
