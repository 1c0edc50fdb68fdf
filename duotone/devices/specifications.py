"""The devices that duotone knows: their bandwidth and peak FLOP/s, with sources.

``find_target("h200")`` returns a :class:`Target`. All figures are the makers' own, for dense (not
sparse) operands, and for the variant that is most common in servers. Their roofline is a bound that
a real program does not reach; use it to compare programs.

To add a device, add a line to ``TARGETS``, and for a GPU also to :mod:`duotone.devices.gpus`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from duotone.devices.assumed import AssumedDevice
from duotone.errors import ArgumentError, UnknownTargetError, shown
from duotone.graph.graph import HALF_TYPES
from duotone.text.suggestions import did_you_mean

PLATFORMS = ("cuda", "tpu", "cpu")
"""The platforms that duotone compiles for without their devices, and the CPU."""

LAUNCH_SECONDS = 1e-6
"""The launch overhead of one kernel: XLA's own estimate (``kKernelLaunchOverhead`` in
``xla/service/gpu/model/gpu_performance_model_base.h``)."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A device to compile for.

    Attributes:
        name: the name that users write.
        description: the maker's name; JAX's ``device_kind`` if the device is present.
        platform: JAX's platform name: ``"cuda"``, ``"tpu"`` or ``"cpu"``.
        half: the half type that is fast there, ``"float16"`` or ``"bfloat16"``, or ``None``.
        bandwidth: bandwidth of the main memory, bytes per second; 0 if unknown.
        peak: FLOP per second of dots, by operand type: ``f16``, ``bf16``, ``tf32``, ``f32``, ``s8``
            and ``f8``. ``f32`` is the true float32 unit.
        memory: bytes of main memory.
        launch: launch overhead of one kernel, in seconds.
        capability: CUDA compute capability.
        options: compiler options, applied before duotone's own.
        topology: for a TPU, the name of the smallest topology that has the device.
        source: the source of the figures.
        link: bytes per second that one device sends to others of its host or slice, in one
            direction; 0 if unknown.

    Raises:
        ArgumentError: there is no such platform or half type.

    Example:
        >>> import dataclasses
        >>> from duotone.devices import find_target
        >>> options = {"xla_gpu_enable_triton_gemm": False}
        >>> without_triton = dataclasses.replace(find_target("h200"), options=options)
        >>> without_triton.half, without_triton.memory > 140e9
        ('bfloat16', True)
    """

    name: str
    description: str
    platform: str
    half: str | None
    bandwidth: float
    peak: Mapping[str, float]
    memory: float
    launch: float = LAUNCH_SECONDS
    capability: str = ""
    topology: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: str = ""
    link: float = 0.0

    def __post_init__(self) -> None:
        for field, known in (("platform", PLATFORMS), ("half", (*HALF_TYPES, None))):
            if getattr(self, field) not in known:
                raise ArgumentError(
                    f"Target: {field} is {shown(getattr(self, field))}; it takes "
                    f"{', '.join(map(repr, known))}"
                )

    def device(self) -> AssumedDevice:
        """Returns the device to paint for."""
        return AssumedDevice(self.name, self.platform, self.capability)


def _gpu(
    name: str,
    description: str,
    capability: str,
    bandwidth: float,
    memory: float,
    peak: dict[str, float],
    source: str,
    link: float,
) -> Target:
    half = "bfloat16" if "bf16" in peak else "float16"
    tera = {dtype: value * 1e12 for dtype, value in peak.items()}
    return Target(
        name,
        description,
        "cuda",
        half,
        bandwidth * 1e9,
        tera,
        memory * 1e9,
        capability=capability,
        source=source,
        link=link * 1e9,
    )


def _tpu(
    name: str,
    description: str,
    topology: str,
    bandwidth: float,
    memory: float,
    bf16: float,
    s8: float,
    link: float,
) -> Target:
    peak = {"bf16": bf16 * 1e12, "s8": s8 * 1e12, "f32": bf16 * 1e12 / 6}
    source = "Google Cloud documentation, TPU system architecture, page of this version"
    return Target(
        name,
        description,
        "tpu",
        "bfloat16",
        bandwidth * 1e9,
        peak,
        memory * 1e9,
        launch=0.0,
        topology=topology,
        source=source,
        link=link * 1e9,
    )


_HOPPER = {"f16": 989.4, "bf16": 989.4, "tf32": 494.7, "f32": 66.9, "s8": 1978.9, "f8": 1978.9}

TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        _gpu(
            "b200",
            "NVIDIA B200",
            "10.0",
            7700,
            180,
            {"f16": 2250, "bf16": 2250, "tf32": 1100, "f32": 75, "s8": 4500, "f8": 4500},
            "NVIDIA Blackwell data sheet, one GPU of HGX B200, halves of its figures with sparsity",
            900,
        ),
        _gpu("h200", "NVIDIA H200", "9.0", 4800, 141, _HOPPER, "NVIDIA H200 data sheet, SXM", 450),
        _gpu(
            "h100", "NVIDIA H100 80GB HBM3", "9.0", 3350, 80, _HOPPER, "H100 data sheet, SXM", 450
        ),
        _gpu(
            "a100",
            "NVIDIA A100-SXM4-80GB",
            "8.0",
            2039,
            80,
            {"f16": 312, "bf16": 312, "tf32": 156, "f32": 19.5, "s8": 624},
            "NVIDIA A100 data sheet, SXM 80 GB",
            300,
        ),
        _gpu(
            "l4",
            "NVIDIA L4",
            "8.9",
            300,
            24,
            {"f16": 121, "bf16": 121, "tf32": 60, "f32": 30.3, "s8": 242.5, "f8": 242.5},
            "NVIDIA L4 data sheet, halves of its figures with sparsity",
            32,
        ),
        _gpu(
            "l40s",
            "NVIDIA L40S",
            "8.9",
            864,
            48,
            {"f16": 362.05, "bf16": 362.05, "tf32": 183, "f32": 91.6, "s8": 733, "f8": 733},
            "NVIDIA L40S data sheet, figures without sparsity",
            32,
        ),
        _gpu(
            "a10",
            "NVIDIA A10",
            "8.6",
            600,
            24,
            {"f16": 125, "bf16": 125, "tf32": 62.5, "f32": 31.2, "s8": 250},
            "NVIDIA A10 data sheet, figures without sparsity",
            32,
        ),
        _gpu(
            "rtx4090",
            "NVIDIA GeForce RTX 4090",
            "8.9",
            1008,
            24,
            # A GeForce sums float16 and 8-bit products in float32 at half speed.
            {"f16": 165.2, "bf16": 165.2, "tf32": 82.6, "f32": 82.6, "s8": 660.6, "f8": 330.3},
            "NVIDIA Ada GPU Architecture white paper, appendix A: float32 sums, without sparsity",
            32,
        ),
        _gpu(
            "v100",
            "Tesla V100-SXM2-32GB",
            "7.0",
            900,
            32,
            {"f16": 125, "f32": 15.7},
            "NVIDIA V100 data sheet, SXM2",
            150,
        ),
        _gpu(
            "t4",
            "Tesla T4",
            "7.5",
            320,
            16,
            {"f16": 65, "f32": 8.1, "s8": 130},
            "NVIDIA T4 data sheet",
            16,
        ),
        _tpu("v5e", "TPU v5 lite", "v5e:2x2", 819, 16, 197, 394, 200),
        _tpu("v5p", "TPU v5", "v5p:2x2x1", 2765, 95, 459, 918, 600),
        _tpu("v6e", "TPU v6 lite", "v6e:2x2", 1640, 32, 918, 1836, 400),
        Target("cpu", "this machine's CPU", "cpu", None, 0.0, {}, 0.0, launch=0.0),
    )
}


def find_target(name: str | Target) -> Target:
    """Returns the target of a name.

    Args:
        name: a name in upper or lower case, or a target, which is returned.

    Raises:
        UnknownTargetError: there is no such target; the message lists all and the nearest.

    Example:
        >>> from duotone.devices import find_target
        >>> find_target("H200").capability
        '9.0'
    """
    if isinstance(name, Target):
        return name
    found = TARGETS.get(str(name).lower())
    if found is None:
        raise UnknownTargetError(name, list(TARGETS), did_you_mean(str(name), TARGETS))
    return found
