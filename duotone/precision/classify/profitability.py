"""Profitability: the operations that gain from half on a device.

The lists say what half *may* do. A device says what half is *good for*. On a GPU every half
operation moves fewer bytes. On a CPU only large dots gain: casting the operands of a small dot
costs more than the dot, and the CPU computes everything between dots in float32 anyway.

The numbers come from ``duotone/devices/table.py``.
"""

from __future__ import annotations

import dataclasses
import math

from duotone.ops.traits import Traits


@dataclasses.dataclass(frozen=True, slots=True)
class Profitability:
    """The operations that gain from half on a device.

    Attributes:
        device: the device, in words for reasons.
        allow: traits of which an allow operation must have one to gain; ``None`` if all gain.
        min_flops: floating point operations of one execution below which an allow operation
            does not gain, since starting the fast kernel costs more than it saves.
        min_intensity: floating point operations per element of the operands below which it does not
            gain, since casting the operands costs more than it saves.
        shared_casts: the same for a dot that shares casts with other executions, before a loop or
            before any call: per element of the operands, and per element of the shared casts,
            divided by the executions that share them. Operands that are cast each time need
            :attr:`min_intensity`. ``None`` if sharing does not count.
        only_allow: whether only allow operations gain. Then all others stay full, and allow
            operations keep their float32 accumulators.
        window_dots: the FLOP, and FLOP per element of the operands, from which a convolution whose
            windows do not overlap gains, as a dot; ``None`` if none does.
        convolutions: floating point operations from which a convolution whose windows slide over
            the image gains; infinite if none does.
        phases: the same for a convolution of an image with zeros between its elements, without the
            products by zero.
        convolution_intensity: the same per element of the operands and the result.
        missing: what a convolution lacks that would gain with other compiler options, in words.
        float32_sums: whether dots give their float32 sums as fast as half results.
    """

    device: str
    allow: Traits | None = None
    min_flops: float = 0.0
    min_intensity: float = 0.0
    shared_casts: tuple[float, float] | None = None
    only_allow: bool = False
    window_dots: tuple[float, float] | None = None
    convolutions: float = math.inf
    phases: float = math.inf
    convolution_intensity: float = 0.0
    missing: str = ""
    float32_sums: bool = True

    @property
    def gaining(self) -> str:
        """The operations that gain, in words, if only some do."""
        return "large dots" if self.convolutions == math.inf else "large dots and convolutions"

    def without(self, optimizations: frozenset[str]) -> Profitability:
        """Returns the operations that gain if some optimizations are switched off."""
        dots = None if "window_dots" in optimizations else self.window_dots
        least = math.inf if "library_convolutions" in optimizations else self.convolutions
        phases = math.inf if "phases" in optimizations else self.phases
        return dataclasses.replace(self, window_dots=dots, convolutions=least, phases=phases)


EVERYTHING = Profitability("any device")
"""Every operation gains, so nothing is declined."""

NOTHING_GAINS = Profitability("this device", allow=frozenset(), only_allow=True)
"""No operation gains, so everything is declined."""
