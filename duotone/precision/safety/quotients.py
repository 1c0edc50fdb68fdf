"""Difference quotients: a small difference of computed values, divided by a small number.

``(u(x + e) - u(x - e)) / (2 * e)`` and ``(u[1:] - u[:-1]) / dx`` are derivatives by finite
differences. The values are nearly equal, so their difference is mostly the rounding error of half,
and the division magnifies it.

::

    walk back from the results       by how much are errors of a value magnified? Moves and sums
                                     keep the factor, constants multiply it, all else ends it
    a difference of samples          counts where half's rounding error, magnified, exceeds 1/32
    dots upstream of one sample      are denied, and their gradients

*Samples* are two elements of one value (a grid and its neighbours), or the results of one
computation for two operands: the same operations in the same order, up to a dot or a value that
both read. A prediction and its target, or a product and its mean, are not samples: a constant
before their difference magnifies a loss, not an error. A single number that a constant multiplies
is a loss as well.

Dots upstream of both samples are denied for neighbours on a grid only: where one side moves
elements of a value that the other side reads too. Otherwise their rounding is the same on both
sides, and cancels. A dot's few features, or few of many, are no neighbours:
``(centre - size / 2) * 640``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from duotone.graph.graph import Graph, Node, Value
from duotone.graph.reach import Walk
from duotone.graph.terms import kept, scales, subtracts
from duotone.ops.entries import Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.context import Background
from duotone.precision.rules import Rule
from duotone.precision.safety.dot_operands import Dots

_ERROR = 1 / 32
"""The magnified rounding error of a value of 1 from which a difference quotient is denied."""
_LEAVES = 8
"""The largest number of terms of a sum of sums that are examined."""
_FEATURES = 8
"""A last axis of a dot with fewer elements holds different quantities, and no grid."""
_REASON = "a difference of its result and a nearly equal value is divided by a small number"
_GRADIENT = "a gradient of a dot before such a difference, which was multiplied by a large number"
_LINEAR = frozenset({Trait.COMMUTES, Trait.ADDS, Trait.CARRIES, Trait.UNDESCRIBED})


def keep_quotients(classes: Classes, background: Background) -> Classes:
    """Denies the dots before difference quotients.

    Args:
        classes: the class of each node.
        background: the program, and its half type.

    Returns:
        New classes; the same object if there are no such quotients.
    """
    graph = background.graph
    magnified = _magnified(graph, 2 * _ERROR / background.half.epsilon)
    if not magnified:
        return classes
    dots = Dots(graph, classes)
    denied: dict[int, str] = {}
    differences = set[int]()
    for node in graph.having(Trait.ADDS):
        if magnified.isdisjoint(node.outputs):
            continue
        sides = [v for v in node.inputs if graph.values[v].constant is None]
        if len(sides) != 2:
            continue
        made = [dots.graph.maker(dots.origin(v)) for v in sides]
        adds_to_one = any(maker is not None and maker.index in differences for maker in made)
        if adds_to_one or (subtracts(graph, node) and _have_samples(dots, *sides)):
            differences.add(node.index)
            denied |= dict.fromkeys(_parted(dots, *sides), _REASON)
    for index in tuple(denied):
        for gradient in dots.gradients(graph.nodes[index]):
            denied.setdefault(gradient, _GRADIENT)
    return classes.with_denied(denied, Rule.QUOTIENT, Taint.DOMINANT)


def _magnified(graph: Graph, limit: float) -> set[int]:
    """Returns the values whose errors constants multiply by ``limit`` or more."""
    factors: dict[int, float] = {}
    for node in reversed(graph.nodes):
        if node.index not in graph.constants and factors.keys().isdisjoint(node.outputs):
            continue  # the usual case: nothing multiplies its results
        factor = max((factors.get(v, 1.0) for v in node.outputs), default=1.0)
        if scales(node):
            factor *= 0.0 if _is_loss(graph, node) else _factor(graph, node)
        elif node.traits.isdisjoint(_LINEAR):
            continue
        if factor > 1.0:
            for value in node.inputs:
                factors[value] = max(factors.get(value, 1.0), factor)
    return {value for value, factor in factors.items() if factor >= limit}


def _is_loss(graph: Graph, node: Node) -> bool:
    return Trait.MULTIPLIES in node.traits and graph.values[node.outputs[0]].is_one


def _factor(graph: Graph, node: Node) -> float:
    """Returns by how much a constant operand magnifies the other one; 0 where none does."""
    divides = Trait.DIVIDES in node.traits
    operands = node.inputs[1:] if divides else node.inputs
    known = next((m for v in operands if (m := graph.values[v].constant) is not None), None)
    if known is None or known.largest == 0.0:
        return 0.0
    return 1.0 / known.largest if divides else known.largest


def _have_samples(dots: Dots, one: int, other: int) -> bool:
    """Checks if some terms of two values are results of the same computation."""
    pairs = itertools.product(_terms(dots, one), _terms(dots, other))
    return any(_same_computation(dots, *pair) for pair in pairs)


def _terms(dots: Dots, value: int) -> list[int]:
    """Returns the terms of a sum, upstream of moves and scaling."""
    terms = [_origin(dots, value)]
    for term in terms:
        node = dots.graph.maker(term)
        if node is not None and Trait.ADDS in node.traits and len(terms) < _LEAVES:
            terms += (_origin(dots, v) for v in node.inputs)
    return terms


def _origin(dots: Dots, value: int) -> int:
    """Returns the origin of a value, also upstream of parts that are put together: a roll."""
    value = _unmoved(dots, value)
    while (node := dots.graph.maker(value)) is not None and Trait.PARTS in node.traits:
        origins = {_unmoved(dots, v) for v in node.inputs}
        if len(origins) != 1:
            break
        (value,) = origins
    return value


def _unmoved(dots: Dots, value: int) -> int:
    """Returns the value that moves and scaling start at, or one that picks a coordinate."""
    while (node := dots.graph.maker(value)) is not None and not _is_coordinate(dots, node):
        earlier = kept(dots.graph, node)
        if earlier is None:
            break
        value = earlier
    return value


def _is_coordinate(dots: Dots, node: Node) -> bool:
    """Checks if a node picks some of a dot's features, as the centre or the size of a box.

    The dot may have many more features (the classes of a detector), of which few were picked. They
    may be joined again, as corners are, but not with those of another dot: it may be a sample.
    """
    values = dots.graph.values
    *outer, last = (node.inputs and values[node.inputs[0]].shape) or (None,)
    if Trait.MOVES not in node.traits or Trait.PARTS in node.traits or not isinstance(last, int):
        return False
    sides = range(1, last) if last < _FEATURES else range(2, min(_FEATURES, last // 2 + 1))
    picked = [tuple(outer), *((*outer, side) for side in sides)][last >= _FEATURES :]
    if any(values[v].shape not in picked for v in node.outputs):
        return False
    joined, found, walk = False, set[int](), Walk(dots.graph, node.inputs[:1])
    for value, made in walk:
        if dots.classes.is_dot(made):
            found.add(made.index)
        else:
            read = [v for v in made.inputs if _has_features(made, values[v], value)]
            joined = joined or (Trait.PARTS in made.traits and bool(read))
            walk.to(read)
    return len(found) == 1 if joined else bool(found)


def _has_features(node: Node, operand: Value, result: Value) -> bool:
    """Checks if an operand has the features of a result, parts of them, or more of them."""
    one, other = operand.shape, result.shape
    if one[-1:] == other[-1:]:
        return True
    if not one or not other or not isinstance(one[-1], int) or not isinstance(other[-1], int):
        return False
    if Trait.PARTS in node.traits:
        return one[-1] < other[-1] < _FEATURES
    return Trait.MOVES in node.traits and one[:-1] == other[:-1] and one[-1] > other[-1]


def _same_computation(dots: Dots, one: int, other: int) -> bool:
    """Checks if the same operations make two values, up to a value or a dot's operand of both."""
    while one != other:
        first, second = dots.graph.maker(one), dots.graph.maker(other)
        if first is None or second is None or not _alike(dots.graph, first, second):
            return False
        if _is_coordinate(dots, first):
            return False
        if dots.classes.is_dot(first):
            shared = {dots.origin(v) for v in first.inputs}
            return not shared.isdisjoint(map(dots.origin, second.inputs))
        one, other = _operand(dots, first), _operand(dots, second)
    return _has_dot(dots, one)


