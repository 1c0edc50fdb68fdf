"""The half type that is faster than float32 on a kind of device, if any.

This is a table, not a benchmark: GPUs by compute capability, TPUs always, CPUs by instruction set.

References:
    NVIDIA, "CUDA C++ Programming Guide", compute capabilities: float16 Tensor Cores from 7.0,
    bfloat16 Tensor Cores from 8.0.
    CPUs: measured, see ``docs/measured.md``, "Half on CPUs".
"""

from __future__ import annotations

import dataclasses
import functools
import platform
from collections.abc import Collection
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class HalfChoice:
    """The half type for a device.

    Attributes:
        dtype: ``"float16"``, ``"bfloat16"``, or ``None`` if half is not faster.
        reason: one sentence, for logs.
    """

    dtype: str | None
    reason: str


FAST_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""CPU flags, as ``/proc/cpuinfo`` names them, with which bfloat16 dots are faster than float32."""


def choose_half(
    backend: str,
    *,
    compute_capability: str = "",
    cpu_flags: Collection[str] = (),
) -> HalfChoice:
    """Chooses a half type.

    Args:
        backend: JAX's platform name: ``"cpu"``, ``"gpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"`` ….
        compute_capability: JAX's name for a GPU's: ``"8.0"`` (NVIDIA) or ``"gfx942"`` (AMD).
        cpu_flags: the flags of a CPU in ``/proc/cpuinfo``.

    Returns:
        The faster half type, or none.

    Example:
        >>> choose_half("gpu", compute_capability="7.5").dtype
        'float16'
    """
    if backend == "tpu":
        return HalfChoice("bfloat16", "TPUs multiply in bfloat16")
    if backend in ("gpu", "cuda", "rocm"):
        return _choose_gpu(compute_capability)
    if backend == "cpu":
        if "bf16" in cpu_flags:
            return HalfChoice(None, "bfloat16 was not measured on this kind of CPU (Arm)")
        if not FAST_CPU_FLAGS & set(cpu_flags):
            return HalfChoice(None, "this CPU has no bfloat16 instructions")
        return HalfChoice("bfloat16", "this CPU has bfloat16 instructions")
    return HalfChoice(None, f"nothing is known of platform {backend!r}")


def _choose_gpu(capability: str) -> HalfChoice:
    if capability.startswith("gfx"):
        if capability.startswith(("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")):
            return HalfChoice("bfloat16", f"AMD {capability} has bfloat16 matrix cores")
        return HalfChoice(None, f"AMD {capability} has no bfloat16 matrix cores")
    try:
        number = tuple(int(part) for part in capability.split("."))
    except ValueError:
        return HalfChoice(None, f"unknown compute capability {capability!r}")
    if number >= (8, 0):
        return HalfChoice("bfloat16", f"compute capability {capability} has bfloat16 Tensor Cores")
    if number >= (7, 0):
        return HalfChoice("float16", f"compute capability {capability} has float16 Tensor Cores")
    return HalfChoice(None, f"compute capability {capability} has no Tensor Cores")


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Returns the flags of this machine's CPU; empty if the system has no ``/proc/cpuinfo``."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.system() != "Linux" or not cpuinfo.exists():
        return frozenset()
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()
