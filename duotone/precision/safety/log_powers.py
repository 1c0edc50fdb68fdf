"""Log-powers: dots between a signal and the logarithm of its power are full.

A logarithm turns a *relative* error of its operand into an absolute one. A Fourier transform or a
filter by dots is exact only relative to its largest terms, so a quiet signal next to a loud one
would be all rounding error. Besides, powers that span ten decades do not fit float16:
``log(max((s * s) @ bank, 1e-10))``.

::

    start at the operands of logarithms, walk back through moves, sums, arithmetic and roots
    a dot on the way                  is denied: the logarithm reads it, or a power of it
    an activation or an exponential   ends the walk: a network's last layer before log(softmax(x))
    a choice with such a piece        ends the walk: log(softplus(x)), which is piecewise
    a slope of at most 1              ends the walk: squareplus, log(1 + (x - y)**2)
    a single number                   ends the walk: the mean over everything, log(mean((x - y)**2))

The walk goes on upstream of a dot: the filter bank reads a power, and the power reads a Fourier
transform. The gradients of such dots are denied too, since they read values divided by the power.

A root compresses a power as well, ``((s * s) @ bank) ** 0.3``. A dot of powers, or of a value with
itself (``diag(x @ x.T)``), is denied if a root reads it through moves, sums and arithmetic alone.
"""

from __future__ import annotations

from duotone.graph.graph import Node
from duotone.graph.reach import Walk
from duotone.ops.entries import Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.context import Background
from duotone.precision.rules import Rule
from duotone.precision.safety.bounded_logs import ARITHMETIC, BoundedLogs, is_activation, passes
from duotone.precision.safety.dot_operands import Dots

_REASON = "a logarithm reads its result, or its power: a relative error counts"
_ROOT = "a root reads its result, a sum of powers: their range is twice as wide"
_GRADIENT = "a gradient of such a dot: it was divided by the power"
_NUMBERS = ("float", "bfloat", "complex")
_TO_ROOTS = ARITHMETIC | {Trait.CARRIES}


def keep_log_powers(classes: Classes, background: Background) -> Classes:
    """Denies dots whose power a logarithm reads.

    Args:
        classes: the class of each node.
        background: the program.

    Returns:
        New classes; the same object if there are no such dots.
    """
    graph = background.graph
    bounded = BoundedLogs(graph, classes)
    logarithms = (n for n in graph.having(Trait.LOGARITHM) if not bounded.adds_one(n))
    walk = Walk(graph, (v for node in logarithms for v in node.inputs))
    denied: dict[int, str] = {}
    for value, node in walk:
        if value.is_one or not passes(node, graph) or bounded.ends(node):
            continue
        if classes.is_dot(node):
            denied[node.index] = _REASON
        walk.to(v for v in node.inputs if graph.values[v].dtype.startswith(_NUMBERS))
    denied = dict.fromkeys(_before_roots(bounded), _ROOT) | denied
    for index in tuple(denied):
        denied |= dict.fromkeys(bounded.gradients(graph.nodes[index]), _GRADIENT)
    return classes.with_denied(denied, Rule.LOG_POWER, Taint.DOMINANT)


def _before_roots(dots: Dots) -> set[int]:
    """Returns the dots of powers that a root reads through moves, sums and arithmetic alone."""
    graph, found = dots.graph, set[int]()
    walk = Walk(graph, (v for node in graph.nodes if _is_root(node) for v in node.inputs))
    for _, node in walk:
        if dots.classes.is_dot(node):
            origins = {dots.origin(v) for v in node.inputs}
            powers = any(Trait.POWER in made.traits for made in dots.makers(origins))
            if powers or (len(node.inputs) > 1 and len(origins) == 1):
                found.add(node.index)
        elif not node.traits.isdisjoint(_TO_ROOTS) and not is_activation(node, graph):
            walk.to(node.inputs)
    return found


_ROOTS = Trait.ROOTS  # bound once: these are hot
_RECIPROCAL = frozenset({Trait.RAISES, Trait.POLE})


def _is_root(node: Node) -> bool:
    return _ROOTS in node.traits or node.traits >= _RECIPROCAL
