"""Repeated operations: a value that a program computes several times has one precision.

``where(f(x) > 0, log(where(f(x) > 0, f(x), 1.0)), 0.0)`` guards a logarithm with a condition. If a
rule keeps the ``f(x)`` in the logarithm float32, and those in the conditions are half, they
disagree near 0, and the logarithm of a negative number is NaN. So operations that are equal are
float32 if a safety rule denies one of them::

    equal = the same operation, attributes and results, of the same or of equal operands

A part of an array (a slice, an element) is equal to nothing, since the graph does not say which
part it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from duotone.graph.graph import Graph, Node
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.context import Background
from duotone.precision.rules import Rule

_REASON = "computes the same as an operation that a safety rule keeps float32"
_WHOLE = frozenset({Trait.RESHAPES, Trait.TRANSPOSES, Trait.REPEATS, Trait.CONVERTS, Trait.FLIPS})


def keep_repeated(classes: Classes, background: Background) -> Classes:
    """Denies operations that are equal to a denied one.

    Args:
        classes: the class of each node.
        background: the program.

    Returns:
        New classes; the same object if there are no such operations.
    """
    denied = {
        index
        for index, found in enumerate(classes.nodes)
        if found.rule is not None and found.kind is Kind.DENY
    }
    found: dict[int, str] = {}
    for equal in _equal(background.graph) if denied else ():
        if not denied.isdisjoint(equal):
            found.update(dict.fromkeys(equal, _REASON))
    return classes.with_denied(found, Rule.REPEATED)


def _equal(graph: Graph) -> Iterator[list[int]]:
    """Yields the indices of nodes that are equal, two or more at a time."""
    first = list(range(len(graph.values)))
    alike: dict[object, list[list[int]]] = {}  # by operation and operands: few have two groups
    for node in graph.nodes:
        if not _is_function(node):
            continue
        key = node.list_key, node.body, *map(first.__getitem__, node.inputs)
        groups = alike.setdefault(key, [])
        for group in groups:
            earlier = graph.nodes[group[0]]
            if _facts(graph, earlier) == _facts(graph, node):
                group.append(node.index)
                for made, value in zip(earlier.outputs, node.outputs, strict=True):
                    first[value] = made
                break
        else:
            groups.append([node.index])
    yield from (group for groups in alike.values() for group in groups if len(group) > 1)


def _facts(graph: Graph, node: Node) -> tuple[object, ...]:
    """Returns what two operations of the same operands must share to be equal."""
    results = [(graph.values[v].dtype, graph.values[v].shape) for v in node.outputs]
    return node.op, node.attributes, results


def _is_function(node: Node) -> bool:
    """Returns True if the graph holds all that the results of a node depend on."""
    if not node.inputs or Trait.UNDESCRIBED in node.traits:
        return False
    if Trait.MOVES in node.traits:
        return bool(_WHOLE & node.traits)
    return bool(node.interval) or Trait.CONTRACTS in node.traits
