"""How each device uses half: the form in which dots are bound, and which operations gain from it.

:data:`TABLE` has a row for each kind of device. The figures for CPUs were measured: see
``benchmarks/results/cpu_forms_*`` and "Half on CPUs" in ``docs/measured.md``. A row answers two
questions:

- *How* a painted dot is bound (:attr:`DeviceForms.dots`) always depends on the device: a form that
  a backend does not implement fails when it runs.
- *What* is painted (:attr:`DeviceForms.profitability`) depends on the device only if duotone chose
  the half type (``dtype=None``). If the user names a half type, the painting is the same on every
  device.

To add a device, measure it and add a row.
"""

from __future__ import annotations

import dataclasses

from duotone.devices.assumed import assumed
from duotone.devices.float32_math import math_of
from duotone.devices.half_choice import FAST_CPU_FLAGS, cpu_flags
from duotone.devices.half_type import default_device
from duotone.graph.forms import PLAIN, ROWS, WIDENED
from duotone.ops.traits import Trait
from duotone.precision.classify.profitability import EVERYTHING, Profitability
from duotone.precision.optimize.optimizations import BY_NAME


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceForms:
    """One row of the table.

    Attributes:
        device: the kind of device.
        dots: the form of dots: ``"plain"``, ``"rows"`` or ``"widened"``.
        profitability: the operations that gain from half there.
        source: the measurements or facts for the row.
        math: by operation, the name of the algorithm or precision of float32 dots and convolutions,
            see :mod:`duotone.devices.float32_math`. It also depends on the policy, so
            :func:`current_forms` fills it in.
        optimizations: the names of the optimizations that the device uses, see
            :mod:`duotone.precision.optimize`.
        options: whether the row is of programs compiled with :func:`duotone.compiler_options`.
    """

    device: str
    dots: str
    profitability: Profitability
    source: str
    math: tuple[tuple[str, str], ...] = ()
    optimizations: frozenset[str] = frozenset()
    options: bool = False


def _names(text: str) -> frozenset[str]:
    """Returns names of optimizations; raises ``KeyError`` if one is not in the registry."""
    return frozenset(BY_NAME[name].name for name in text.split())


_EVERYWHERE = _names("one_hot weight_gradients")
"""Optimizations from which every device gains."""
_PLAIN = _EVERYWHERE | _names("dot_orders loop_sums")
"""For devices that accept every dot layout."""
_GPU = _PLAIN | _names(
    "recompute normalized_softmax materialize_widened factors transposed_convolutions "
    "dilated_filters dilated_gradients"
)
"""For compilers whose kernels end at each dot, and give convolutions to cuDNN."""
_CPU = _names("recompute normalized_softmax rounded_once")
"""For a compiler that does not recompute transcendental functions, and that removes the rounding of
values that are read at once. Materializing values gains nothing there, and would prevent both."""
_XLA_CPU = _CPU | _names("channelwise_sums padded_images pooling")
"""For XLA's CPU backend, which has no fast kernel for some operations, in float32 either."""
_AMPERE, _BLACKWELL = 8, 10
"""The major compute capabilities of these architectures."""
_CPU_BFLOAT16 = "CPU with bfloat16 instructions"
_MISSING = " without duotone.compiler_options()"
_WITH_OPTIONS = Profitability(
    f"{_CPU_BFLOAT16} and duotone.compiler_options()",
    allow=frozenset({Trait.WIDE}),
    min_flops=1e8,
    min_intensity=100.0,
    only_allow=True,
    window_dots=(4e6, 64.0),
    convolutions=4e6,
    phases=5e7,
    convolution_intensity=150.0,
    float32_sums=False,
)
"""With :func:`duotone.compiler_options` convolutions gain, dots with float32 results run in
float32, and small dots gain less."""
TABLE = {
    "gpu": DeviceForms(
        "GPU",
        PLAIN,
        EVERYTHING,
        "compiled programs (benchmarks/painter.py): half moves fewer bytes in every kernel; times "
        "of small dots were not measured, so none is declined",
        optimizations=_GPU | _names("free_scales row_statistics materialize_rows"),
    ),
    "gpu-blackwell": DeviceForms(
        "GPU, Blackwell",
        PLAIN,
        EVERYTHING,
        "compiled programs for a B200, in which recomputed statistics moved more bytes",
        optimizations=_GPU | _names("free_scales materialize_rows"),
    ),
    "gpu-other": DeviceForms(
        "GPU, before Ampere or not NVIDIA's",
        PLAIN,
        EVERYTHING,
        "compiled programs for a V100 and a T4, which have no kernels of whole rows",
        optimizations=_GPU,
    ),
    "tpu": DeviceForms(
        "TPU",
        PLAIN,
        EVERYTHING,
        "compiled programs (benchmarks/painter.py)",
        # XLA fuses the producers of operands into dots and convolutions, and the readers of a dot's
        # float32 sums into its kernel. A gather's operand must be in memory.
        optimizations=_PLAIN
        | _names("recompute_very_expensive materialize_parts passing_factors trilinear picks"),
    ),
    "cpu-bfloat16": DeviceForms(
        _CPU_BFLOAT16,
        ROWS,
        Profitability(
            _CPU_BFLOAT16,
            allow=frozenset({Trait.WIDE}),
            min_flops=4e6,
            min_intensity=64.0,
            shared_casts=(24.0, 600.0),
            only_allow=True,
            window_dots=(4e6, 64.0),
        ),
        "measured with jaxlib 0.10.2 and 0.12.0 on AVX512-BF16 (benchmarks/cpu_forms.py)",
        optimizations=_EVERYWHERE | _XLA_CPU | _names("swapped_rows window_dots"),
    ),
    "cpu-bfloat16-options": DeviceForms(
        _CPU_BFLOAT16,
        PLAIN,
        _WITH_OPTIONS,
        "measured with jaxlib 0.12.0 on AVX512-BF16, AMD (benchmarks/cpu_forms.py)",
        optimizations=_names("one_hot window_dots library_convolutions phases") | _XLA_CPU,
        options=True,
    ),
    "cpu-amx-options": DeviceForms(
        _CPU_BFLOAT16,
        PLAIN,
        _WITH_OPTIONS,
        "convolutions measured with jaxlib 0.12.0 on AMX; the limits are those of AVX512-BF16",
        optimizations=_names("one_hot window_dots library_convolutions phases") | _XLA_CPU,
        options=True,
    ),
    "cpu": DeviceForms(
        "CPU",
        WIDENED,
        EVERYTHING,
        "no bfloat16 instructions: the backend would compute in float32 or fail",
        optimizations=_EVERYWHERE | _XLA_CPU,
    ),
    "cpu-float16": DeviceForms(
        "CPU",
        PLAIN,
        EVERYTHING,
        "the backend computes in float32, whatever the layout (benchmarks/cpu_forms.py)",
        optimizations=_PLAIN | _XLA_CPU,
    ),
    "other": DeviceForms(
        "other device",
        PLAIN,
        EVERYTHING,
        "nothing is known",
        optimizations=_PLAIN | _CPU,
    ),
}
"""By kind of device."""


