"""Doubts about an estimate: expensive parts that the model of fusion does not know well.

``benchmarks/estimate.py`` compares estimates with compiled programs. If short kernels run in a
loop, the number of launches matters, and it depends on fusion. A compiler pads half products of odd
sizes, sorts in several passes, has several forms of grouped convolutions, and fuses
element-by-element work into dots that wait for memory. If a program spends its time in this way, an
estimate may be half or twice the compiled figure, so duotone gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from duotone.cost.compiled_record import Kernel
from duotone.cost.fused import bits_of
from duotone.cost.roofline import kernel_seconds
from duotone.devices.specifications import Target
from duotone.ops.entries import names_with
from duotone.ops.jax import TRAITS
from duotone.ops.traits import Trait
from duotone.precision.record import CastRecord, OperationRecord

_TILE = 8
"""Matrix units need sizes of half dots that are multiples of this; others are padded in copies."""
_EQUAL = 1.0 + 1e-6
_DOTS = names_with(TRAITS, Trait.EINSUM)
_GROUPED = names_with(TRAITS, Trait.CONVOLVES)
_SORTS = names_with(TRAITS, Trait.SELECTS) - names_with(TRAITS, Trait.EXTREMA)


def _pads(kernel: Kernel, operation: OperationRecord, target: Target) -> bool:
    """Returns True for a batch of half products of sizes that fill no whole tiles."""
    if operation.operation not in _DOTS or len(operation.sizes) != 4 or operation.sizes[0] == 1:
        return False
    half = all(bits_of(dtype) == 16 for dtype in operation.operands[:2])
    return half and any(size % _TILE for size in operation.sizes[1:])


def _waits(kernel: Kernel, operation: OperationRecord, target: Target) -> bool:
    """Returns True for a single product that takes no longer than moving its bytes."""
    alone = operation.operation in _DOTS and operation.sizes[:1] == (1,)
    return (
        alone
        and target.bandwidth > 0
        and kernel.seconds <= kernel_seconds(target, kernel.bytes, 0.0) * _EQUAL
    )


def _is_short(kernel: Kernel, operation: OperationRecord, target: Target) -> bool:
    """Returns True for a kernel in a loop whose launch takes longer than its work."""
    return operation.runs > 1 and 0 < kernel.seconds < 2 * target.launch


def _is_grouped(kernel: Kernel, operation: OperationRecord, target: Target) -> bool:
    return operation.operation in _GROUPED and operation.sizes[:1] not in ((), (1,))


def _sorts(kernel: Kernel, operation: OperationRecord, target: Target) -> bool:
    return operation.operation in _SORTS


_Doubt = Callable[[Kernel, OperationRecord, Target], bool]
_DOUBTS: Mapping[str, tuple[float, _Doubt]] = {
    "short kernels in loops": (0.5, _is_short),
    "sorts": (0.05, _sorts),
    "convolutions in groups": (0.1, _is_grouped),
    "half dots of odd sizes": (0.05, _pads),
    "dots that wait for memory": (0.2, _waits),
}
"""For each reason, the share of the time from which it counts, and the test of its kernels."""


def doubt_about(
    kernels: Iterable[tuple[Kernel, OperationRecord | CastRecord]], target: Target
) -> str:
    """Returns why an estimate may be far off; empty if nothing speaks against it."""
    spent = dict.fromkeys(_DOUBTS, 0.0)
    total = 0.0
    for kernel, named_by in kernels:
        cost = kernel.total_seconds if target.bandwidth else kernel.total_bytes
        total += cost
        if isinstance(named_by, OperationRecord):
            for reason, (_, holds) in _DOUBTS.items():
                spent[reason] += cost * holds(kernel, named_by, target)
    return ", ".join(name for name, (share, _) in _DOUBTS.items() if spent[name] > share * total)
