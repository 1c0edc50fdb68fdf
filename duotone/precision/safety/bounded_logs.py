"""Logarithms with a bounded slope: an absolute error of their operand stays an absolute one.

=======================  ==========================================================================
squareplus               ``log(x + sqrt(x * x + c))``, the slope in x is at most ``1 / sqrt(c)``
a distance and a number  ``log(c + k * (x - y)**2)``, the slope in the difference is at most
                         ``sqrt(k / c)``: the losses of Cauchy and Student, and t-SNE
=======================  ==========================================================================

Both slopes must be at most 1, where k and c are constants. A network may predict k and c, or they
may be parameters, by an activation or an exponential: they count as 1 (an evidential loss, a
Student loss with predicted degrees of freedom, a robust loss that learns its scale). Spectra look
alike, so the value must be a prediction:

- A value that reads a power, ``(s @ cos)**2 + (s @ sin)**2``, spans many decades.
- The difference of two dots is one dot of two signals: the real part of a Fourier transform. Only
  one of x and y may come from dots, or both repeat the same value, ``h[:, None] - h[None]``.
"""

from __future__ import annotations

import functools

from duotone.graph.graph import Graph, Node
from duotone.graph.reach import Walk, following, start
from duotone.graph.terms import scales
from duotone.ops.traits import Trait
from duotone.precision.safety.dot_operands import Dots

ARITHMETIC = frozenset(
    {
        Trait.COMMUTES,
        Trait.ADDS,
        Trait.SUMS,
        Trait.MULTIPLIES,
        Trait.DIVIDES,
        Trait.UNDESCRIBED,
    }
)
"""Traits of what a relative error passes on the way to a logarithm or a root, in every walk."""
_TO_POWERS = ARITHMETIC | {Trait.RAISES, Trait.ROOTS, Trait.LINEAR}
_PASSES = _TO_POWERS | {Trait.CARRIES, Trait.CONVERTS, Trait.CONTRACTS}
_SCALES = frozenset({Trait.ACTIVATION, Trait.EXPONENTIAL, Trait.CHOOSES, Trait.ADDS})
"""Traits of the last operation that makes a positive scale; a squareplus ends with a sum."""


class BoundedLogs(Dots):
    """Finds operands of logarithms at which their slope is at most 1."""

    def ends(self, node: Node) -> bool:
        """Checks if the logarithm of a node's result has a slope of at most 1."""
        return self._is_squareplus(node) or any(
            (factor := self._distance(value)) is not None and factor <= self._least(other)
            for value, other in _terms(node)
        )

    def _least(self, value: int) -> float:
        """Returns the lower bound of a constant, 1 for a predicted scale, and 0 for the rest."""
        constant = self.graph.values[value].constant
        return float(self._is_predicted(value)) if constant is None else constant.low

    def _is_predicted(self, value: int) -> bool:
        """Checks for a scale that an activation or an exponential made, with no dot after it."""
        walk, found = Walk(self.graph, [value]), False
        for _, node in walk:
            if not passes(node, self.graph) or self._is_squareplus(node):
                found = found or not node.traits.isdisjoint(_SCALES)
            elif self.classes.is_dot(node):
                return False
            else:
                walk.to(node.inputs)
        return found

    def adds_one(self, logarithm: Node) -> bool:
        """Checks for ``log1p(k * (x - y)**2)`` with a constant k of at most 1."""
        return Trait.ADDS_ONE in logarithm.traits and (
            (factor := self._distance(logarithm.inputs[0])) is not None and factor <= 1.0
        )

    def _is_squareplus(self, node: Node) -> bool:
        """Checks for ``x + sqrt(x * x + c)`` with a constant c of at least 1."""
        return any(
            Trait.SQUARE_ROOT in root.traits
            and any(
                (constant := self.graph.values[other].constant) is not None
                and constant.low >= 1.0
                and _is_square(square)
                and x in square.inputs
                and not self._reads_power(x)
                for total in self.makers(root.inputs)
                for value, other in _terms(total)
                for square in self.makers((value,))
            )
            for value, x in _terms(node)
            for root in self.makers((value,))
        )

    def _distance(self, value: int) -> float | None:
        """Returns the k of ``k * (x - y)**2``, or of sums of it; ``None`` for another value."""
        factor = 1.0
        while (node := self.graph.maker(value)) is not None and not _is_square(node):
            if (scaled := self._scaled(node)) is not None:
                value, factor = scaled[0], factor * scaled[1]
            elif len(node.inputs) == 1 and _moves_or_sums(node):
                value = node.inputs[0]
            else:
                return None
        if node is None:
            return None
        value = node.inputs[0]
        while (node := self.graph.maker(value)) is not None and Trait.SUBTRACTS not in node.traits:
            if (scaled := self._scaled(node)) is None:
                return None
            value, factor = scaled[0], factor * scaled[1] ** 2
        return factor if node is not None and self._is_apart(node) else None

    def _scaled(self, node: Node) -> tuple[int, float] | None:
        """Returns the value that a node scales, and by which constant; by 1 if it is predicted."""
        if not scales(node):
            return None
        for value, other in (node.inputs, node.inputs[::-1]):
            divides = Trait.DIVIDES in node.traits
            if divides and value != node.inputs[0]:
                continue
            constant = self.graph.values[other].constant
            if constant is not None and constant.low > 0.0:
                return value, 1.0 / constant.low if divides else constant.high
            if constant is None and self._is_predicted(other):
                return value, 1.0
        return None

    def _is_apart(self, difference: Node) -> bool:
        """Checks for a prediction and a target of its size, or for pairs of one value."""
        wholes = (start(self.graph, v, _repeated) for v in difference.inputs)
        one, other = (self.graph.values[whole] for whole in wholes)
        if one.size != other.size:
            return False
        predictions = [value for value in difference.inputs if value in self._made]
        if len(predictions) == 2 and not self._are_pairs(difference):
            return False
        return not any(map(self._reads_power, predictions))

    def _are_pairs(self, difference: Node) -> bool:
        """Checks if both operands of a difference repeat the same value."""
        origin, other = (start(self.graph, v, _repeated) for v in difference.inputs)
        size = self.graph.values[difference.outputs[0]].size
        return origin == other and self.graph.values[origin].size < size

    def _reads_power(self, value: int) -> bool:
        """Checks for a square after the last dots and activations, or as operand of such a dot."""
        walk = Walk(self.graph, [value])
        for _, node in walk:
            dot = self.classes.is_dot(node)
            makers = self.makers(map(self.origin, node.inputs)) if dot else [node]
            if any(_is_square(made) or Trait.POWER in made.traits for made in makers):
                return True
            passes = not node.traits.isdisjoint(_TO_POWERS) and not is_activation(node, self.graph)
            if passes and not dot:
                walk.to(node.inputs)
        return False

    @functools.cached_property
    def _made(self) -> set[int]:
        """The values that follow from dots, or may do so."""
        unknown = (node.index for node in self.graph.having(Trait.CARRIES, Trait.UNDESCRIBED))
        return following(self.graph, self.classes.dots(self.graph).union(unknown))


