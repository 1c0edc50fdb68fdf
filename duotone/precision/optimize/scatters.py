"""Scatters that add no two updates to one element: as a select, with the same bits and fewer bytes.

A ``scatter-add`` of one number into each row of a constant is the derivative of picking one
logit of each row (every cross-entropy with integer labels). Compiled, it is a kernel of its
own that writes the constant, reads it and writes it again, in float32. A select is fused into
the kernel that reads it (``one_hot``).

This pays only once everything around it is half: the float32 arrays are then most of the traffic.
The front end marks the scatters for which this holds; :mod:`duotone.jaxpr.rules.scatters` has the
arithmetic of their axes.
"""

from __future__ import annotations

from duotone.graph.graph import Node
from duotone.precision.optimize.optimization import Expression, Optimization
from duotone.precision.optimize.painted_view import View


def match(node: Node, view: View) -> Optimization | None:
    """Matches a scatter to a constant that never adds two updates to one element."""
    if "once" not in node.attributes or view.value(node.inputs[0]).constant is None:
        return None
    write = Expression()
    write("one_hot", *write.operands(node, view.painting.compute[node.index]))
    return Optimization("one_hot", node.index, "part of the kernel that reads it", write.steps)
