"""The device that a program is painted for, if it is not the local device.

``duotone.compile_for`` traces a function for a device that need not be present. Decisions that
depend on the device (which half type is fast, which form of a dot runs) must then use the target
instead of the CPU that traces. :func:`assuming` sets the target for a ``with`` block, and
:func:`assumed` returns it.

The value is a JAX context, which is part of the key of every ``jit`` cache. So a function that was
traced for the local CPU is traced again for the target, and vice versa.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import jax

from duotone import _jax


@dataclasses.dataclass(frozen=True, slots=True)
class AssumedDevice:
    """The facts on a device that painting for it needs.

    Attributes:
        name: the name of the target, ``"h200"``; for a local device, its kind.
        platform: JAX's platform name: ``"cpu"``, ``"cuda"``, ``"tpu"``.
        compute_capability: the compute capability of a GPU: ``"9.0"``.
        rewrites: whether functions are rewritten for it. False shows a program without duotone.
    """

    name: str
    platform: str
    compute_capability: str = ""
    rewrites: bool = True


@contextlib.contextmanager
def assuming(device: AssumedDevice | None) -> Iterator[None]:
    """Paints for ``device`` inside the block; ``None`` means the local device.

    Args:
        device: hashable and compared by value, since it is part of the key of ``jit`` caches.

    Example:
        >>> with assuming(AssumedDevice("h200", "cuda", "9.0")):
        ...     assumed().platform
        'cuda'
        >>> assumed() is None
        True
    """
    with _jax.assumed_device(device):
        yield


def platform_to_paint_for() -> str:
    """Returns the platform that a trace is for: an assumed device's, else the default's."""
    device = assumed()
    return jax.default_backend() if device is None else device.platform


def assumed() -> AssumedDevice | None:
    """Returns the device to paint for, or ``None`` for JAX's default device."""
    return _jax.assumed_device.value
