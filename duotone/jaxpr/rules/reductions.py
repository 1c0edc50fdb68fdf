"""Binds sums over devices in the dtype that a policy names.

:mod:`duotone.precision.casts.reductions` decides which sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE


def reduced(eqn: _jax.Eqn, operands: Sequence[Any], dtype: str) -> list[Any]:
    """Returns the results of a sum over devices whose float32 operands are cast before it.

    Args:
        eqn: the sum.
        operands: its operands, one or several; only float32 operands are cast.
        dtype: the dtype of the sum.

    Returns:
        Results in ``dtype``; the caller casts them back.
    """
    asked = np.dtype(dtype)
    pairs = zip(operands, eqn.invars, strict=True)
    cast = [
        _jax.convert(array, asked) if atom.aval.dtype == FULL_DTYPE else array
        for array, atom in pairs
    ]
    return _jax.bind(eqn, cast)
