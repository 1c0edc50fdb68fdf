"""Devices: the half type for the devices of a running TensorFlow."""

from __future__ import annotations

from typing import Any

from duotone.devices.half_choice import HalfChoice, choose_half, cpu_flags
from duotone.tensorflow.devices import OLDEST_FAST_CAPABILITY


def choose_for(tf: Any) -> HalfChoice:
    """Chooses the half type that is fast where TensorFlow runs.

    On GPUs this is float16, as in TensorFlow's own pass, since TensorFlow has float16 kernels for
    them.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return choose_half("cpu", cpu_flags=cpu_flags())
    details = tf.config.experimental.get_device_details(gpus[0])
    capability = details.get("compute_capability", (0, 0))
    shown = ".".join(map(str, capability))
    if tuple(capability) >= OLDEST_FAST_CAPABILITY:
        return HalfChoice("float16", f"compute capability {shown} has float16 Tensor Cores")
    return HalfChoice(None, f"compute capability {shown} has no Tensor Cores")
