"""The notes of ``blame`` on a value: a row of numbers for it and its float32 twin.

Rows of the same value in two iterations of a loop are joined to one.

Who calls this: :mod:`duotone.jaxpr.twins.run` makes them, ``duotone._suspects`` reads them.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

BAD, TICK, ITERATION, LOW, HIGH, UNDERFLOW, ZERO, ERROR, SIZE, COUNT = range(10)
"""Columns: elements that are not finite while the twin's are; when that was first, counted in
iterations of all loops, and the iteration of the innermost one; least and greatest element of the
twin; elements below the normal numbers of half whose twin is a normal float32, and those of
them that are 0; sum of squares of the error and of the twin, not finite where one of them is not;
elements."""
WIDTH = 10
NEUTRAL = np.array([0, np.inf, 0, np.inf, -np.inf, 0, 0, 0, 0, 0], np.float32)
"""The row of no element."""
_BITS = 10
_MOST_ROWS = (1 << _BITS) - 1
_ZERO = np.float32(0)
_ADDED = np.array([1, 0, 0, 0, 0, 1, 1, 1, 1, 1], bool)


def row(plain: Any, twin: Any, tick: Any, iteration: Any) -> Any:
    """The row of a value.

    Args:
        plain: as the program has it.
        twin: the same object if both are one value.
        tick: counts iterations.
        iteration: of the innermost loop.
    """
    full = _lanes(twin.astype(jnp.float32))
    error, size, counts = _ZERO, _ZERO, [_ZERO] * 3
    if plain is not twin:
        kept = _lanes(plain.astype(jnp.float32))
        off = kept - full
        error, size = _sum(jnp.sum(off * off, 0)), _sum(jnp.sum(full * full, 0))
        counts = _counts(full, kept, plain.dtype)
    bad, under, zero = counts
    low, high = jnp.min(_behind(jnp.min(full, 0))), jnp.max(_behind(jnp.max(full, 0)))
    first = jnp.where(bad > 0, jnp.float32(tick), jnp.float32(np.inf))
    parts = [bad, first, iteration, low, high, under, zero, error, size, twin.size]
    return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])


def _counts(full: Any, kept: Any, dtype: Any) -> list[Any]:
    """Elements that overflow, that are lost, and those of them that are 0.

    Three counts in the bits of one number: each sum is one more pass over both arrays.
    """
    found = (jnp.isfinite(full) & ~jnp.isfinite(kept)).astype(jnp.uint32)
    if dtype != jnp.float32:
        size = jnp.abs(kept)
        normal = jnp.abs(full) >= float(jnp.finfo(jnp.float32).smallest_normal)
        least = float(jnp.finfo(dtype).smallest_normal)
        found += jnp.where(normal & (size < least), np.uint32(1 << _BITS), np.uint32(0))
        found += jnp.where(normal & (size == 0), np.uint32(1 << 2 * _BITS), np.uint32(0))
    lanes = _behind(jnp.sum(found, 0, dtype=jnp.uint32))
    mask = np.uint32(_MOST_ROWS)
    return [
        jnp.sum((lanes >> np.uint32(shift * _BITS)) & mask, dtype=jnp.float32) for shift in range(3)
    ]


def _lanes(array: Any) -> Any:
    """An array of two dimensions with the same elements, the first not above 1023.

    Sums over the first of them are made many at a time: a sum to one number is not, since floating
    numbers are added up in order.
    """
    rows = 1
    for size in array.shape[:-1]:
        if rows * size > _MOST_ROWS:
            break
        rows *= size
    whole = next((n for n in (512, 256, 128, 64, 32, 16, 8) if array.size % n == 0), 1)
    return jnp.reshape(array, (rows if rows >= whole else whole, -1))


def _sum(lanes: Any) -> Any:
    return jnp.sum(_behind(lanes))


def _behind(array: Any) -> Any:
    """An array that a compiler does not look behind: two sums in a row would become one."""
    return lax.optimization_barrier(array)


def joined(one: Any, other: Any) -> Any:
    """Rows of the same values at two times, an array ``[values, WIDTH]`` each."""
    later = other[:, TICK] < one[:, TICK]
    moment = jnp.where(later[:, None], other, one)
    found = jnp.where(_ADDED, one + other, moment)
    found = found.at[:, LOW].set(jnp.minimum(one[:, LOW], other[:, LOW]))
    return found.at[:, HIGH].set(jnp.maximum(one[:, HIGH], other[:, HIGH]))


def neutral(count: int) -> Any:
    """Rows of values that were not made yet."""
    return jnp.tile(jnp.asarray(NEUTRAL), (count, 1))


def watched(dtype: Any) -> bool:
    """True if values of a dtype have rows: half and float32."""
    return dtype in (jnp.dtype("float16"), jnp.dtype("bfloat16"), jnp.dtype("float32"))
