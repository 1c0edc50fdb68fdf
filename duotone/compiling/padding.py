"""Padding: pads arrays, slices results, and compares two results.

For arrays on the host it uses NumPy, because JAX would compile a program for each length.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from duotone.errors import ArgumentError, ArgumentTypeError, shown, with_article

_ULPS = 2**12
"""The largest difference that rounding explains, in ULPs of the largest element."""


def resized(array: Any, axis: int, size: int, neutral: Any) -> Any:
    """Returns an array padded along an axis; with NumPy if the array is on the host."""
    more = size - np.shape(array)[axis]
    if more == 0:
        return array
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise ArgumentTypeError(
            f"bucketed: an array of {array.dtype} cannot be padded; pass one key and "
            "split it inside the function"
        )
    if _on_host(array):
        host = np.asarray(array)
        widths = [(0, 0)] * host.ndim
        widths[axis] = (0, more)
        padded = np.pad(host, widths, constant_values=_as_type(neutral, host.dtype))
        return padded if isinstance(array, np.ndarray) else jax.device_put(padded, placement(array))
    config = [(0, 0, 0)] * np.ndim(array)
    config[axis] = (0, more, 0)
    return lax.pad(array, jnp.asarray(_as_type(neutral, array.dtype)), config)


def of_length(array: Any, axis: int, length: int) -> jax.ShapeDtypeStruct:
    """Returns the type of an array at another length."""
    shape = list(np.shape(array))
    shape[axis] = length
    return jax.ShapeDtypeStruct(shape, jax.typeof(array).dtype)


def _as_type(neutral: Any, dtype: Any) -> Any:
    if isinstance(neutral, int) and neutral == 0:
        return np.zeros((), dtype)  # the usual case, at each call
    try:
        number = np.asarray(neutral)
        with np.errstate(invalid="ignore", over="ignore"):
            typed = number.astype(dtype)
    except (TypeError, ValueError):
        number = typed = None
    rounds = jnp.issubdtype(dtype, jnp.inexact)
    if typed is None or typed.ndim or not (rounds or typed == number):
        raise ArgumentTypeError(
            f"bucketed: neutral is {shown(neutral)}, which is not {with_article(str(dtype))} "
            "number; pass one for each argument: neutral={'tokens': 0}"
        )
    return typed


def _on_host(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return True
    if isinstance(array, Tracer) or not isinstance(array, jax.Array):
        return False
    devices = array.devices()
    plain = not jnp.issubdtype(array.dtype, jax.dtypes.extended)
    return plain and len(devices) == 1 and next(iter(devices)).platform == "cpu"


def cut(out: Any, shapes: Sequence[tuple[int, ...]]) -> Any:
    """Slices results to these shapes, one for each leaf."""
    leaves, tree = jax.tree.flatten(out)
    return jax.tree.unflatten(
        tree, [_corner(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=True)]
    )


def _corner(array: Any, shape: tuple[int, ...]) -> Any:
    if np.shape(array) == shape:
        return array
    index = tuple(slice(0, n) for n in shape)
    if _on_host(array):
        part = np.ascontiguousarray(np.asarray(array)[index])
        return part if isinstance(array, np.ndarray) else jax.device_put(part, placement(array))
    return array[index]


def placement(array: Any) -> Any:
    """Returns the sharding of a committed array, hashable; ``None`` for other arrays."""
    if isinstance(array, jax.Array) and not isinstance(array, Tracer) and array.committed:
        return array.sharding
    return None


def is_deleted(arguments: Any) -> bool:
    """Returns True if an array among the arguments was donated or deleted."""
    leaves = jax.tree.leaves(arguments)
    return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves)


def on_host(array: Any) -> np.ndarray:
    """Returns an array as a NumPy array; for random keys, their data."""
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def check_same(mine: Any, theirs: Any, padding: str, remedy: str) -> None:
    """Raises an ``ArgumentError`` for the first result that differs by more than rounding."""
    ours = jax.tree_util.tree_leaves_with_path(mine)
    for (path, one), other in zip(ours, jax.tree.leaves(theirs), strict=True):
        if differs := difference(on_host(one), on_host(other)):
            name = f"result{jax.tree_util.keystr(path)}"
            raise ArgumentError(f"bucketed: {padding} changes {name} {differs}; {remedy}")


def difference(mine: np.ndarray, theirs: np.ndarray) -> str:
    """Returns how two results differ by more than rounding; empty if they do not."""
    if mine.shape != theirs.shape:
        return f"in shape, {list(mine.shape)} instead of {list(theirs.shape)}"
    if not jnp.issubdtype(theirs.dtype, jnp.inexact):
        return "" if np.array_equal(mine, theirs) else "(other numbers)"
    wide = np.complex128 if jnp.issubdtype(theirs.dtype, jnp.complexfloating) else np.float64
    a, b = mine.astype(wide), theirs.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "(in elements that are not finite)"
    if not finite.any():
        return ""
    largest = float(np.abs(b[finite]).max())
    worst = float(np.abs(a[finite] - b[finite]).max())
    eps = float(jnp.finfo(theirs.dtype).eps)
    if np.isfinite(worst) and worst <= _ULPS * eps * largest + float(jnp.finfo(theirs.dtype).tiny):
        return ""
    return f"by up to {worst:.3g}, of {largest:.3g}"


def checked_sizes(sizes: Any) -> tuple[int, ...] | None:
    """Returns the sizes of buckets, increasing; ``None`` for powers of two."""
    if isinstance(sizes, str):
        if sizes != "pow2":
            raise ArgumentError(f"bucketed: sizes is {sizes!r}; pass 'pow2' or numbers")
        return None
    try:
        found = tuple(sizes)
    except TypeError as error:
        raise ArgumentTypeError(
            f"bucketed: sizes is {shown(sizes)}; pass 'pow2' or increasing numbers"
        ) from error
    if not found or not all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) for n in found
    ):
        raise ArgumentError("bucketed: sizes has no whole numbers; pass e.g. [64, 128, 256]")
    if found[0] < 1 or any(b <= a for a, b in itertools.pairwise(found)):
        raise ArgumentError(
            f"bucketed: sizes {list(found)} do not increase from 1 on; sort them and "
            "remove duplicates"
        )
    return tuple(int(n) for n in found)
