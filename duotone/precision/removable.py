"""The names that a policy can switch off: optimizations, and the rules of stages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from duotone.precision.optimize.optimizations import OPTIMIZATIONS
from duotone.precision.painters.dominant import STEPS
from duotone.precision.rules import Rule
from duotone.precision.safety.safety_rules import SAFETY_RULES

BACKWARD = "backward"
"""The switch for painting a function's passes together, which is not an operation's rule."""

REMOVABLE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rules_remove": (*(rule.value for rule in (*SAFETY_RULES, *STEPS, Rule.CUT)), BACKWARD),
        "optimizations_remove": tuple(OPTIMIZATIONS),
    }
)
"""The names by the field of a policy that removes them."""
