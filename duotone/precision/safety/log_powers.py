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
    squareplus                        ends the walk: log(x + sqrt(x * x + 4)) has a bounded slope
    a distance plus a constant        ends the walk: log(1 + (x - y)**2), the loss of Cauchy
    a single number                   ends the walk: the mean over everything, log(mean((x - y)**2))

The walk goes on upstream of a dot: the filter bank reads a power, and the power reads a Fourier
transform. The gradients of such dots are denied too, since they read values divided by the power.

A root compresses a power as well, ``((s * s) @ bank) ** 0.3``. A dot of powers, or of a value with
itself (``diag(x @ x.T)``), is denied if a root reads it through moves, sums and arithmetic alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from duotone.graph.graph import Graph, Node
from duotone.graph.terms import moved, scales
from duotone.ops.entries import Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.context import Background
from duotone.precision.rules import Rule
from duotone.precision.safety.dot_operands import Dots

_REASON = "a logarithm reads its result, or its power: a relative error counts"
_ROOT = "a root reads its result, a sum of powers: their range is twice as wide"
_GRADIENT = "a gradient of such a dot: it was divided by the power"
_NUMBERS = ("float", "bfloat", "complex")
_PASSES = frozenset(
    {
        Trait.COMMUTES,
        Trait.CONVERTS,
        Trait.ADDS,
        Trait.SUMS,
        Trait.MULTIPLIES,
        Trait.DIVIDES,
        Trait.RAISES,
        Trait.ROOTS,
        Trait.CONTRACTS,
        Trait.CARRIES,
        Trait.LINEAR,
        Trait.UNDESCRIBED,
    }
)


def keep_log_powers(classes: Classes, background: Background) -> Classes:
    """Denies dots whose power a logarithm reads.

    Args:
        classes: the class of each node.
        background: the program.

    Returns:
        New classes; the same object if there are no such dots.
    """
    graph = background.graph
    values = graph.values
    seen = set[int]()
    logarithms = [node for node in graph.nodes if Trait.LOGARITHM in node.traits]
    queue = [v for node in logarithms for v in node.inputs if not _adds_one(node, graph)]
    denied: dict[int, str] = {}
    while queue:
        value = values[queue.pop()]
        if value.index in seen or value.producer < 0 or value.is_one:
            continue
        seen.add(value.index)
        node = graph.nodes[value.producer]
        if not _passes(node, graph):
            continue
        if classes.is_dot(node):
            denied[node.index] = _REASON
        queue += [v for v in node.inputs if values[v].dtype.startswith(_NUMBERS)]
    dots = Dots(graph, classes)
    denied = dict.fromkeys(_before_roots(dots), _ROOT) | denied
    for index in tuple(denied):
        denied |= dict.fromkeys(dots.gradients(graph.nodes[index]), _GRADIENT)
    return classes.with_denied(denied, Rule.LOG_POWER, Taint.DOMINANT)


def _before_roots(dots: Dots) -> set[int]:
    """Returns the dots of powers that a root reads through moves, sums and arithmetic alone."""
    graph = dots.graph
    seen, found = set[int](), set[int]()
    queue = [v for node in graph.nodes if _is_root(node) for v in node.inputs]
    while queue:
        value = graph.values[queue.pop()]
        if value.index in seen or value.producer < 0:
            continue
        seen.add(value.index)
        node = graph.nodes[value.producer]
        if dots.classes.is_dot(node):
            origins = {dots.origin(v) for v in node.inputs}
            makers = map(dots.maker, origins)
            powers = any(made is not None and Trait.POWER in made.traits for made in makers)
            if powers or (len(node.inputs) > 1 and len(origins) == 1):
                found.add(node.index)
        elif not node.traits.isdisjoint(_ARITHMETIC) and not _is_activation(node, graph):
            queue += node.inputs
    return found


_ROOTS = Trait.ROOTS  # bound once: these are hot
_RECIPROCAL = frozenset({Trait.RAISES, Trait.POLE})


def _is_root(node: Node) -> bool:
    return _ROOTS in node.traits or node.traits >= _RECIPROCAL


_ARITHMETIC = frozenset(
    {
        Trait.COMMUTES,
        Trait.ADDS,
        Trait.SUMS,
        Trait.MULTIPLIES,
        Trait.DIVIDES,
        Trait.CARRIES,
        Trait.UNDESCRIBED,
    }
)


def _passes(node: Node, graph: Graph) -> bool:
    """Checks if a relative error of an operand may be one of the result, in a filter or a power."""
    if (
        _is_activation(node, graph)
        or _is_squareplus(node, graph)
        or _is_shifted_distance(node, graph)
    ):
        return False
    if Trait.CHOOSES in node.traits and _is_piecewise(node, graph):
        return False
    return not node.traits.isdisjoint(_PASSES)


