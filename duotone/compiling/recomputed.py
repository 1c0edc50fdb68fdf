"""Recomputed: the values that a later loop recomputes, so that they need not be stacked.

A backward pass reads ``tanh(x)`` and ``1 - tanh(x)`` of each step; the second follows from a stack
of the first. XLA detects this in an unrolled program, but not across the stacks of loops::

    for each result of a loop that another loop reads in each copy:
        cheap, and computed from values that are stacked anyway (or equal in all copies)? recompute

Carried values are stacked: recomputing one would start at the first copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duotone.compiling.copies import slots_of
from duotone.compiling.edits import Added, AddedResult, Read, edited, makers
from duotone.compiling.gain import Loop
from duotone.compiling.listing import Listing
from duotone.ops.jax import CHEAP

_DEEPEST = 4
"""The longest chain of operations that is recomputed."""
_EDGES = 2
"""The number of copies in a stack that may be unread."""


def with_recomputed_values(listing: Listing, loops: Sequence[Loop]) -> Listing | None:
    """Returns a program whose loops recompute cheap values instead of reading their stacks.

    Args:
        listing: the program.
        loops: the loops of its plan.

    Returns:
        ``None`` if nothing is recomputed.
    """
    readers = _readers(listing)
    homes = np.full(len(listing.eqns), -1, np.int64)
    for number, loop in enumerate(loops):
        homes[loop.copies.start : loop.copies.end] = number
    recomputed: set[int] = set()
    for loop in loops:
        recomputed |= _values(listing, loop, loops, homes, readers)
    if not recomputed:
        return None
    return _edited(listing, loops, homes, readers, recomputed)


def _readers(listing: Listing) -> dict[int, list[int]]:
    """Returns the indices in ``listing.operands`` that read each value."""
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
    """Returns the results of a loop that other loops recompute, in all copies."""
    copies = loop.copies
    base = int(listing.first[copies.start])
    made = int(listing.first[copies.start + copies.period]) - base
    owners = {
        value - base: (index, slots)
        for index, slots in slots_of(listing, copies)
        for value in listing.results(copies.start + index)
    }
    outputs = set(listing.outputs)
    stacked = {o for o, used in loop.kept.items() if len(used) >= copies.count - _EDGES}
    carried = {slot.offset for slot in copies.slots if slot.kind == "carried"}

    def only_stacked(offset: int) -> bool:
        values = [base + copy * made + offset for copy in loop.kept[offset]]
        operands = [operand for value in values for operand in readers.get(value, ())]
        later = [
            (operand, at)
            for operand, at in zip(operands, _equations(listing, operands), strict=True)
            if at >= copies.end
        ]
        return outputs.isdisjoint(values) and all(
            homes[at] >= 0 and _reads_each(listing, loops[homes[at]], operand)
            for operand, at in later
        )

    def needed(offset: int, depth: int = 0) -> set[int] | None:
        """Returns the results to recompute for this one, including it; ``None`` if not cheap."""
        index, slots = owners[offset]
        cheap = listing.eqns[copies.start + index].primitive.name in CHEAP
        if (
            not cheap
            or offset in carried
            or depth > _DEEPEST
            or index in copies.moving
            or index in loop.early
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

    offsets: set[int] = set()
    for offset in sorted(stacked):
        if offset not in carried and only_stacked(offset):
            offsets |= needed(offset) or set()
    return {base + copy * made + offset for offset in offsets for copy in range(copies.count)}


def _reads_each(listing: Listing, loop: Loop, operand: int) -> bool:
    """Returns True if an operand of a loop is a different stacked value in each copy."""
    slots = loop.copies.slots
    low = int(listing.slots[loop.copies.start])
    return slots[(operand - low) % len(slots)].kind == "each"


def _equations(listing: Listing, operands: Sequence[int]) -> list[int]:
    """Returns the equation of each operand, given by its index in ``listing.operands``."""
    return (np.searchsorted(listing.slots, operands, side="right") - 1).tolist()


def _edited(
    listing: Listing,
    loops: Sequence[Loop],
    homes: np.ndarray,
    readers: dict[int, list[int]],
    recomputed: set[int],
) -> Listing:
    """Returns the program with these values recomputed in each copy of a loop that reads them."""
    made_by = makers(listing)
    before: dict[int, list[Added]] = {}
    changed: dict[int, Read] = {}
    done: dict[tuple[int, int, int], AddedResult] = {}

    def make(value: int, at: int, home: tuple[int, int]) -> AddedResult:
        if (*home, value) not in done:
            maker = int(made_by[value])
            reads = [make(v, at, home) if v in recomputed else v for v in listing.reads(maker)]
            added = Added(listing.eqns[maker], maker, tuple(reads))
            before.setdefault(at, []).append(added)
            done[(*home, value)] = AddedResult(added, value - int(listing.first[maker]))
        return done[(*home, value)]

    uses = sorted((index, value) for value in recomputed for index in readers.get(value, ()))
    for (index, value), at in zip(
        uses, _equations(listing, [index for index, _ in uses]), strict=True
    ):
        if homes[at] != homes[made_by[value]]:
            copies = loops[homes[at]].copies
            home = (int(homes[at]), (at - copies.start) // copies.period)
            changed[index] = make(value, at, home)
    order = [step for at in range(len(listing.eqns)) for step in (*before.get(at, ()), at)]
    return edited(listing, order, changed)
