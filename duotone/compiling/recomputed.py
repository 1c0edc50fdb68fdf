"""Remade: what a later loop calculates again, so that it need not be stacked.

A backward pass reads ``tanh(x)`` and ``1 - tanh(x)`` of each step; a stack of the first says the
second. XLA sees that where all steps stand in one program, and cannot where a stack lies between::

    of the results of a loop that another loop reads in each copy:
        cheap, and made of what is stacked anyway (or is one value for all)?   calculated again

What a copy hands to the next one is stacked: made again, it would begin at the first copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duotone.compiling.copies import slots_of
from duotone.compiling.edits import Added, Read, Result, edited, makers
from duotone.compiling.gain import Loop
from duotone.compiling.listing import Listing
from duotone.ops.jax import CHEAP

_DEEPEST = 4
"""Operations in a chain that is calculated again."""
_EDGES = 2
"""Copies of which a stack may hold what nobody reads."""


def remade(listing: Listing, loops: Sequence[Loop]) -> Listing | None:
    """A program whose loops calculate again what is cheap, where they read it of another loop.

    Args:
        listing: the program.
        loops: those of its plan.

    Returns:
        ``None`` if nothing is calculated again.
    """
    readers = _readers(listing)
    homes = np.full(len(listing.eqns), -1, np.int64)
    for number, loop in enumerate(loops):
        homes[loop.copies.start : loop.copies.end] = number
    again: set[int] = set()
    for loop in loops:
        again |= _values(listing, loop, loops, homes, readers)
    if not again:
        return None
    return _edited(listing, loops, homes, readers, again)


def _readers(listing: Listing) -> dict[int, list[int]]:
    """The places in ``listing.operands`` that read each value."""
    found: dict[int, list[int]] = {}
    for index, value in enumerate(listing.operands.tolist()):
        if value >= 0:
            found.setdefault(value, []).append(index)
    return found


def _values(
    listing: Listing,
    loop: Loop,
    loops: Sequence[Loop],
    homes: np.ndarray,
    readers: dict[int, list[int]],
) -> set[int]:
    """The results of all copies of a loop that are calculated again."""
    copies = loop.copies
    base = int(listing.first[copies.start])
    made = int(listing.first[copies.start + copies.period]) - base
    owners = {
        value - base: (place, slots)
        for place, slots in slots_of(listing, copies)
        for value in listing.results(copies.start + place)
    }
    outputs = set(listing.outputs)
    stacked = {o for o, used in loop.kept.items() if len(used) >= copies.count - _EDGES}
    carried = {slot.offset for slot in copies.slots if slot.kind == "carried"}

    def only_stacked(offset: int) -> bool:
        values = [base + copy * made + offset for copy in loop.kept[offset]]
        places = [place for value in values for place in readers.get(value, ())]
        far = [
            (place, at)
            for place, at in zip(places, _equations(listing, places), strict=True)
            if at >= copies.end
        ]
        return outputs.isdisjoint(values) and all(
            homes[at] >= 0 and _reads_each(listing, loops[homes[at]], place) for place, at in far
        )

    def needed(offset: int, depth: int = 0) -> set[int] | None:
        """The results that have to be made to make this one; ``None`` if it is not cheap."""
        place, slots = owners[offset]
        cheap = listing.eqns[copies.start + place].primitive.name in CHEAP
        if (
            not cheap
            or offset in carried
            or depth > _DEEPEST
            or place in copies.moving
            or place in loop.early
        ):
            return None
        found = {offset}
        for slot in slots:
            linked = slot.kind in ("inside", "carried")
            if slot.kind == "same" or (linked and slot.distance <= 1 and slot.offset in stacked):
                continue
            more = needed(slot.offset, depth + 1) if slot.kind == "inside" else None
            if more is None:
                return None
            found |= more
        return found

    again: set[int] = set()
    for offset in sorted(stacked):
        if offset not in carried and only_stacked(offset):
            again |= needed(offset) or set()
    return {base + copy * made + offset for offset in again for copy in range(copies.count)}


def _reads_each(listing: Listing, loop: Loop, place: int) -> bool:
    """True if an operand is another stacked value in each copy of a loop."""
    slots = loop.copies.slots
    low = int(listing.slots[loop.copies.start])
    return slots[(place - low) % len(slots)].kind == "each"


def _equations(listing: Listing, places: Sequence[int]) -> list[int]:
    return (np.searchsorted(listing.slots, places, side="right") - 1).tolist()


def _edited(
    listing: Listing,
    loops: Sequence[Loop],
    homes: np.ndarray,
    readers: dict[int, list[int]],
    again: set[int],
) -> Listing:
    """The program with these values made once more in each copy of a loop that reads them."""
    made_by = makers(listing)
    before: dict[int, list[Added]] = {}
    changed: dict[int, Read] = {}
    done: dict[tuple[int, int, int], Result] = {}

    def make(value: int, at: int, home: tuple[int, int]) -> Result:
        if (*home, value) not in done:
            maker = int(made_by[value])
            reads = [make(v, at, home) if v in again else v for v in listing.reads(maker)]
            added = Added(listing.eqns[maker], maker, tuple(reads))
            before.setdefault(at, []).append(added)
            done[(*home, value)] = Result(added, value - int(listing.first[maker]))
        return done[(*home, value)]

    uses = sorted((index, value) for value in again for index in readers.get(value, ()))
    for (index, value), at in zip(
        uses, _equations(listing, [index for index, _ in uses]), strict=True
    ):
        if homes[at] != homes[made_by[value]]:
            copies = loops[homes[at]].copies
            home = (int(homes[at]), (at - copies.start) // copies.period)
            changed[index] = make(value, at, home)
    order = [step for at in range(len(listing.eqns)) for step in (*before.get(at, ()), at)]
    return edited(listing, order, changed)
