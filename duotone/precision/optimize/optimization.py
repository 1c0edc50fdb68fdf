"""Optimization: one operation carried out in another form, as an expression of neutral operations.

=============  ====================================================================================
``read``       a value, as a node reads it: in full, in half, or as it is stored (``None``)
``operand``    an operand of the operation itself, as it is about to be bound
``own``        the operation itself, of other operands
``made``       the operation that makes a value, of other operands
``take``       what the operation, a gather, takes of an array; of size 1 where the original is not
``one_hot``    what the operation, a scatter of one update, gives, by comparing places with indices
``contract``   a dot in the form of the device, by dimension numbers
``weight``     an operand that may be a weight, and the value from which it was moved
``start``      what a loop carries before its first iteration
``stacked``    a dot over the operands of all iterations of a loop
``sum``        along axes, in float32
``multiply``   likewise ``add``, ``divide``, ``negate``, ``transpose``, ``expand``, ``squeeze``
``widen``      in float32
``rounded``    float32 numbers that half holds; no compiler leaves this rounding out
``instead``    the second operand, with the derivative of the first
=============  ====================================================================================

Steps are carried out in the order in which they were written.
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
"""Reads a value as it was calculated first."""


class Operation(NamedTuple):
    """One step of an expression.

    Attributes:
        name: one of those above.
        of: positions of the steps that give its operands.
        to: what else it takes: axes, a permutation, a shape ….
    """

    name: str
    of: tuple[int, ...]
    to: tuple[Any, ...]


class Expression:
    """Steps being written; each call adds one and gives its position."""

    def __init__(self) -> None:
        self._steps: list[Operation] = []

    def __call__(self, name: str, *of: int, to: Sequence[Any] = ()) -> int:
        """Adds a step.

        Args:
            name: of the operation.
            *of: positions of its operands.
            to: what else it takes.
        """
        self._steps.append(Operation(name, of, tuple(to)))
        return len(self._steps) - 1

    def read(self, value: int, reader: int, paint: Paint | None = Paint.FULL) -> int:
        """Adds a value, as ``reader`` reads it."""
        return self("read", to=(value, reader, paint))

    @property
    def steps(self) -> tuple[Operation, ...]:
        """All steps; the last one gives the result."""
        return tuple(self._steps)


class Layer(enum.Enum):
    """The part of an operation that an optimization changes; an operation may have one of each."""

    RESULT = "result"
    """The value that stands in its place."""
    BINDING = "binding"
    """How the operation itself is bound, under that."""
    DERIVATIVE = "derivative"


@dataclasses.dataclass(frozen=True, slots=True)
class Optimization:
    """One operation in another form.

    Attributes:
        name: of the optimization, as the registry has it.
        node: the operation.
        reason: what it gains here, for people.
        steps: the expression.
        full: operations that hand on their float32 sums for it.
        also: other operations that change with it.
    """

    name: str
    node: int
    reason: str
    steps: tuple[Operation, ...]
    full: tuple[int, ...] = ()
    also: tuple[Optimization, ...] = ()

    def makers(self, graph: Graph) -> set[int]:
        """Nodes that must be carried out one by one for it: the makers of all that it reads.

        Its own operands aside, which are there in any case.
        """
        own = graph.nodes[self.node].inputs
        read = {step.to[0] for step in self.steps if step.name == "read"}
        made = {step.to[0] for step in self.steps if step.name == "made"}
        return {graph.values[value].producer for value in read.difference(own) | made}


Match = Callable[[Node, "View"], Optimization | None]
"""The optimization of a node, or ``None`` where the identity does not hold or does not pay."""