def _alike(graph: Graph, one: Node, other: Node) -> bool:
    shapes = [graph.values[node.outputs[0]].shape for node in (one, other)]
    return one.op == other.op and shapes[0] == shapes[1]


def _operand(dots: Dots, node: Node) -> int:
    """Returns the operand that was made last, since the others are weights and constants."""
    origins = (_origin(dots, v) for v in node.inputs)
    return max(origins, key=lambda v: dots.graph.values[v].producer)


def _has_dot(dots: Dots, value: int) -> bool:
    return next(_dots_making(dots, _upstream(dots, value)), None) is not None


def _parted(dots: Dots, one: int, other: int) -> set[int]:
    """Returns the dots upstream of one of two values, or of both if they are neighbours."""
    first, second = _upstream(dots, one), _upstream(dots, other)
    apart, common = first ^ second, first & second
    parted = set(_dots_making(dots, apart))
    if not parted and any(_moves(dots.graph, node, common) for node in dots.makers(apart)):
        parted = set(_dots_making(dots, first))
    return parted


def _dots_making(dots: Dots, values: Iterable[int]) -> Iterator[int]:
    """Yields the dots whose results are among some values."""
    for node in map(dots.graph.maker, values):
        if node is not None and dots.classes.is_dot(node):
            yield node.index


def _moves(graph: Graph, node: Node, values: set[int]) -> bool:
    """Checks if a node moves elements of one of some values; a broadcast number is no element."""
    in_place = node.traits & {Trait.NEGATES, Trait.CONVERTS}
    if in_place or Trait.MOVES not in node.traits:
        return False
    return any(v in values and not graph.values[v].is_one for v in node.inputs)


def _upstream(dots: Dots, value: int) -> set[int]:
    """Returns a value and all values upstream of it."""
    walk = Walk(dots.graph, [value])
    for _, node in walk:
        walk.to(v for v in node.inputs if dots.graph.values[v].paintable)
    return walk.seen
