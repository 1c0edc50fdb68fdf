"""Devices: which half type is faster there, and what a program costs on one that is not here.

Modules that need JAX are imported on first use, since TensorFlow users may not have it installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from duotone.devices.half_choice import HalfChoice, choose_half

if TYPE_CHECKING:
    from duotone.devices.assumed import AssumedDevice, assuming
    from duotone.devices.half_type import current_choice
    from duotone.devices.specifications import TARGETS, Target, find_target

__all__ = [
    "TARGETS",
    "AssumedDevice",
    "HalfChoice",
    "Target",
    "assuming",
    "choose_half",
    "current_choice",
    "find_target",
]
_HOMES = {
    "TARGETS": "specifications",
    "AssumedDevice": "assumed",
    "Target": "specifications",
    "assuming": "assumed",
    "current_choice": "half_type",
    "find_target": "specifications",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
