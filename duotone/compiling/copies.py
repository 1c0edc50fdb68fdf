"""Copies: how the copies of a run are linked, from the numbers of their operands.

Each operand of a copy (a *slot*) has one of four kinds, the same in all copies::

    inside    made by the same copy
    carried   made by an earlier copy, always the same number of copies back
    same      made before the run, one value for all copies
    each      made before the run, a different value for each copy

For the first copies, a carried value comes from before the run. If copies disagree, the run is cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np

from duotone.compiling.listing import LITERALS, Listing
from duotone.compiling.repeats import CopyRun

FEWEST = 4
"""The least number of copies of a run."""
_LONGEST_MULTIPLE = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One operand of all copies.

    Attributes:
        kind: ``inside``, ``carried``, ``same`` or ``each``, see above.
        offset: for ``inside`` and ``carried``, the index of the result of a copy.
        distance: for ``carried``, how many copies back.
        values: for ``same`` the one value; for ``each`` one for each copy; for ``carried`` the
            values for the first copies, as many as the distance.
    """

    kind: Literal["inside", "carried", "same", "each"]
    offset: int = 0
    distance: int = 0
    values: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Copies:
    """Consecutive equal parts of a program.

    Attributes:
        start: the first equation.
        period: the number of equations of one copy.
        count: the number of copies.
        slots: one for each operand of the equations of a copy.
        moving: by equation of a copy, the start of its ``slice`` or ``pad`` in each copy, if the
            starts differ: int64[count, axes].
    """

    start: int
    period: int
    count: int
    slots: tuple[Slot, ...]
    moving: dict[int, np.ndarray]

    @property
    def end(self) -> int:
        """The first equation after them."""
        return self.start + self.count * self.period

    @property
    def model(self) -> int:
        """The first equation of the copy that represents all."""
        return self.start + (self.count // 2) * self.period


def find_copies(listing: Listing, run: CopyRun) -> Copies | None:
    """Returns the largest part of a run whose copies are linked in the same way.

    Returns:
        ``None`` if fewer than :data:`FEWEST` copies do.
    """
    period = run.period * _multiple(listing, run)
    start = run.start + phase(listing, run, period)
    count = (run.start + run.length - start) // period
    if count < FEWEST:
        return None
    reads = _Reads(listing, start, period, count)
    first, end = reads.extent()
    if end - first < FEWEST:
        return None
    return reads.copies(first, end)


class _Reads:
    """The operands of all copies as a table: a row for each copy, a column for each slot."""

    def __init__(self, listing: Listing, start: int, period: int, count: int) -> None:
        self.listing, self.start, self.period, self.count = listing, start, period, count
        self.base = int(listing.first[start])
        self.made = int(listing.first[start + period]) - self.base
        low, high = listing.slots[start], listing.slots[start + period * count]
        self.table = listing.operands[low:high].reshape(count, -1)
        self.middle = count // 2
        here, following = self.table[self.middle], self.table[self.middle + 1]
        self.linked = (following - here == self.made) & (here >= self.base)
        self.same = following == here
        maker = (here - self.base) // self.made
        self.distance = np.where(self.linked, self.middle - maker, 0)

    def _needs(self, copy: int) -> int:
        """Returns the earliest first copy of a run that includes this copy."""
        row = self.table[copy]
        shifted = self.table[self.middle] + (copy - self.middle) * self.made
        maker = np.where(row >= self.base, (row - self.base) // self.made, -1)
        irregular = self.linked & (row != shifted)
        need = 0
        if irregular.any():
            need = int(
                np.maximum(copy - self.distance[irregular] + 1, maker[irregular] + 1).max(initial=0)
            )
        outside = ~self.linked
        need = max(need, int(maker[outside].max(initial=-1)) + 1)
        if (self.same & (row != self.table[self.middle])).any():
            need = copy + 1
        return need

    def extent(self) -> tuple[int, int]:
        """Returns the first copy, and one past the last copy."""
        need = max(self._needs(self.middle), self._needs(self.middle + 1))
        if need > self.middle:
            return 0, 0
        end = self.middle + 2
        while end < self.count and (more := self._needs(end)) <= self.middle:
            need, end = max(need, more), end + 1
        copy = self.middle - 1
        while copy >= need:
            need, copy = max(need, self._needs(copy)), copy - 1
        return need, end

    def copies(self, first: int, end: int) -> Copies:
        """Returns the copies from ``first`` up to ``end``."""
        table = self.table[first:end]
        slots = []
        for column in range(table.shape[1]):
            values = table[:, column]
            if self.linked[column]:
                offset = int(self.table[self.middle, column] - self.base) % self.made
                distance = int(self.distance[column])
                before = tuple(values[:distance].tolist())
                slots.append(Slot("carried" if distance else "inside", offset, distance, before))
            elif self.same[column]:
                slots.append(Slot("same", values=(int(values[0]),)))
            else:
                slots.append(Slot("each", values=tuple(values.tolist())))
        start = self.start + first * self.period
        return Copies(
            start, self.period, end - first, tuple(slots), self._moving(start, end - first)
        )

    def _moving(self, start: int, count: int) -> dict[int, np.ndarray]:
        offsets, found = self.listing.offsets, {}
        for index in range(self.period):
            if start + index in offsets:
                rows = np.array([offsets[start + c * self.period + index] for c in range(count)])
                if (rows != rows[0]).any():
                    found[index] = rows
        return found


def phase(listing: Listing, run: CopyRun, period: int) -> int:
    """Returns the start of a run's first copy that passes the fewest bytes between copies.

    It counts, over the second copy, the bytes made before an equation and read at or after it.
    """
    size = min(run.length, 4 * period)
    low, high = listing.slots[run.start], listing.slots[run.start + size]
    readers = np.repeat(np.arange(size), np.diff(listing.slots[run.start : run.start + size + 1]))
    read = listing.operands[low:high]
    base, end = int(listing.first[run.start]), int(listing.first[run.start + size])
    inside = read >= base
    last = np.zeros(end - base, np.int64)
    np.maximum.at(last, read[inside] - base, readers[inside])
    makers = np.repeat(np.arange(size), np.diff(listing.first[run.start : run.start + size + 1]))
    crossing = np.zeros(size + 2, np.int64)
    sizes = np.array([listing.bytes_of(value) for value in range(base, end)], np.int64)
    np.add.at(crossing, makers + 1, sizes)
    np.add.at(crossing, np.maximum(last, makers) + 1, -sizes)
    bytes_at = np.cumsum(crossing)
    return int(np.argmin(bytes_at[period : 2 * period]))


def _multiple(listing: Listing, run: CopyRun) -> int:
    """Returns how many periods make one copy, so that the fewest bytes differ from copy to copy.

    In a time loop over layers, all layers have equal keys, but their weights repeat only with the
    next time step.
    """
    reads = _Reads(listing, run.start, run.period, run.copies)
    middle = reads.table[reads.middle]
    sizes: np.ndarray | None = None
    best, least = 1, None
    for multiple in range(1, min(run.copies // FEWEST, _LONGEST_MULTIPLE) + 1):
        if reads.middle + multiple >= run.copies:
            break
        step = reads.table[reads.middle + multiple] - middle
        differing = (step != 0) & (step != multiple * reads.made) & (middle > LITERALS)
        if (following := reads.middle + 2 * multiple) < run.copies:
            regular = reads.table[following] - reads.table[reads.middle + multiple] == step
            differing &= ~(regular & (middle >= 0))
        if not differing.any():
            return multiple
        if sizes is None:
            sizes = np.array([listing.bytes_of(int(value)) for value in middle], np.int64)
        bytes_differing = int(sizes[differing].sum())
        if least is None or bytes_differing < least:
            best, least = multiple, bytes_differing
    return best


def slots_of(listing: Listing, copies: Copies) -> Iterator[tuple[int, tuple[Slot, ...]]]:
    """Yields the equations of one copy, each with its slots."""
    low = int(listing.slots[copies.start])
    for index in range(copies.period):
        begin = int(listing.slots[copies.start + index]) - low
        end = int(listing.slots[copies.start + index + 1]) - low
        yield index, copies.slots[begin:end]
