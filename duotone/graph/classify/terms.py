"""Where a value comes from, through moves, and whether a single number scales it.

Who calls this: the analyses of loops (:mod:`duotone.graph.classify.carries`,
:mod:`duotone.graph.classify.iterations`).
"""

from __future__ import annotations

from duotone.graph.classify.classes import Classes
from duotone.graph.graph import Graph, Value
from duotone.ops.traits import Trait


def moved(graph: Graph, classes: Classes, value: int) -> Value:
    """Where a value comes from, through what only moves it."""
    found = graph.values[value]
    while found.producer >= 0:
        node = graph.nodes[found.producer]
        entry = classes.nodes[node.index].entry
        if len(node.inputs) != 1 or Trait.COMMUTES not in entry.traits or node.op == "loop.slice":
            break
        found = graph.values[node.inputs[0]]
    return found


def is_one(graph: Graph, classes: Classes, value: int) -> bool:
    """True if a value is a single number, broadcast or not."""
    return moved(graph, classes, value).is_one


def is_scaled(graph: Graph, classes: Classes, value: int) -> bool:
    """True if a single number scales a value."""
    found = moved(graph, classes, value)
    if found.producer < 0 or found.is_one:
        return False
    node = graph.nodes[found.producer]
    one = node.op == "mul" and any(is_one(graph, classes, v) for v in node.inputs)
    return one or (node.op == "div" and is_one(graph, classes, node.inputs[1]))
