"""Devices: which half type is faster there, and what a program costs on one that is not here."""

from duotone.devices.assumed import AssumedDevice, assumed, assuming
from duotone.devices.half_type import HalfChoice, choose_half, current_choice
from duotone.devices.specifications import TARGETS, Target, find_target

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
