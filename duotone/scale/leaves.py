"""Loss scaling of one leaf of a pytree: which leaves change, and in which dtype.

A leaf is *inexact* if it is a floating or complex array or Python number. All other leaves
(integers, booleans, float0, PRNG keys, functions, strings) pass through. Arithmetic is in float32
at least: a half leaf becomes float32, because the true gradient may be too small for its half type;
float64 stays float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def is_inexact(leaf: Any) -> bool:
    """Returns True if a leaf is a floating or complex array or number."""
    if isinstance(leaf, float | complex):
        return True
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def to_full(tree: Any) -> Any:
    """Casts half leaves to float32; other leaves pass through."""
    return jax.tree.map(lambda leaf: _full_array(leaf) if is_inexact(leaf) else leaf, tree)


def multiply(tree: Any, value: jax.Array) -> Any:
    """Multiplies every inexact leaf by the scalar `value`, in float32 at least."""
    return _combine(lax.mul, tree, value)


def divide(tree: Any, value: jax.Array) -> Any:
    """Divides every inexact leaf by the scalar `value`, in float32 at least.

    A division is correctly rounded even if the value is not a power of two; a product with the
    reciprocal is not.
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
