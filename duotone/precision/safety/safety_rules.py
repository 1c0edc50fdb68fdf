"""Safety rules: the stages that change classes for more than the name of an operation.

Each has one signature, :data:`SafetyRule`, and one rule under which it denies; they run in the
order of :data:`SAFETY_RULES`, each on what those before gave. To add one: a module with such a
function, and a line here.
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
from duotone.precision.safety.positions import keep_places
from duotone.precision.safety.solves import keep_solves

SAFETY_RULES: Mapping[Rule, SafetyRule] = MappingProxyType(
    {
        Rule.ITERATION: keep_iterations,
        Rule.SOLVE: keep_solves,
        Rule.DISTANCE: keep_distances,
        Rule.CARRY: keep_carries,
        Rule.POSITION: keep_places,
        Rule.LOG_POWER: keep_log_powers,
        Rule.OVERFLOW: deny_out_of_range,
        Rule.RANGE: store_in_half,
        Rule.CANCELLATION: keep_digits,
        Rule.DEVICE: decline,
    }
)
"""By rule, in order: keep_iterations says for keep_solves what else solves."""

OF_ANY_PAINTER = frozenset({Rule.OVERFLOW, Rule.DEVICE})
"""Rules that hold for TensorFlow's painter too: the user's ranges, and what a device gains from."""
