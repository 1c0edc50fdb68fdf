"""Sums over devices, carried out in the dtype that a policy names.

Which ones: :mod:`duotone.precision.casts.reductions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE


def reduced(eqn: _jax.Eqn, operands: Sequence[Any], dtype: str) -> list[Any]:
    """The results of a sum over devices whose float32 operands are cast before it.

    Args:
        eqn: the sum.
        operands: its operands, one or several; what the program has in another type stays so.
        dtype: in which to add up.

    Returns:
        Results in ``dtype``; who keeps them casts them back.
    """
    asked = np.dtype(dtype)
    pairs = zip(operands, eqn.invars, strict=True)
    cast = [
        _jax.convert(array, asked) if atom.aval.dtype == FULL_DTYPE else array
        for array, atom in pairs
    ]
    return _jax.bind(eqn, cast)
