"""Repeats: finds the runs of a sequence of numbers that repeats several times.

For windows of 1, 2, 4, … elements, the hash of each window is computed from the hashes of its
halves. A stable sort finds the previous occurrence of each window. Inside a run of period ``p``,
the previous occurrence of a window of at least ``p`` elements is at a distance of exactly ``p``. So
stretches of equal distance are runs (for windows shorter than ``2 p``, to find each run once)::

    for each size in 1, 2, 4, …:                               log n times
        distance[i] = i - previous occurrence of window i      one sort
        runs = stretches of one distance in size / 2 … size
"""

from __future__ import annotations

import dataclasses

import numpy as np

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True, slots=True)
class CopyRun:
    """A stretch of a sequence that repeats itself.

    Attributes:
        start: the index of its first element.
        length: the number of its elements.
        period: the number of elements of one copy.
    """

    start: int
    length: int
    period: int

    @property
    def copies(self) -> int:
        """The number of whole copies."""
        return self.length // self.period

    @property
    def gain(self) -> int:
        """The number of elements that are saved if one copy is kept."""
        return (self.copies - 1) * self.period


def find_runs(keys: np.ndarray, copies: int = 4) -> list[CopyRun]:
    """Returns all maximal runs of a sequence, by decreasing savings.

    Args:
        keys: numbers, int64[n].
        copies: the fewest copies of a run, at least 3.

    Returns:
        Runs; a run may be inside another.

    Example:
        >>> find_runs(np.array([7, 1, 2, 1, 2, 1, 2, 1, 2, 9]))
        [CopyRun(start=1, length=8, period=2)]
    """
    count = len(keys)
    hashes = _mixed(np.asarray(keys).astype(np.uint64) + np.uint64(1))
    found: list[CopyRun] = []
    size = 1
    while size * (copies - 1) <= count and len(hashes):
        found += _runs_of(hashes, size, copies)
        with np.errstate(over="ignore"):
            hashes = _mixed(hashes[:-size] * _MULTIPLIER + hashes[size:] + np.uint64(size))
        size *= 2
    return sorted(found, key=lambda run: (-run.gain, run.start))


def _runs_of(hashes: np.ndarray, size: int, copies: int) -> list[CopyRun]:
    """Returns the runs whose period is above half the size of a window and at most that size."""
    order = np.argsort(hashes, kind="stable")
    before = np.full(len(hashes), -1)
    same = hashes[order[1:]] == hashes[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    distance = np.where(before >= 0, np.arange(len(hashes)) - before, 0)
    edges = np.flatnonzero(np.diff(distance)) + 1
    starts = np.concatenate([[0], edges])
    ends = np.concatenate([edges, [len(distance)]])
    periods = distance[starts]
    lengths = ends - starts + size - 1 + periods
    good = (periods > size // 2) & (periods <= size) & (lengths >= copies * periods)
    return [
        CopyRun(int(start - period), int(length), int(period))
        for start, period, length in zip(starts[good], periods[good], lengths[good], strict=True)
    ]


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Returns the numbers with mixed bits (the finalizer of MurmurHash3)."""
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        return numbers ^ (numbers >> np.uint64(33))