def is_activation(node: Node, graph: Graph) -> bool:
    """Returns True for activations; a maximum with a positive constant only guards a value."""
    bounds = [graph.values[v].constant for v in node.inputs if Trait.BOUNDS in node.traits]
    guards = any(bound is not None and bound.low > 0.0 for bound in bounds)
    return Trait.ACTIVATION in node.traits and not guards


def passes(node: Node, graph: Graph) -> bool:
    """Checks if a relative error of an operand may be one of the result, in a filter or a power."""
    if is_activation(node, graph):
        return False
    if Trait.CHOOSES in node.traits and _is_piecewise(node, graph):
        return False
    return not node.traits.isdisjoint(_PASSES)


def _is_piecewise(choice: Node, graph: Graph) -> bool:
    """Checks if an activation reaches a piece of a choice by sums and moves: softplus, ELU."""
    walk = Walk(graph, choice.inputs[1:])
    for _, node in walk:
        if is_activation(node, graph):
            return True
        if not node.traits.isdisjoint(_PIECES) and node.traits.isdisjoint(_LOOPS):
            walk.to(node.inputs)
    return False


_PIECES = frozenset({Trait.COMMUTES, Trait.ADDS, Trait.MULTIPLIES})
_LOOPS = frozenset({Trait.CARRIES, Trait.ITERATES, Trait.INDEXES})


def _repeated(graph: Graph, node: Node) -> int | None:
    """Returns the value of which a node moves or repeats all elements."""
    if Trait.KEEPS not in node.traits or Trait.NEGATES in node.traits:
        return None
    (whole, *_), (value, *_) = node.inputs, node.outputs
    return whole if graph.values[whole].size <= graph.values[value].size else None


def _moves_or_sums(node: Node) -> bool:
    between = node.traits & {Trait.SUMS_AXES, Trait.COMMUTES}
    return bool(between) and Trait.NEGATES not in node.traits


def _terms(node: Node) -> list[tuple[int, int]]:
    """Returns both orders of the two operands of a sum; else an empty list."""
    if Trait.ADDS not in node.traits or Trait.SUBTRACTS in node.traits or len(node.inputs) != 2:
        return []
    one, other = node.inputs
    return [(one, other), (other, one)]


def _is_square(node: Node) -> bool:
    """Checks if a node multiplies a value with itself."""
    if len(set(node.inputs)) != 1:
        return False
    twice = Trait.MULTIPLIES in node.traits and len(node.inputs) == 2
    return twice or Trait.SQUARES in node.traits or node.attributes.get("exponent") == 2.0
