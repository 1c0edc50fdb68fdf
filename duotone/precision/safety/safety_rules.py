"""Safety rules: the stages that change classes for more than the name of an operation.

Each one has the signature :data:`SafetyRule` and denies under one rule. They run in the order of
:data:`SAFETY_RULES`, each on the classes that the one before returned. To add one, write a module
with such a function, and add a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from duotone.precision.classify.declining import decline
from duotone.precision.context import SafetyRule
from duotone.precision.ranges.refine import deny_out_of_range, keep_digits, store_in_half
from duotone.precision.rules import Rule
from duotone.precision.safety.carries import keep_carries
from duotone.precision.safety.distances import keep_distances
from duotone.precision.safety.iterations import keep_iterations
from duotone.precision.safety.log_powers import keep_log_powers
from duotone.precision.safety.positions import keep_positions
from duotone.precision.safety.quotients import keep_quotients
from duotone.precision.safety.repeats import keep_repeated
from duotone.precision.safety.segments import keep_long_segments
from duotone.precision.safety.solves import keep_solves

SAFETY_RULES: Mapping[Rule, SafetyRule] = MappingProxyType(
    {
        Rule.ITERATION: keep_iterations,
        Rule.SOLVE: keep_solves,
        Rule.DISTANCE: keep_distances,
        Rule.CARRY: keep_carries,
        Rule.POSITION: keep_positions,
        Rule.SEGMENT: keep_long_segments,
        Rule.LOG_POWER: keep_log_powers,
        Rule.QUOTIENT: keep_quotients,
        Rule.OVERFLOW: deny_out_of_range,
        Rule.RANGE: store_in_half,
        Rule.CANCELLATION: keep_digits,
        Rule.REPEATED: keep_repeated,
        Rule.DEVICE: decline,
    }
)
"""The stages by rule, in order: keep_solves also treats the loops that keep_iterations denied."""

OF_ANY_PAINTER = frozenset({Rule.OVERFLOW, Rule.DEVICE})
"""Rules that also hold for TensorFlow's painter: the user's ranges, and the gains of a device."""
