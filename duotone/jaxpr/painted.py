"""A painted JAX program, and the way it is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from duotone.devices.table import DeviceForms
from duotone.graph.graph import Boundary, HalfType, Paint
from duotone.jaxpr.reading.program import BuiltGraph
from duotone.precision.casts.cast_plan import CastPlan
from duotone.precision.classify.classes import Classes
from duotone.precision.optimize.optimizations import Optimizations
from duotone.precision.painters.painting import Painting
from duotone.precision.resolved import Resolved


@dataclasses.dataclass(frozen=True, slots=True)
class CallSite:
    """How a program is called, and where.

    Attributes:
        given: how each argument arrives; ``None`` if all are full.
        boundaries: how each result must leave; ``None`` if all are full.
        arguments: the user's name of each argument, by which the policy states ranges; ``None`` for
            a program that is only part of the user's function, or a policy that says nothing about
            values.
        weights: how many of the first arguments are the same at every call. Such an argument is
            passed in half if all its readers read half, see :attr:`PaintedProgram.given`.
        scopes: the name scopes around the program, outermost first.
    """

    given: Sequence[Paint] | None = None
    boundaries: Sequence[Boundary] | None = None
    arguments: Sequence[str] | None = None
    weights: int = 0
    scopes: tuple[str, ...] = ()


ALONE = CallSite()
"""A whole program: its arguments and results are full."""


@dataclasses.dataclass(frozen=True, slots=True)
class PaintedProgram:
    """The values of all stages of one program, up to the cast plan."""

    built: BuiltGraph
    classes: Classes
    painting: Painting
    plan: CastPlan
    optimizations: Optimizations
    resolved: Resolved
    forms: DeviceForms

    @property
    def half(self) -> HalfType:
        """The half type."""
        return self.resolved.half

    @property
    def given(self) -> tuple[Paint, ...]:
        """The precision in which each argument is to be given."""
        graph = self.built.graph
        return tuple(graph.values[value].given for value in graph.inputs)

    @property
    def changed(self) -> bool:
        """True if anything is half, or bound in another form than the user wrote."""
        return bool(
            self.painting.changed or self.forms.math or self.optimizations.nodes(self.built.graph)
        )

    @property
    def lacks_options(self) -> bool:
        """True if an operation would gain in a ``jit`` with the compiler options of the device."""
        return any(known.lacks_options for known in self.classes.nodes)