def _is_activation(node: Node, graph: Graph) -> bool:
    """Returns True for activations."""
    bounds = [graph.values[v].constant for v in node.inputs if Trait.BOUNDS in node.traits]
    guards = any(bound is not None and bound.low > 0.0 for bound in bounds)
    return Trait.ACTIVATION in node.traits and not guards


def _is_piecewise(choice: Node, graph: Graph) -> bool:
    """Checks if an activation reaches a piece of a choice by sums and moves: softplus, ELU."""
    queue = list(choice.inputs[1:])
    for value in queue:
        producer = graph.values[value].producer
        if producer < 0:
            continue
        node = graph.nodes[producer]
        if _is_activation(node, graph):
            return True
        if not node.traits.isdisjoint(_PIECES) and node.traits.isdisjoint(_LOOPS):
            queue += set(node.inputs).difference(queue)
    return False


def _is_squareplus(node: Node, graph: Graph) -> bool:
    """Checks for ``x + sqrt(x * x + c)`` with a positive constant c, a smooth rectifier."""
    return any(
        Trait.SQUARE_ROOT in root.traits
        and any(
            _is_positive(graph, constant) and _is_square(square) and value in square.inputs
            for total in _makers(graph, root.inputs)
            for square, constant in _terms(graph, total)
        )
        for root, value in _terms(graph, node)
    )


def _is_shifted_distance(node: Node, graph: Graph) -> bool:
    """Checks for a distance plus a constant, ``c + k * (x - y)**2`` with 0 < k <= c."""
    return any(
        (constant := graph.values[other].constant) is not None
        and _is_distance(made, constant.low, graph)
        for made, other in _terms(graph, node)
    )


def _adds_one(logarithm: Node, graph: Graph) -> bool:
    """Checks for ``log1p(k * (x - y)**2)``."""
    if Trait.ADDS_ONE not in logarithm.traits:
        return False
    return any(_is_distance(made, 1.0, graph) for made in _makers(graph, logarithm.inputs))


def _is_distance(node: Node, most: float, graph: Graph) -> bool:
    """Checks for ``k * (x - y)**2``, or sums of it, with a positive constant k of at most `most`.

    The slope of ``log(most + k * d**2)`` in the difference d is at most 1, so an error of d stays
    an absolute one, as in a squared loss. A power spectrum has no differences.
    """
    factor = 1.0
    while not _is_square(node):
        known = [(v, graph.values[v].constant) for v in node.inputs]
        numbers = [constant for _, constant in known if constant is not None]
        others = [v for v, constant in known if constant is None]
        if scales(node) and len(numbers) == 1 and numbers[0].low > 0.0:
            if Trait.DIVIDES not in node.traits:
                factor *= numbers[0].high
            elif others[0] == node.inputs[0]:
                factor /= numbers[0].low
            else:
                return False
        elif len(node.inputs) != 1 or node.traits.isdisjoint(_BETWEEN):
            return False
        makers = _makers(graph, others)
        if not makers:
            return False
        node = makers[0]
    return factor <= most and _is_difference(graph, node.inputs[0])


def _is_difference(graph: Graph, value: int) -> bool:
    """Checks if a value is the difference of two values of one size, divided by anything."""
    while makers := _makers(graph, (value,)):
        node = makers[0]
        if Trait.SUBTRACTS in node.traits:
            sizes = {moved(graph, v).size for v in node.inputs}
            return len(node.inputs) == 2 and len(sizes) == 1
        if Trait.DIVIDES not in node.traits:
            return False
        value = node.inputs[0]
    return False


_BETWEEN = frozenset({Trait.SUMS_AXES, Trait.COMMUTES})


def _terms(graph: Graph, node: Node) -> list[tuple[Node, int]]:
    """Returns pairs for a sum of two values: the node that makes one of them, and the other."""
    if Trait.ADDS not in node.traits or Trait.SUBTRACTS in node.traits or len(node.inputs) != 2:
        return []
    pairs = (node.inputs, node.inputs[::-1])
    return [(made, other) for value, other in pairs for made in _makers(graph, (value,))]


def _makers(graph: Graph, values: Iterable[int]) -> list[Node]:
    producers = (graph.values[value].producer for value in values)
    return [graph.nodes[index] for index in producers if index >= 0]


def _is_positive(graph: Graph, value: int) -> bool:
    constant = graph.values[value].constant
    return constant is not None and constant.low > 0.0


def _is_square(node: Node) -> bool:
    """Checks if a node multiplies a value with itself."""
    if len(set(node.inputs)) != 1:
        return False
    twice = Trait.MULTIPLIES in node.traits and len(node.inputs) == 2
    return twice or Trait.SQUARES in node.traits or node.attributes.get("exponent") == 2.0


_PIECES = frozenset({Trait.COMMUTES, Trait.ADDS, Trait.MULTIPLIES})
_LOOPS = frozenset({Trait.CARRIES, Trait.ITERATES, Trait.INDEXES})
