"""Computes the difference between the results of a function and of its export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from duotone.errors import RewriteError

_ANOTHER_PROGRAM = 0.1
"""A larger relative difference cannot be rounding, so the programs differ."""


def worst_difference(name: str, found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Returns the largest difference of results, relative to the largest value of each.

    Args:
        name: the name of the function.
        found: results of the exported program.
        expected: results of the function.

    Raises:
        RewriteError: the difference is too large for rounding.
    """
    pairs = zip(found, expected, strict=True)
    worst = max((_relative(_numbers(a), _numbers(b)) for a, b in pairs), default=0.0)
    if not worst < _ANOTHER_PROGRAM:
        raise RewriteError(
            f"export: the exported program of {name} differs from the function by {worst:.2g} "
            "of its largest value; nothing was written. Please report it, with the function."
        )
    return worst


def _numbers(result: Any) -> np.ndarray:
    is_key = jnp.issubdtype(result.dtype, jax.dtypes.extended)
    return np.asarray(jax.random.key_data(result) if is_key else result)


def _relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest relative difference; infinite if only one of two numbers is finite."""
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return float("inf")
    largest = np.max(np.abs(b[finite]), initial=0.0)
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0) / (largest or 1.0))
