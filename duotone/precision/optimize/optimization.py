"""Optimization: one operation in another form, as an expression of neutral operations.

====================  ==============================================================================
``read``              a value, as a node reads it: in full, in half, or as it is stored (``None``)
``operand``           an operand of the operation itself, in the dtype in which the operation takes
                      it
``own``               the operation itself, applied to other operands
``made``              the operation that makes a value, applied to other operands
``take``              the result of the operation, a gather, on another array, of which some axes
                      have size 1
``one_hot``           the result of the operation, a scatter of one update, from comparing positions
                      with indices
``channelwise_sums``  the result of the operation, a convolution with one feature per group
``padded_images``     the result of the operation, a convolution, from an image that is padded first
``pooling``           the result of the operation, a reduction of windows or the gradient of one
``transposed_convolutions``, ``dilated_filters``, ``dilated_gradients``
                      the result of the operation, a convolution, in a form of a GPU's library
``contract``          a dot in the form of the device, by dimension numbers
``weight``            an operand that may be a weight, and the value from which it was moved
``start``             the initial value of a loop's carry
``stacked``           a dot over the operands of all iterations of a loop
``sum``               a sum along axes, in float32
``multiply``          elementwise, as are ``add``, ``divide`` and ``negate``
``transpose``         a permutation of axes; ``expand`` and ``squeeze`` add and remove axes of size
                      1
``widen``             a conversion to float32
``rounded``           float32 numbers that half can represent; no compiler removes this rounding
``instead``           the second operand, with the derivative of the first
====================  ==============================================================================

The interpreter applies steps in the order in which a match wrote them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from duotone.graph.graph import Graph, Node, Paint

if TYPE_CHECKING:
    from duotone.precision.optimize.painted_view import View


NOBODY = -1
"""The reader of a value's first computation, which nothing recomputes."""


class ExpressionStep(NamedTuple):
    """One step of an expression.

    Attributes:
        name: one of the names above.
        of: positions of the steps that give its operands.
        to: its other parameters: axes, a permutation, a shape ….
    """

    name: str
    of: tuple[int, ...]
    to: tuple[Any, ...]


class Expression:
    """A list of steps under construction; each call adds one and returns its position."""

    def __init__(self) -> None:
        self._steps: list[ExpressionStep] = []

    def __call__(self, name: str, *of: int, to: Sequence[Any] = ()) -> int:
        """Adds a step.

        Args:
            name: the name of the operation.
            *of: positions of the steps that give its operands.
            to: its other parameters.
        """
        self._steps.append(ExpressionStep(name, of, tuple(to)))
        return len(self._steps) - 1

    def read(self, value: int, reader: int, paint: Paint | None = Paint.FULL) -> int:
        """Adds a step that reads a value, as ``reader`` reads it."""
        return self("read", to=(value, reader, paint))

    def operands(self, node: Node, paint: Paint) -> list[int]:
        """Adds steps that read the operands of a node as it reads them.

        Args:
            node: the node.
            paint: the precision in which it computes; operands that cannot be half are full.
        """
        return [
            self.read(value, node.index, paint if half else Paint.FULL)
            for value, half in zip(node.inputs, node.half_inputs, strict=True)
        ]

    @property
    def steps(self) -> tuple[ExpressionStep, ...]:
        """All steps; the last one gives the result."""
        return tuple(self._steps)


class Layer(enum.Enum):
    """The part of an operation that an optimization changes; an operation may have one of each."""

    RESULT = "result"
    """The value that replaces its result."""
    BINDING = "binding"
    """How the operation itself is bound, inside the expression of its result."""
    DERIVATIVE = "derivative"
    """Its derivative."""


@dataclasses.dataclass(frozen=True, slots=True)
class Optimization:
    """One operation in another form.

    Attributes:
        name: the name of the optimization in the registry.
        node: the index of the operation.
        reason: its gain here, in words.
        steps: the expression.
        full: operations that must keep their float32 accumulators for it.
        also: optimizations of other operations that it needs.
        half: operations that it lets compute in half, with float32 accumulators.
    """

    name: str
    node: int
    reason: str
    steps: tuple[ExpressionStep, ...]
    full: tuple[int, ...] = ()
    also: tuple[Optimization, ...] = ()
    half: tuple[int, ...] = ()

    def makers(self, graph: Graph) -> set[int]:
        """Returns the nodes to apply one by one for it: the makers of all values that it reads.

        The operands of the operation itself need no entry, since they are available in any case.
        """
        own = graph.nodes[self.node].inputs
        read = {step.to[0] for step in self.steps if step.name == "read"}
        made = {step.to[0] for step in self.steps if step.name == "made"}
        return {graph.values[value].producer for value in read.difference(own) | made}


Match = Callable[[Node, "View"], Optimization | None]
"""Returns the optimization of a node, or ``None`` if it does not apply or does not pay."""
