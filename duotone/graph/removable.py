"""The names that a policy can switch off: reforms, and the rules of stages.

Who calls this: the policy and the environment check names with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from duotone.graph.classify.amendments import AMENDMENTS
from duotone.graph.classify.rules import Rule
from duotone.graph.painters.dominant import STEPS
from duotone.graph.reforms.registry import REFORMS

BACKWARD = "backward"
"""No rule of an operation: the backward pass of a function is painted with its forward pass."""

REMOVABLE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rules_remove": (*(rule.value for rule in (*AMENDMENTS, *STEPS, Rule.CUT)), BACKWARD),
        "reforms_remove": tuple(REFORMS),
    }
)
"""By field of a policy."""
