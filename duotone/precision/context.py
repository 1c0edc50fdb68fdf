"""Background: the facts that a stage that changes classes may ask for, besides the classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from duotone.graph.graph import Graph, HalfType
from duotone.precision.classify.classes import Classes
from duotone.precision.classify.profitability import EVERYTHING, Profitability
from duotone.precision.ranges.find import NO_RANGES, Ranges


@dataclasses.dataclass(frozen=True, slots=True)
class Background:
    """A program, and the facts about it.

    Attributes:
        graph: the program.
        half: the half type.
        ranges: the intervals of its values.
        profitability: the operations that gain from half on the device.
        weights: values that are the same at every call, and cast before any call.
    """

    graph: Graph
    half: HalfType
    ranges: Ranges = NO_RANGES
    profitability: Profitability = EVERYTHING
    weights: frozenset[int] = frozenset()


SafetyRule = Callable[[Classes, Background], Classes]
"""Takes classes and returns classes; the same object if it changes nothing."""
