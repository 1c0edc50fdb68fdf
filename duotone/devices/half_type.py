"""The half type for JAX's default device, which duotone uses if the user names no dtype."""

from __future__ import annotations

from typing import Any

import jax

from duotone.devices.assumed import assumed
from duotone.devices.half_choice import HalfChoice, choose_half, cpu_flags


def default_device() -> Any:
    """Returns JAX's default device."""
    default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(default, str):
        return jax.local_devices(backend=default)[0]
    return default if isinstance(default, jax.Device) else jax.local_devices()[0]


def device_in_words() -> str:
    """Returns the platform and kind of the assumed device, or of JAX's default device.

    Example:
        >>> from duotone.devices.assumed import AssumedDevice, assuming
        >>> with assuming(AssumedDevice("h200", "cuda", "9.0")):
        ...     device_in_words()
        'cuda (h200)'
    """
    device = assumed()
    name = default_device().device_kind if device is None else device.name
    platform = (device or default_device()).platform
    return platform if name == platform else f"{platform} ({name})"


def saves_no_time(half: str) -> str:
    """Returns why a half type is not faster than float32 on the current device; empty if it is.

    Example:
        >>> from duotone.devices.assumed import AssumedDevice, assuming
        >>> with assuming(AssumedDevice("p100", "cuda", "6.0")):
        ...     saves_no_time("float16")
        'compute capability 6.0 has no Tensor Cores'
    """
    choice = current_choice()
    if choice.dtype is None:
        return choice.reason
    on_cpu = (assumed() or default_device()).platform == "cpu"
    return "CPUs compute float16 in float32" if on_cpu and half == "float16" else ""


def current_choice() -> HalfChoice:
    """Returns the choice for the assumed device, or for JAX's default device if none is assumed."""
    if (painted_for := assumed()) is not None:
        return choose_half(
            painted_for.platform,
            compute_capability=painted_for.compute_capability,
            cpu_flags=cpu_flags(),
        )
    device = default_device()
    return choose_half(
        device.platform,
        compute_capability=str(getattr(device, "compute_capability", "")),
        cpu_flags=cpu_flags(),
    )