def forms_of(
    platform: str,
    half: str,
    flags: frozenset[str] = frozenset(),
    capability: str = "",
    options: bool = False,
) -> DeviceForms:
    """Returns the row for a device.

    Args:
        platform: JAX's platform name: ``"cpu"``, ``"gpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"`` ….
        half: name of the half type.
        flags: the flags of a CPU in ``/proc/cpuinfo``.
        capability: the compute capability of a GPU: ``"9.0"``; empty means an NVIDIA GPU from
            Ampere to Hopper.
        options: whether the program is compiled with :func:`duotone.compiler_options`.

    Returns:
        The row for the device.

    Example:
        >>> forms_of("cpu", "bfloat16", frozenset({"avx512_bf16"})).dots
        'rows'
    """
    if platform in ("gpu", "cuda", "rocm"):
        return TABLE[_gpu(platform, capability)]
    if platform == "tpu":
        return TABLE["tpu"]
    if platform != "cpu":
        return TABLE["other"]
    if half == "float16":
        return TABLE["cpu-float16"]
    if not FAST_CPU_FLAGS & flags:
        return TABLE["cpu"]
    if options:
        return TABLE["cpu-amx-options" if "amx_bf16" in flags else "cpu-bfloat16-options"]
    return TABLE["cpu-bfloat16"]


def _gpu(platform: str, capability: str) -> str:
    major = capability.partition(".")[0]
    if platform == "rocm" or (major and not major.isdigit()) or int(major or 8) < _AMPERE:
        return "gpu-other"
    return "gpu" if int(major or 8) < _BLACKWELL else "gpu-blackwell"


def current_forms(
    half: str,
    *,
    declines: bool = False,
    float32_math: str | None = None,
    convolution_math: str | None = None,
    options: bool | None = False,
) -> DeviceForms:
    """Returns the row for the assumed device, or for JAX's default device if none is assumed.

    Args:
        half: name of the half type.
        declines: whether operations that do not gain on the device stay full; else all operations
            may be painted.
        float32_math: ``Policy.float32_math``.
        convolution_math: ``Policy.convolution_math``.
        options: whether the program is compiled with :func:`duotone.compiler_options`; ``None`` if
            only a ``jit`` of the user lacks them, so that what would gain is named.
    """
    device = assumed() or default_device()
    platform = device.platform
    capability = str(getattr(device, "compute_capability", ""))
    flags = cpu_flags() if platform == "cpu" else frozenset[str]()
    found = forms_of(platform, half, flags, capability, bool(options))
    if not declines:
        found = dataclasses.replace(found, profitability=EVERYTHING)
    elif options is None and found is TABLE["cpu-bfloat16"]:
        lacks = dataclasses.replace(found.profitability, missing=_MISSING)
        found = dataclasses.replace(found, profitability=lacks)
    if float32_math is None and convolution_math is None:
        return found
    math = math_of(platform, capability, float32_math, convolution_math)
    return dataclasses.replace(found, math=math)
