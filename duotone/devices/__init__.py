"""Devices: which half type is faster there, and what a program costs on one that is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duotone.devices.assumed import AssumedDevice, assumed, assuming
from duotone.devices.half_choice import HalfChoice, choose_half
from duotone.devices.specifications import TARGETS, Target, find_target

if TYPE_CHECKING:
    from duotone.devices.half_type import current_choice

__all__ = [
    "TARGETS",
    "AssumedDevice",
    "HalfChoice",
    "Target",
    "assumed",
    "assuming",
    "choose_half",
    "current_choice",
    "find_target",
]


def __getattr__(name: str) -> Any:
    """Imports what needs JAX when it is asked for: programs in TensorFlow may not have it."""
    if name != "current_choice":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from duotone.devices.half_type import current_choice

    return current_choice
