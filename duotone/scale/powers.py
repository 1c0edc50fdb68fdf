"""Powers of two in compiled programs, computed from the bits of a float32.

These are exact. Compiled logarithms and powers are not, and take more operations.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def log2_above(number: jax.Array) -> jax.Array:
    """Returns the smallest n for which 2**n is not below a positive number.

    Args:
        number: ``float32[]``, positive and normal.

    Returns:
        n, ``int32[]``.
    """
    bits = lax.bitcast_convert_type(number, jnp.int32)
    return (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0)


def power_of_two(exponent: jax.Array) -> jax.Array:
    """Returns 2**exponent, ``float32[]``.

    Args:
        exponent: ``int32[]``, from -126 to 127.
    """
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


def powers_held_by(kind: Any) -> tuple[float, float]:
    """Returns the smallest normal and the largest power of two of a floating type.

    Args:
        kind: the ``jnp.finfo`` of the type.
    """
    return 2.0 ** int(kind.minexp), 2.0 ** (int(kind.maxexp) - 1)
