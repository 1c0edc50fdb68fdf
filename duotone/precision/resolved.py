"""A policy as one program's stages take it: plain data, made once by ``policy/resolve.py``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from duotone.graph.graph import HalfType
from duotone.precision.classify.classes import Pins
from duotone.precision.classify.lists import OpLists
from duotone.precision.classify.profitability import EVERYTHING, Profitability
from duotone.precision.ranges.interval import Interval
from duotone.precision.ranges.measurements import Measurements
from duotone.precision.rules import Rule
from duotone.precision.safety.safety_rules import OF_ANY_PAINTER, SAFETY_RULES


@dataclasses.dataclass(frozen=True, slots=True)
class Resolved:
    """The decisions of a user for one half type and device.

    Attributes:
        half: the half type.
        lists: the lists for it, with the user's edits and level.
        pins: name patterns whose operations the user keeps in one precision.
        painter: its name.
        level: TensorFlow's optimization level, or ``None``.
        rules_off: names of the rules that are switched off.
        optimizations: names of the optimizations in effect.
        profitability: the operations that gain from half on the device.
        ranges: name patterns and the intervals that the user states for them.
        measurements: the measurements of this program, or of several that may include it.
        reduce_dtype: the dtype in which devices add up gradients; ``None`` for the painting's.
        log_path: the folder for the graphs before and after, or ``None``.
        log_decisions: whether each decision is logged.
    """

    half: HalfType
    lists: OpLists
    pins: Pins
    painter: str = "duotone"
    level: str | None = None
    rules_off: frozenset[str] = frozenset()
    optimizations: frozenset[str] = frozenset()
    profitability: Profitability = EVERYTHING
    ranges: tuple[tuple[str, Interval], ...] = ()
    measurements: Measurements | tuple[Measurements, ...] | None = None
    reduce_dtype: str | None = None
    log_path: Path | None = None
    log_decisions: bool = False

    @property
    def by_rules(self) -> bool:
        """True if duotone's rules decide, not TensorFlow's painter, a level or the minimum cut."""
        return self.painter == "duotone" and self.level is None

    @property
    def safety_rules(self) -> tuple[Rule, ...]:
        """The safety rules in effect, in order: all under duotone's rules, else those of any."""
        return tuple(
            rule
            for rule in SAFETY_RULES
            if (self.by_rules or rule in OF_ANY_PAINTER) and rule not in self.rules_off
        )

    @property
    def force_all(self) -> bool:
        """True if every operation that can be half is."""
        return self.level == "UNSAFE_FORCE_ALL"

    @property
    def knows_values(self) -> bool:
        """True if the user stated ranges or measured values."""
        return bool(self.ranges) or self.measurements is not None
