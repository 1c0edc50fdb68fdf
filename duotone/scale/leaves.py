"""Loss scaling of one leaf of a pytree: which leaves it touches, and in which dtype.

A leaf is *inexact* when it is a floating or complex array or Python number. All else (integers,
booleans, float0, PRNG keys, functions, strings) has no magnitude to scale and passes through.
Arithmetic is in float32 at least: a half leaf becomes float32, since the true gradient that
unscaling recovers may be too small for its own half type; float64 stays float64.

Called by ``state`` and ``finite``. Nothing here raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def is_inexact(leaf: Any) -> bool:
    """True if a leaf is a floating or complex array or number."""
    if isinstance(leaf, float | complex):
        return True
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def to_full(tree: Any) -> Any:
    """Casts half leaves to float32; all other leaves stay as they are."""
    return jax.tree.map(lambda leaf: _full_array(leaf) if is_inexact(leaf) else leaf, tree)


def multiply(tree: Any, value: jax.Array) -> Any:
    """Multiplies every inexact leaf by the scalar `value`, in float32 at least."""
    return _combine(lax.mul, tree, value)


def divide(tree: Any, value: jax.Array) -> Any:
    """Divides every inexact leaf by the scalar `value`, in float32 at least.

    A division, not a product with the reciprocal: it is correctly rounded for a value that is no
    power of two as well.
    """
    return _combine(lax.div, tree, value)


def _combine(
    operation: Callable[[jax.Array, jax.Array], jax.Array], tree: Any, value: jax.Array
) -> Any:
    def on_reals(array: jax.Array) -> jax.Array:
        return operation(array, jnp.broadcast_to(value.astype(array.dtype), array.shape))

    def on_leaf(leaf: Any) -> Any:
        if not is_inexact(leaf):
            return leaf
        array = _full_array(leaf)
        if jnp.iscomplexobj(array):
            # By parts: a complex product would make NaN of an infinity in one part (inf * 0).
            return lax.complex(on_reals(array.real), on_reals(array.imag))
        return on_reals(array)

    return jax.tree.map(on_leaf, tree)


def _full_array(leaf: Any) -> jax.Array:
    array = jnp.asarray(leaf)
    return array.astype(jnp.float32) if jnp.finfo(array.dtype).bits < 32 else array
