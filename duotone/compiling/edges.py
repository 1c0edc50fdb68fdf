"""Edges: what stands before or behind a loop and is almost a copy of it becomes one.

The backward pass of an unrolled loop adds each gradient to those before, except in its first copy;
and its last copy leaves out what nothing reads. Such a copy would be compiled beside the loop, and
would cut the stacks of the forward pass, which XLA copies to do so. So it gets what it lacks::

    before    add_any that the copy lacks: added, of zeros
    behind    what the copy lacks since nothing reads it: added, and not read
"""

from __future__ import annotations

import abc
from collections.abc import Iterable

import jax
import numpy as np
from jax import lax
from jax.core import ShapedArray

from duotone import _jax
from duotone.compiling.copies import Copies, Slot, slots_of
from duotone.compiling.edits import Added, Read, Result, edited, makers
from duotone.compiling.gain import Loop
from duotone.compiling.listing import LITERALS, Listing

_LACKING = 4
"""At most one in this many equations of a copy may be added."""
_REACH = 2
"""Lengths of a copy in which the equations of one are looked for."""
_NO_VALUE = np.iinfo(np.int64).max
"""The number of no value."""


def peeled(listing: Listing, loops: Iterable[Loop]) -> Listing | None:
    """A program in which what is almost a copy of a loop is one.

    Args:
        listing: the program.
        loops: those of its plan.

    Returns:
        ``None`` if there is no such part.
    """
    runs = [loop.copies for loop in loops if len(loop.early) < loop.copies.period]
    taken = np.zeros(len(listing.eqns), bool)
    for copies in runs:
        taken[copies.start : copies.end] = True
    made_by = makers(listing)
    edges: list[_Edge] = []
    for copies in runs:
        for kind in (_Before, _Behind):
            edge = kind(listing, copies, made_by, taken)
            if edge.is_copy():
                edge.complete()
                taken[edge.low : edge.high] = True
                edges.append(edge)
    if not edges:
        return None
    order: list[int | Added] = list(range(len(listing.eqns)))
    changed: dict[int, Read] = {}
    literals: dict[int, _jax.Atom] = {}
    for edge in sorted(edges, key=lambda edge: -edge.low):
        order[edge.low : edge.high] = edge.steps
        changed |= edge.changed
        literals |= edge.literals
    return edited(listing, order, changed, literals)


