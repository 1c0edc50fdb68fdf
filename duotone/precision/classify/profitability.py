"""Profitability: what gains from half on a device.

The lists say what half *may* do; a device says what half is *good for*. On a GPU everything that is
half moves fewer bytes. On a CPU only large dots gain: casting the operands of a small one costs
more than the dot, and everything between dots is calculated in float32 anyway.

The figures come from ``duotone/devices/table.py``.
"""

from __future__ import annotations

import dataclasses

from duotone.ops.traits import Traits


@dataclasses.dataclass(frozen=True, slots=True)
class Profitability:
    """The operations that gain from half on a device.

    Attributes:
        device: in words, for reasons.
        allow: traits of which an allow operation must have one to gain; ``None`` if all gain.
        min_flops: floating point operations of one execution below which an allow operation does
            not gain: starting the fast kernel costs more than it saves.
        min_intensity: floating point operations for each element of the operands below which it
            does not gain: casting the operands costs more than it saves.
        window_dots: of other operations, convolutions whose windows tile the image gain too, being
            dots.
        only_allow: nothing but allow operations gains: all else stays full, and allow operations
            hand on their float32 accumulators.
    """

    device: str
    allow: Traits | None = None
    min_flops: float = 0.0
    min_intensity: float = 0.0
    only_allow: bool = False
    window_dots: bool = False

    def without(self, optimizations: frozenset[str]) -> Profitability:
        """The operations that gain where some optimizations are switched off."""
        kept = self.window_dots and "window_dots" not in optimizations
        return dataclasses.replace(self, window_dots=kept)


EVERYTHING = Profitability("any device")
"""Nothing is declined."""

NOTHING_GAINS = Profitability("this device", allow=frozenset(), only_allow=True)
"""Everything is declined."""
