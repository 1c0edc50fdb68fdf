"""Large constants of a program (arrays that a function closes over), cast once.

If the cast of a large constant were part of the program, it would run at every call: no compiler
folds it. So duotone casts the constant while it rewrites the function, and the program contains
only the half array. Other programs and other signatures reuse the same half array.

The cast of a small constant stays in the program, and the compiler folds it.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from duotone import _jax
from duotone.jaxpr.running.inside import collection_now

LARGE = 2**16
"""A constant with at least this many elements is cast once."""

_HALVES: dict[tuple[int, str, float], tuple[Any, Any]] = {}
"""Weak references to a constant and its half array, by (id, half type, largest number)."""


def is_large_constant(array: Any) -> bool:
    """Checks if an array is concrete while the program is traced, and large enough to cast then.

    Nothing may run while ``explain`` collects, or for a device that is not present.
    """
    return (
        isinstance(array, jax.Array)
        and _jax.is_concrete(array)
        and array.size >= LARGE
        and _jax.assumed_device.value is None
        and collection_now() is None
    )


def constant_in_half(array: Any, half: np.dtype, largest: float) -> Any:
    """Returns a constant in half, cast now, outside of any current trace.

    Args:
        array: the constant.
        half: the half type.
        largest: finite numbers beyond this are clipped to it; infinity clips none.
    """
    key = (id(array), half.name, largest)
    known = _HALVES.get(key)
    if known is not None and known[0]() is array and (made := known[1]()) is not None:
        return made
    with _jax.outside_of_traces():
        finite = array
        if largest < np.inf:
            finite = jnp.where(jnp.isfinite(array), jnp.clip(array, -largest, largest), array)
        made = _jax.convert(finite, half)
        if made.sharding != array.sharding:
            made = jax.device_put(made, array.sharding)
    _HALVES[key] = (weakref.ref(array, lambda _: _HALVES.pop(key, None)), weakref.ref(made))
    return made
