"""Devices: which half type is faster there."""

from duotone.targets.device import HalfChoice, choose_half, current_choice

__all__ = ["HalfChoice", "choose_half", "current_choice"]
