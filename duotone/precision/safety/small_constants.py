"""Small constants: lifts the denial of additions of a constant that is small for half.

A constant below half's normal numbers denies its readers, since most such constants keep a divisor
or the operand of a root from being 0. But converters also write a bias of one element as a
constant that is *added* to an activation. If the activation has scale 1, its rounding is larger
than the error of the constant. The denial stays if a root, a division, a power or a logarithm
reads the sum.
"""

from __future__ import annotations

import dataclasses

from duotone.graph.graph import Graph, Node
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes, NodeClass
from duotone.precision.classify.lists import OpLists
from duotone.precision.ranges.cancellation import SENSITIVE, find_sensitive
from duotone.precision.ranges.find import Ranges
from duotone.precision.rules import Rule


def allow_small_addends(graph: Graph, classes: Classes, ranges: Ranges, lists: OpLists) -> Classes:
    """Puts additions of small constants back on their list.

    Args:
        graph: the program.
        classes: the class of each node.
        ranges: the ranges of its values.
        lists: the lists of operations.

    Returns:
        New classes; the same object if there are no such additions.
    """
    denied = [n for n in graph.nodes if _is_denied_for_a_small_one(graph, n, classes)]
    if not denied:
        return classes
    close = find_sensitive(graph, classes, ranges, SENSITIVE)
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
    constants = graph.constants.get(node.index, ())
    return all(magnitude.largest <= classes.half.largest / 2 for _, magnitude in constants)
