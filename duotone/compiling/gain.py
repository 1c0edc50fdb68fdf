"""Gain: a run as a loop, and whether the loop would cost more than it saves.

To decline loops for another reason, add it to :func:`why_not`; ``duotone clusters`` prints it.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from duotone.compiling.copies import Copies
from duotone.compiling.listing import Listing, aval_bytes
from duotone.compiling.sources import IterationSource
from duotone.text.numbers import amount

LEAST_GAIN = 64
"""The least number of equations that a loop must save: the compiler takes about a millisecond for
each, and a loop about a microsecond per iteration."""
_FRESH_SHARE = 1 / 64
"""The largest share of newly stacked bytes in the bytes that a copy reads and writes."""
_FRESH_BYTES = 1024
"""Newly stacked bytes per copy that are always acceptable."""
_KEPT_SHARE = 1 / 8
"""The largest share of stacked but unread bytes in the bytes that a copy reads and writes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """A run that becomes a loop.

    Attributes:
        number: the number of the step, in the keys of its stacks.
        copies: the run.
        reverse: whether the loop reads its stacked operands backwards.
        sources: the source of each slot that differs from copy to copy, by the index of the slot.
        windows: slices that move along an axis of one array, by equation of a copy: the axis, first
            index and step in the order of the stack.
        early: equations of a copy that are computed for all copies before the loop.
        kept: results of a copy that are read after the loop, each with the copies that are read.
    """

    number: int
    copies: Copies
    reverse: bool
    sources: dict[int, IterationSource]
    windows: dict[int, tuple[int, int, int]]
    early: frozenset[int]
    kept: dict[int, tuple[int, ...]]

    def index(self, copy: int) -> int:
        """Returns the index of a copy in the stacks of the loop."""
        return self.copies.count - 1 - copy if self.reverse else copy


def why_not(listing: Listing, loop: Loop) -> str:
    """Returns why a loop would cost more than it saves; empty if it would not."""
    copies = loop.copies
    model = listing.eqns[copies.model : copies.model + copies.period]
    if len(loop.early) < copies.period:
        saved = sum(listing.weights[copies.model : copies.model + copies.period])
        if saved * (copies.count - 1) < LEAST_GAIN:
            return f"only {saved * (copies.count - 1)} operations would be saved"
    linked = any(slot.kind in ("carried", "each") for slot in copies.slots)
    if not linked and not copies.moving and not any(eqn.effects for eqn in model):
        return "all copies compute the same, which the compiler detects itself"
    fresh = fresh_bytes(listing, loop)
    traffic = sum(aval_bytes(atom.aval) for eqn in model for atom in (*eqn.invars, *eqn.outvars))
    if fresh > copies.count * max(_FRESH_BYTES, traffic * _FRESH_SHARE):
        return (
            f"{amount(fresh, 'B')} of operands differ from copy to copy (weights?) and would "
            f"have to be stacked at every call, where a copy moves {amount(traffic, 'B')}"
        )
    unread = _unread_bytes(listing, loop)
    if unread > copies.count * max(_FRESH_BYTES, traffic * _KEPT_SHARE):
        return f"{amount(unread, 'B')} would be stacked that nothing reads"
    return ""


def fresh_bytes(listing: Listing, loop: Loop) -> int:
    """Returns bytes that are stacked for a loop and were in no stack before."""
    return sum(
        source.fresh * listing.bytes_of(source.values[0])
        for source in loop.sources.values()
        if source.fresh > 2
    )


def _unread_bytes(listing: Listing, loop: Loop) -> int:
    base, count, unread = int(listing.first[loop.copies.start]), loop.copies.count, 0
    for offset, copies in loop.kept.items():
        few = min(copies) >= count - depth(listing, loop.copies, offset)
        if not few:
            unread += (count - len(copies)) * listing.bytes_of(base + offset)
    return unread


def depth(listing: Listing, copies: Copies, offset: int) -> int:
    """Counts the last copies for which a result is available without a stack.

    This is the number of copies for which the loop carries the result. It is at least 1 if the loop
    can carry it for the last copy alone, starting from zeros; random keys have no zeros.
    """
    distances = [s.distance for s in copies.slots if s.kind == "carried" and s.offset == offset]
    aval = listing.atoms[int(listing.first[copies.start]) + offset].aval
    extended = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    return max([0 if extended else 1, *distances])
