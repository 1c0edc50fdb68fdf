"""Background: what a stage that amends classes may ask beside the classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from duotone.graph.graph import Graph, HalfType
from duotone.precision.classify.classes import Classes
from duotone.precision.classify.profitability import EVERYTHING, Profitability
from duotone.precision.ranges.find import NO_RANGES, Ranges


@dataclasses.dataclass(frozen=True, slots=True)
class Background:
    """A program, and what is known of it.

    Attributes:
        graph: the program.
        half: the half type.
        ranges: of its values.
        profitability: what gains from half on the device.
    """

    graph: Graph
    half: HalfType
    ranges: Ranges = NO_RANGES
    profitability: Profitability = EVERYTHING


SafetyRule = Callable[[Classes, Background], Classes]
"""From classes to classes; the same ones where nothing is to be changed."""