class _Edge(abc.ABC):
    """A part of a program that may be one more copy of a run.

    Attributes:
        model: position, slots and results (as offsets) of each equation of the first copy.
        found: the equation in the part for each of these; ``None`` where it lacks.
        steps: what stands in the place of the part, once it is complete.
        zeros: what is added before the copy.
        changed: operands that become others.
        literals: literals that are new.
    """

    def __init__(
        self, listing: Listing, copies: Copies, made_by: np.ndarray, taken: np.ndarray
    ) -> None:
        self.listing, self.copies, self.made_by, self.taken = listing, copies, made_by, taken
        self.base = int(listing.first[copies.start])
        self.made = int(listing.first[copies.start + copies.period]) - self.base
        self.model: list[tuple[int, tuple[Slot, ...], list[int]]] = []
        for place, slots in slots_of(listing, copies):
            offsets = [value - self.base for value in listing.results(copies.start + place)]
            self.model.append((copies.start + place, slots, offsets))
        self.found: dict[int, int | None] = {}
        self.steps: list[int | Added] = []
        self.zeros: list[Added] = []
        self.changed: dict[int, Read] = {}
        self.literals: dict[int, _jax.Atom] = {}

    @abc.abstractmethod
    def match(self) -> bool:
        """Finds the equations; false if one is wanted that is not there and cannot be added."""

    @abc.abstractmethod
    def carried(self, slot: Slot, model: int) -> Read:
        """The operand that an added equation takes from the copy before."""

    @property
    def mine(self) -> set[int]:
        """The equations that were found."""
        return {at for at in self.found.values() if at is not None}

    @property
    def low(self) -> int:
        """The first equation of the part."""
        return min(self.mine)

    @property
    def high(self) -> int:
        """The first equation behind it."""
        return self.copies.start

    def is_copy(self) -> bool:
        """True if little has to be added to what was found, and if it can stand together."""
        listing, copies = self.listing, self.copies
        if any(listing.eqns[model].effects for model, _, _ in self.model) or not self.match():
            return False
        lacking = sum(int(listing.weights[m]) for m, at in self.found.items() if at is None)
        whole = int(listing.weights[copies.start : copies.start + copies.period].sum())
        if not (mine := self.mine) or _LACKING * lacking > whole:
            return False
        between = range(self.low, self.high)
        if any(self.taken[at] or listing.eqns[at].effects for at in between):
            return False
        others = set(between) - mine
        outside = {
            self._maker(value)
            for model, slots, _ in self.model
            if (at := self.found[model]) is not None
            for slot, value in zip(slots, listing.reads(at), strict=True)
            if slot.kind != "inside"
        }
        return mine.isdisjoint(outside) and self.fits(others, outside)

    @abc.abstractmethod
    def fits(self, others: set[int], outside: set[int]) -> bool:
        """True if what stands between the equations can stand on their far side."""

    def complete(self) -> None:
        """Adds what lacks."""
        new: dict[int, Read] = {}
        copy: list[int | Added] = []
        for model, slots, offsets in self.model:
            at = self.found[model]
            if at is None:
                reads = tuple([self._read(slot, model, new) for slot in slots])
                added = Added(self.listing.eqns[model], model, reads)
                copy.append(added)
                new.update({offset: Result(added, i) for i, offset in enumerate(offsets)})
                continue
            copy.append(at)
            new.update(zip(offsets, self.listing.results(at), strict=True))
            for index, slot in enumerate(slots, int(self.listing.slots[at])):
                if slot.kind == "inside" and isinstance(new[slot.offset], Result):
                    self.changed[index] = new[slot.offset]
        self.hand_on(new)
        mine = self.mine
        others = [at for at in range(self.low, self.high) if at not in mine]
        self.steps = self.together(copy, others)

    @abc.abstractmethod
    def together(self, copy: list[int | Added], others: list[int]) -> list[int | Added]:
        """The copy, and what stood between its equations."""

    @abc.abstractmethod
    def hand_on(self, new: dict[int, Read]) -> None:
        """Lets the next copy read the results of this one."""

    def _read(self, slot: Slot, model: int, new: dict[int, Read]) -> Read:
        if slot.kind == "inside":
            return new[slot.offset]
        return slot.values[0] if slot.kind == "same" else self.carried(slot, model)

    def _maker(self, value: int) -> int:
        return int(self.made_by[value]) if value >= 0 else -1

    def _can_be(self, at: int, model: int, slots: tuple[Slot, ...]) -> bool:
        """True if an equation is of the same kind, and reads the same where all copies do."""
        listing = self.listing
        if listing.keys[at] != listing.keys[model] or self.taken[at]:
            return False
        moves = model - self.copies.start in self.copies.moving
        if not moves and listing.offsets.get(at) != listing.offsets.get(model):
            return False
        return all(
            slot.kind != "same" or slot.values[0] == value
            for slot, value in zip(slots, listing.reads(at), strict=True)
        )


