"""Addends: additions of a constant that is small for half, and that nothing looks at closely.

A constant below half's normal numbers denies what calculates with it, since most of them keep a
divisor or the operand of a root from being 0. A number that is merely *added* to an activation, as
converters write biases of one element, changes in half by less than the activation's own rounding
where that is of scale 1; what reads it closely (a root, a division, a power, a logarithm) keeps it.
"""

from __future__ import annotations

import dataclasses

from duotone.graph.graph import Graph, Node
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes, NodeClass
from duotone.precision.classify.lists import OpLists
from duotone.precision.ranges.cancellation import CLOSELY, looked_at_closely
from duotone.precision.ranges.find import Ranges
from duotone.precision.rules import Rule


def allow_small_addends(graph: Graph, classes: Classes, ranges: Ranges, lists: OpLists) -> Classes:
    """Puts additions of small constants back on their list.

    Args:
        graph: the program.
        classes: what each node is.
        ranges: of its values.
        lists: the lists of operations.

    Returns:
        New classes; the same where there are none.
    """
    denied = [n for n in graph.nodes if _is_denied_for_a_small_one(graph, n, classes)]
    if not denied:
        return classes
    close = looked_at_closely(graph, classes, ranges, CLOSELY)
    changed: dict[int, NodeClass] = {}
    for node in denied:
        entry = lists.get(node.op, node.list_key)
        if entry.kind is Kind.INFER and close.isdisjoint(node.outputs):
            changed[node.index] = dataclasses.replace(
                classes.nodes[node.index], entry=entry, rule=None
            )
    return classes.with_changed(changed)


def _is_denied_for_a_small_one(graph: Graph, node: Node, classes: Classes) -> bool:
    found = classes.nodes[node.index]
    if found.rule is not Rule.CONSTANT or Trait.ADDS not in found.entry.traits or found.is_users:
        return False
    return all(m.largest <= classes.half.largest / 2 for _, m in graph.constants(node))
