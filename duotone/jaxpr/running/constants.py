"""Large constants of a program (arrays that a function closes over), cast once.

Written into the program, the cast of a constant runs at every call: no compiler works out what a
large constant becomes. So it is cast while the function is rewritten, and the program holds the
half alone. The same array in another program, or at another signature, is the same half.

What is small stays an operation of the program, which the compiler works out itself.
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
"""Elements from which on a constant is cast once."""

_HALVES: dict[tuple[int, str, float], tuple[Any, Any]] = {}
"""Weak references to a constant and its half, by what was asked for."""


def is_large_constant(array: Any) -> bool:
    """True if an array is known while the program is traced, and worth casting then.

    False where nothing is to run: while ``explain`` collects, and for a device that is not there.
    """
    return (
        isinstance(array, jax.Array)
        and _jax.is_concrete(array)
        and array.size >= LARGE
        and _jax.assumed_device.value is None
        and collection_now() is None
    )


def constant_in_half(array: Any, half: np.dtype, largest: float) -> Any:
    """A constant in half, cast now, whatever trace is under way.

    Args:
        array: the constant.
        half: the half type.
        largest: finite numbers beyond this are brought to it; infinity for none.
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
