"""Aligns two sequences that are mostly the same, such as the operations of two programs.

::

    while both sides have elements:
        if the next two are equal: pair them
        else: find the fewest elements to leave out of either side until _ENOUGH equal ones follow,
              or both sides end; after _MOST elements, go on from the farthest position

So it takes at most _MOST steps for each element. ``difflib.SequenceMatcher`` takes a number
of steps that grows with the square of the length where elements repeat, as operations do.

References:
    Myers, "An O(ND) difference algorithm and its variations", Algorithmica 1986.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Pair = tuple[int, int]
"""The positions of two equal elements."""

_ENOUGH = 8
_MOST = 512


def aligned(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[Pair]:
    """Returns the positions of equal elements, in order on both sides.

    Example:
        >>> aligned("abcxd", "abyxcd")
        [(0, 0), (1, 1), (2, 4), (4, 5)]
    """
    found: list[Pair] = []
    start = other = 0
    while start < len(left) and other < len(right):
        if left[start] == right[other]:
            found.append((start, other))
            start, other = start + 1, other + 1
        else:
            start, other, passed = _resume(left, right, start, other)
            found += passed
    return found


def _resume(
    left: Sequence[Hashable], right: Sequence[Hashable], start: int, other: int
) -> tuple[int, int, list[Pair]]:
    """Finds where two sequences are equal again; returns the positions, and the pairs up to them.

    ``ends[d]`` has the farthest position on the left, by diagonal (the position on the right less
    that on the left), that leaves out ``d`` elements.
    """
    ends: list[dict[int, int]] = [{other - start: start}]
    for _ in range(_MOST):
        reached: dict[int, int] = {}
        best = (-1, 0)
        for diagonal, before in _next(ends[-1]).items():
            i, j = before, before + diagonal
            if i > len(left) or j > len(right):
                continue
            while i < len(left) and j < len(right) and left[i] == right[j]:
                i, j = i + 1, j + 1
            reached[diagonal] = i
            equal = _ENOUGH if (i, j) == (len(left), len(right)) else i - before
            best = max(best, (equal, diagonal))
        ends.append(reached)
        if best[0] >= _ENOUGH:
            break
    else:
        best = max((2 * i + diagonal, diagonal) for diagonal, i in ends[-1].items())
    diagonal = best[1]
    i = ends[-1][diagonal]
    return i, i + diagonal, _pairs(ends, diagonal)


def _next(ends: dict[int, int]) -> dict[int, int]:
    """Returns the farthest starts by diagonal after one more element is left out of either side."""
    found: dict[int, int] = {}
    for diagonal, i in ends.items():
        found[diagonal - 1] = max(found.get(diagonal - 1, -1), i + 1)  # one of the left
        found[diagonal + 1] = max(found.get(diagonal + 1, -1), i)
    return found


def _pairs(ends: Sequence[dict[int, int]], diagonal: int) -> list[Pair]:
    """Returns the pairs on the way to the end of a diagonal, in order."""
    found: list[Pair] = []
    for number in range(len(ends) - 1, 0, -1):
        before, stop = ends[number - 1], ends[number][diagonal]
        first = max(before.get(diagonal + 1, -2) + 1, before.get(diagonal - 1, -1))
        found += [(i, i + diagonal) for i in range(stop - 1, first - 1, -1)]
        diagonal += 1 if before.get(diagonal + 1, -2) + 1 == first else -1
    return found[::-1]
