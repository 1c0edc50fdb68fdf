"""Labels: names for the axes of dots, like the letters of an Einstein sum.

``dot(p, v)`` with ``p[q, k]`` and ``v[k, d]`` has one label for each of ``q``, ``k`` and ``d``.
Each dot numbers its own labels (:class:`~duotone.graph.graph.Node`, attribute ``labels``).
"""

from __future__ import annotations

from collections.abc import Sequence

from duotone.graph.graph import Graph, Node


def labels_of(graph: Graph, dot: Node) -> tuple[tuple[int, ...], ...]:
    """Returns the labels of the axes of a dot's left operand, right operand and result."""
    labels = dot.attributes["labels"]
    assert isinstance(labels, tuple)
    left, right = (len(graph.values[value].shape) for value in dot.inputs)
    return labels[:left], labels[left : left + right], labels[left + right :]


def renamed(
    graph: Graph, summed: Node, shared: int, theirs: Sequence[int], out: Sequence[int]
) -> list[int] | None:
    """Returns the labels of a dot's result in another dot's numbering, or ``None``.

    Args:
        graph: the program.
        summed: the dot of ``shared`` and of an operand with the axes of the other dot's result.
        shared: the operand that both dots have.
        theirs: the labels of ``shared`` in the other dot.
        out: the labels of the other dot's result.
    """
    left, right, result = labels_of(graph, summed)
    both, single = (left, right) if summed.inputs[0] == shared else (right, left)
    names: dict[int, int] = dict(zip(both, theirs, strict=True))
    for label, name in zip(single, out, strict=True):
        if names.setdefault(label, name) != name:
            return None
    if len(set(names.values())) < len(names):
        return None
    return [names[label] for label in result]
