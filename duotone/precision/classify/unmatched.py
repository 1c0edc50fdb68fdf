"""Warns of name patterns of a policy that match nothing in a program: most are misspelt."""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Collection, Iterable, Iterator

from duotone.precision.classify.classes import Pins
from duotone.precision.ranges import nearest

logger = logging.getLogger("duotone")


def warn_of_unmatched(
    pins: Pins,
    names: Iterable[str],
    what: str,
    remedy: str,
    logged: set[tuple[str, str]] | None = None,
) -> None:
    """Logs each pattern that matches none of some names, with the nearest name.

    This is not an error, since one policy may be for several programs.

    Args:
        pins: the patterns.
        names: the names that a pattern may match.
        what: the things that have these names, such as ``"operation of this function"``.
        remedy: a sentence that tells the user where to find the names.
        logged: the fields and patterns that were logged before, to which this adds its own;
            ``None`` logs all.
    """
    if not (pins.full or pins.half):
        return
    every = sorted(set(names) - {""})
    for field, pattern in unmatched(pins, every):
        if logged is not None:
            if (field, pattern) in logged:
                continue
            logged.add((field, pattern))
        near = nearest(pattern, every)
        hint = f"; the nearest is {near!r}" if near else ""
        logger.warning("Policy(%s=[%r]) matches no %s%s. %s", field, pattern, what, hint, remedy)


def unmatched(pins: Pins, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields the field and the pattern of each pin that matches none of some names."""
    for field, patterns in (("keep_full", pins.full), ("keep_half", pins.half)):
        for pattern in patterns:
            if not any(map(re.compile(fnmatch.translate(pattern)).match, names)):
                yield field, pattern
