"""How half is used on a device: the form in which dots are bound, and what is worth rewriting.

A table by kind of device, with measured entries where there are any (:data:`TABLE`); the figures
behind the CPU's are in ``benchmarks/results/cpu_forms_*`` and told in ``docs/architecture.md``,
"Half on CPUs". Two questions, answered apart:

- *How* a painted dot is bound (:attr:`DeviceForms.dots`) follows from the device in every case: a
  form that a backend does not implement fails when it runs.
- *What* is painted (:attr:`DeviceForms.worth`) follows from the device only where duotone chose the
  half type itself (``dtype=None``). Who names a half type gets the same painting everywhere.

Who calls this: ``duotone.road``. Who extends it: whoever has measured another device adds a row.
"""

from __future__ import annotations

import dataclasses

from duotone.graph.casts import Hold
from duotone.graph.factors import Take
from duotone.graph.forms import PLAIN, ROWS, WIDENED
from duotone.graph.lists import Pointwise
from duotone.graph.residuals import KEPT
from duotone.graph.worth import EVERYTHING, Worth
from duotone.targets.assumed import assumed
from duotone.targets.device import FAST_CPU_FLAGS, cpu_flags, default_device
from duotone.targets.math import math_of


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceForms:
    """One row of the table.

    Attributes:
        device: the kind of device.
        dots: the form of dots: ``"plain"``, ``"rows"`` or ``"widened"``.
        worth: what gains from half there.
        source: what the row rests on.
        math: how float32 dots and convolutions calculate, see :mod:`duotone.targets.math`: the name
            of an algorithm or a precision by operation. Not of the device alone: filled in by
            :func:`current_forms`.
        holds: which half values are read where they are in memory. On a CPU it gains nothing, and
            keeps the compiler from dropping the rounding. On a TPU dots calculate their operands
            themselves, and would have to have most of them written instead.
        factors: of which sums that is multiplied afterwards which all terms have in common.
        finishes: whether the kernel of a dot calculates on with its float32 sums, up to what is
            stored (:mod:`duotone.graph.trilinear`).
        kept: the operations whose results the compiler keeps for the backward pass, though they
            follow from what is in memory. A TPU's calculates nearly all of them again.
        picks: whether what a gather picks from must be in memory. On a GPU gathers calculate it
            themselves.
        joins: whether convolutions add what is added to their results themselves, if it is half. On
            TPUs they do whatever its type.
    """

    device: str
    dots: str
    worth: Worth
    source: str
    math: tuple[tuple[str, str], ...] = ()
    holds: Hold = Hold.NOTHING
    factors: Take = Take.NOTHING
    finishes: bool = False
    kept: frozenset[Pointwise] = KEPT
    picks: bool = False
    joins: bool = False


_CPU_BFLOAT16 = "CPU with bfloat16 instructions"
TABLE = {
    "gpu": DeviceForms(
        "GPU",
        PLAIN,
        EVERYTHING,
        "compiled programs (benchmarks/painter.py): half moves fewer bytes in every kernel; times "
        "of small dots were not measured, so none is declined",
        holds=Hold.WIDENED,
        factors=Take.ALL,
        joins=True,
    ),
    "tpu": DeviceForms(
        "TPU",
        PLAIN,
        EVERYTHING,
        "compiled programs (benchmarks/painter.py)",
        holds=Hold.PARTS,
        factors=Take.PASSING,
        finishes=True,
        kept=frozenset({Pointwise.DEAREST}),
        picks=True,
    ),
    "cpu-bfloat16": DeviceForms(
        _CPU_BFLOAT16,
        ROWS,
        Worth(
            _CPU_BFLOAT16,
            allow=frozenset({"dot_general"}),
            min_flops=4e6,
            min_intensity=64.0,
            only_allow=True,
        ),
        "measured with jaxlib 0.10.2 and 0.12.0 on AVX512-BF16 (benchmarks/cpu_forms.py)",
    ),
    "cpu": DeviceForms(
        "CPU",
        WIDENED,
        EVERYTHING,
        "no bfloat16 instructions: the backend would calculate in float32 or fail",
    ),
    "cpu-float16": DeviceForms(
        "CPU",
        PLAIN,
        EVERYTHING,
        "the backend calculates in float32, whatever the layout (benchmarks/cpu_forms.py)",
    ),
    "other": DeviceForms("other device", PLAIN, EVERYTHING, "nothing is known"),
}
"""By kind of device."""


def forms_of(platform: str, half: str, flags: frozenset[str] = frozenset()) -> DeviceForms:
    """The row for a device.

    Args:
        platform: JAX's platform name: ``"cpu"``, ``"gpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"`` ….
        half: name of the half type.
        flags: of a CPU, as ``/proc/cpuinfo`` names them.

    Returns:
        How half is used there.

    Example:
        >>> forms_of("cpu", "bfloat16", frozenset({"avx512_bf16"})).dots
        'rows'
    """
    if platform in ("gpu", "cuda", "rocm"):
        return TABLE["gpu"]
    if platform == "tpu":
        return TABLE["tpu"]
    if platform != "cpu":
        return TABLE["other"]
    if half == "float16":
        return TABLE["cpu-float16"]
    return TABLE["cpu-bfloat16" if FAST_CPU_FLAGS & flags else "cpu"]


def current_forms(
    half: str,
    *,
    declines: bool = False,
    float32_math: str | None = None,
    convolution_math: str | None = None,
) -> DeviceForms:
    """The row for the assumed device, or for JAX's default device if none is assumed.

    Args:
        half: name of the half type.
        declines: whether what does not gain there is to stay as it is; else everything is worth
            painting.
        float32_math: of the policy.
        convolution_math: likewise.
    """
    device = assumed() or default_device()
    platform = device.platform
    found = forms_of(platform, half, cpu_flags() if platform == "cpu" else frozenset())
    if not declines:
        found = dataclasses.replace(found, worth=EVERYTHING)
    if float32_math is None and convolution_math is None:
        return found
    capability = str(getattr(device, "compute_capability", ""))
    math = math_of(platform, capability, float32_math, convolution_math)
    return dataclasses.replace(found, math=math)