class _Before(_Edge):
    """The part before a run: found backwards, from what the first copy reads of it."""

    def match(self) -> bool:
        wanted: dict[int, int] = {}
        for _, slots, _ in self.model:
            for slot in slots:
                if slot.kind == "carried" and not self._wants(wanted, slot, slot.values[0]):
                    return False
        for model, slots, offsets in reversed(self.model):
            values = [wanted.get(offset) for offset in offsets]
            at = max([self._maker(value) for value in values if value is not None], default=-1)
            if self._is_it(at, model, slots, values):
                self.found[model] = at
                reads = self.listing.reads(at)
            elif values[0] is not None and self._adds(model, slots):
                self.found[model] = None
                reads = [values[0]] * len(slots)
            else:
                return False
            for slot, read in zip(slots, reads, strict=True):
                if slot.kind == "inside" and not self._wants(wanted, slot, read):
                    return False
        return True

    def _wants(self, wanted: dict[int, int], slot: Slot, value: int) -> bool:
        return slot.distance <= 1 and wanted.setdefault(slot.offset, value) == value

    def _is_it(
        self, at: int, model: int, slots: tuple[Slot, ...], values: list[int | None]
    ) -> bool:
        low = max(0, self.copies.start - _REACH * self.copies.period)
        if not low <= at < self.copies.start or at in self.found.values():
            return False
        if not self._can_be(at, model, slots):
            return False
        results = self.listing.results(at)
        if not all(v in (None, r) for v, r in zip(values, results, strict=True)):
            return False
        return all(
            slot.kind != "inside" or self._is_made_alike(value, slot.offset)
            for slot, value in zip(slots, self.listing.reads(at), strict=True)
        )

    def _is_made_alike(self, value: int, offset: int) -> bool:
        """True if the maker of a value may be the equation that makes a result of a copy."""
        model, slots = next((m, slots) for m, slots, offsets in self.model if offset in offsets)
        at = self._maker(value)
        alike = at >= 0 and self.listing.keys[at] == self.listing.keys[model]
        return alike or self._adds(model, slots)

    def _adds(self, model: int, slots: tuple[Slot, ...]) -> bool:
        """True of an equation that adds to what is carried."""
        name = self.listing.eqns[model].primitive.name
        return name == "add_any" and {s.kind for s in slots} == {"carried", "inside"}

    def carried(self, slot: Slot, model: int) -> Read:
        aval: ShapedArray = self.listing.eqns[model].outvars[0].aval
        zeros = jax.make_jaxpr(lambda: lax.full(aval.shape or (1,), 0, aval.dtype))()
        (eqn,) = _jax.open_jaxpr(zeros).eqns
        number = min(LITERALS, *self.listing.atoms) - 1 - len(self.literals)
        self.literals[number] = eqn.invars[0]
        if not aval.shape:
            return number
        self.zeros.append(Added(eqn, None, (number,)))
        return Result(self.zeros[-1])

    def fits(self, others: set[int], outside: set[int]) -> bool:
        reads = {self._maker(value) for at in others for value in self.listing.reads(at)}
        return self.mine.isdisjoint(reads)

    def together(self, copy: list[int | Added], others: list[int]) -> list[int | Added]:
        return [*others, *self.zeros, *copy]

    def hand_on(self, new: dict[int, Read]) -> None:
        index = int(self.listing.slots[self.copies.start])
        for _, slots, _ in self.model:
            for at, slot in enumerate(slots, index):
                if slot.kind == "carried" and isinstance(new[slot.offset], Result):
                    self.changed[at] = new[slot.offset]
            index += len(slots)


class _Behind(_Edge):
    """The part behind a run: found forwards, by what it reads."""

    @property
    def low(self) -> int:
        return self.copies.end

    @property
    def high(self) -> int:
        return max(self.mine) + 1

    def match(self) -> bool:
        listing, end = self.listing, self.copies.end
        nearby: dict[int, list[int]] = {}
        for at in range(end, min(len(listing.eqns), end + _REACH * self.copies.period)):
            nearby.setdefault(int(listing.keys[at]), []).append(at)
        made: dict[int, int] = {}
        for model, slots, offsets in self.model:
            expected = [self._expected(slot, made) for slot in slots]
            at = next(
                (
                    at
                    for at in nearby.get(int(listing.keys[model]), ())
                    if self._can_be(at, model, slots) and self._reads_all(at, expected)
                ),
                None,
            )
            self.found[model] = at
            if at is not None:
                nearby[int(listing.keys[model])].remove(at)
                made.update(zip(offsets, listing.results(at), strict=True))
            elif model - self.copies.start in self.copies.moving or any(
                slot.kind == "each" or slot.distance > self.copies.count for slot in slots
            ):
                return False
        return True

    def _expected(self, slot: Slot, made: dict[int, int]) -> int | None:
        """The value that an equation of the copy reads there; ``None`` if it may be any."""
        if slot.kind == "inside":
            return made.get(slot.offset, _NO_VALUE)
        return self._handed(slot) if slot.kind == "carried" else None

    def _handed(self, slot: Slot) -> int:
        return self.base + (self.copies.count - slot.distance) * self.made + slot.offset

    def _reads_all(self, at: int, expected: list[int | None]) -> bool:
        reads = self.listing.reads(at)
        return all(value in (None, read) for value, read in zip(expected, reads, strict=True))

    def carried(self, slot: Slot, model: int) -> Read:
        return self._handed(slot)

    def fits(self, others: set[int], outside: set[int]) -> bool:
        return others.isdisjoint(outside)

    def hand_on(self, new: dict[int, Read]) -> None:
        """Does nothing: no copy comes after the last one."""

    def together(self, copy: list[int | Added], others: list[int]) -> list[int | Added]:
        return [*copy, *others]
