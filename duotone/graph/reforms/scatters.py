"""Scatters that add no two updates: in another form that gives the same bits, and fewer bytes.

A ``scatter-add`` of one number into each row of a constant is the derivative of picking one logit
of each row (every cross-entropy with whole-number labels). Compiled, it is a kernel of its own that
writes the constant out, reads it and writes it again, in float32; as a select it is part of the
kernel that reads it (``one_hot``). Where the indices are known before any call and no place gets
more than one update, as in the derivative of ``x[rows, columns]`` with constant ``rows`` and
``columns``, it is a gather from the updates (``known_scatters``): of each place it is known which
update it gets, if any.

These pay only once everything around them is half: what is left in float32 is then most of the
traffic. The front end says of which scatters this holds; :mod:`duotone.jaxpr.rules.scatters` has
the arithmetic of their axes.
"""

from __future__ import annotations

from duotone.graph.graph import Node, Paint
from duotone.graph.reforms.reform import Expression, Reform
from duotone.graph.reforms.view import View


def match_known(node: Node, view: View) -> Reform | None:
    """A scatter to known places, none of which gets two updates, of a constant."""
    if "placed" not in node.attributes:
        return None
    reason = "of each place it is known which update it gets"
    return _reform("known_scatters", "place", reason, node, view)


def match_one_hot(node: Node, view: View) -> Reform | None:
    """A scatter that can add no two updates, wherever they go, to a constant."""
    if "once" not in node.attributes:
        return None
    return _reform("one_hot", "one_hot", "part of the kernel that reads it", node, view)


def _reform(name: str, operation: str, reason: str, node: Node, view: View) -> Reform | None:
    if view.value(node.inputs[0]).constant is None:
        return None
    write = Expression()
    paint = view.painting.compute[node.index]
    operands = [
        write.read(value, node.index, paint if half else Paint.FULL)
        for value, half in zip(node.inputs, node.half_inputs, strict=True)
    ]
    write(operation, *operands)
    return Reform(name, node.index, reason, write.steps)
