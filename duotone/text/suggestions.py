"""Suggests, at the end of an error message, the name that the user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Returns the known names that look most like a name, in any case and with any hyphens.

    Args:
        name: the name that the user wrote.
        known: the names that exist.
        most: the most names to return.
        cutoff: the least similarity, from 0 (the nearest, however far) to 1 (equal names).

    Example:
        >>> nearest("Reduce-Sun", ["reduce_max", "reduce_sum"])
        ['reduce_sum']
    """
    spelled = {_plain(k): k for k in known}
    return [spelled[k] for k in difflib.get_close_matches(_plain(name), spelled, most, cutoff)]


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, most: int = 1, cutoff: float = 0.6
) -> str:
    """Returns the remedy for an unknown name: the names it may mean, or else another remedy.

    Args:
        name: as for :func:`nearest`.
        known: as for :func:`nearest`.
        otherwise: the remedy where no name is near.
        most: as for :func:`nearest`.
        cutoff: as for :func:`nearest`.

    Example:
        >>> did_you_mean("epx", ["exp", "sin"], "there are exp, sin")
        "did you mean 'exp'?"
        >>> did_you_mean("matmul", ["exp", "sin"], "there are exp, sin")
        'there are exp, sin'
    """
    found = nearest(name, known, most, cutoff)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else otherwise


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
