"""The roofline of a device: the least time of a kernel, and its bottleneck.

::

    seconds = max(bytes / bandwidth, sum over dots of flops / peak of their type,
                  bytes sent to other devices / link) + launch
"""

from __future__ import annotations

from collections.abc import Iterable

from duotone.cost.compiled_record import Kernel
from duotone.devices.specifications import Target

DOTS, BANDWIDTH, LINKS, LAUNCHES = "dots", "bandwidth", "links", "launches"
"""The bottlenecks of a kernel."""
_EQUAL = 1e-6
"""The relative difference below which times count as equal, since a kernel's bytes are rounded."""


def peak_of(target: Target, math: str) -> float:
    """Returns the FLOP/s of dots.

    Args:
        target: the device.
        math: the type in which products are computed: ``f16``, ``tf32``, ``f8e4m3fn`` …;
            ``"default"`` for float32 operands for which the program names no precision: by default
            JAX computes their products in TF32, on TPUs in bfloat16.

    Example:
        >>> from duotone.devices.specifications import find_target
        >>> peak_of(find_target("a100"), "default") / 1e12
        156.0
    """
    if math == "default":
        math = "bf16" if target.platform == "tpu" else "tf32"
    elif math.startswith("f8"):
        math = "f8"
    return target.peak.get(math, target.peak["f32"])


def kernel_seconds(target: Target, moved: float, computing: float, sent: float = 0.0) -> float:
    """Returns the seconds of one run of a kernel; 0 if the device's speed is not known.

    Bytes are moved and sent; ``computing`` are the seconds of its dots at the peak of their type.
    """
    if not target.bandwidth:
        return 0.0
    return max(moved / target.bandwidth, computing, _sending(target, sent)) + target.launch


def _sending(target: Target, sent: float) -> float:
    """Returns the seconds in which bytes are sent; 0 if the speed of the links is not known."""
    return sent / target.link if target.link else 0.0


def time_by(kernels: Iterable[Kernel], target: Target) -> dict[str, float]:
    """Returns the shares of a program's seconds: launches, and the bottlenecks of the rest.

    Returns:
        Shares of the whole, 0 to 1, by :data:`DOTS`, :data:`BANDWIDTH`, :data:`LINKS` (if devices
        send anything) and :data:`LAUNCHES`; empty if the device's speed is not known.
    """
    spent = {DOTS: 0.0, BANDWIDTH: 0.0, LAUNCHES: 0.0}
    if not target.bandwidth:
        return {}
    for kernel in kernels:
        launching = target.launch * kernel.runs
        working = kernel.total_seconds - launching
        moving = kernel.total_bytes / target.bandwidth
        spent[LAUNCHES] += launching
        sending = _sending(target, kernel.sent * kernel.runs)
        if working <= moving * (1 + _EQUAL):
            spent[BANDWIDTH] += working
        elif working <= sending * (1 + _EQUAL):
            spent[LINKS] = spent.get(LINKS, 0.0) + working
        else:
            spent[DOTS] += working
    total = sum(spent.values())
    return {name: seconds / total for name, seconds in spent.items()} if total else {}
