"""The device that a program is painted for, where it is not the one at hand.

``duotone.compile_for`` traces a function for a device that need not be present. What asks "which
device?" on the way (which half type is fast, which form of a dot runs) must then hear of that
device and not of the CPU that traces. :func:`assuming` says so for the time of a ``with`` block,
:func:`assumed` is the answer.

The value lives in a context of JAX's own, which is part of the key of every ``jit`` cache: a
function that was traced for the CPU at hand is traced again for the target, and the other way
round.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from duotone import _jax


@dataclasses.dataclass(frozen=True, slots=True)
class AssumedDevice:
    """The facts on a device that painting for it needs.

    Attributes:
        name: of the target, ``"h200"``; of a device at hand, its kind.
        platform: JAX's platform name: ``"cpu"``, ``"cuda"``, ``"tpu"``.
        compute_capability: of a GPU: ``"9.0"``.
        rewrites: whether functions are rewritten for it; if not, an autocast function runs as it
            was written. For who asks what a program is without duotone.
    """

    name: str
    platform: str
    compute_capability: str = ""
    rewrites: bool = True


@contextlib.contextmanager
def assuming(device: AssumedDevice | None) -> Iterator[None]:
    """Paints for ``device`` inside the block; ``None`` stands for the device at hand.

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


def assumed() -> AssumedDevice | None:
    """The device to paint for, or ``None`` for JAX's default device."""
    return _jax.assumed_device.value
