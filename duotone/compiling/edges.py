"""Edges: completes the parts before and after a loop that are almost one more copy of it.

The backward pass of an unrolled loop adds each gradient to the earlier ones, except in its first
copy. Its last copy omits equations that nothing reads. Such a part would be compiled in addition to
the loop. It would also cut the stacks of the forward pass, and XLA copies a stack to cut it. So the
missing equations are added::

    before the loop    each missing add_any is added, with a zero operand
    after the loop     each equation that is missing because nothing reads it is added

:class:`_Before` and :class:`_After` find the equations of such a part; :class:`_Edge` decides
whether it is close enough to a copy, and completes it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable

import jax
import numpy as np
from jax import lax
from jax.core import ShapedArray

from duotone import _jax
from duotone.compiling.copies import Copies, Slot, slots_of
from duotone.compiling.edits import Added, AddedResult, Read, edited, makers
from duotone.compiling.gain import Loop
from duotone.compiling.listing import LITERALS, Listing

_LEAST_FOUND = 4
"""At most one in this many equations of a copy may be missing."""
_REACH = 2
"""How far from the loop to search, in lengths of a copy."""
_NO_VALUE = np.iinfo(np.int64).max
"""A number that no value has."""


def peeled(listing: Listing, loops: Iterable[Loop]) -> Listing | None:
    """Returns a program in which almost-copies before and after loops are completed to copies.

    Args:
        listing: the program.
        loops: the loops of its plan.

    Returns:
        The new program; ``None`` if there is no such part.
    """
    runs = [loop.copies for loop in loops if len(loop.early) < loop.copies.period]
    taken = np.zeros(len(listing.eqns), bool)
    for copies in runs:
        taken[copies.start : copies.end] = True
    made_by = makers(listing)
    edges: list[_Edge] = []
    for copies in runs:
        for kind in (_Before, _After):
            edge = kind(listing, copies, made_by, taken)
            if edge.is_almost_copy():
                edge.complete()
                taken[edge.start : edge.end] = True
                edges.append(edge)
    if not edges:
        return None
    order: list[int | Added] = list(range(len(listing.eqns)))
    changed: dict[int, Read] = {}
    literals: dict[int, _jax.Atom] = {}
    for edge in sorted(edges, key=lambda edge: -edge.start):
        order[edge.start : edge.end] = edge.steps
        changed |= edge.changed
        literals |= edge.literals
    return edited(listing, order, changed, literals)


@dataclasses.dataclass(frozen=True, slots=True)
class _Equation:
    """An equation of the first copy of a run.

    Attributes:
        position: its position in the program.
        slots: its operands.
        offsets: its results, counted from the first result of the copy.
    """

    position: int
    slots: tuple[Slot, ...]
    offsets: tuple[int, ...]


class _Edge(abc.ABC):
    """A part of a program that may be one more copy of a run.

    Attributes:
        model: the equations of the first copy, in order.
        found: by the position of a model equation, the position of the matching equation in the
            part; ``None`` if it is missing.
        steps: the equations that replace the part, after :meth:`complete`.
        zeros: equations that make zeros for added equations; they come before the copy.
        changed: new operands, by their index in ``listing.operands``.
        literals: new literals, by number.
    """

    def __init__(
        self, listing: Listing, copies: Copies, made_by: np.ndarray, taken: np.ndarray
    ) -> None:
        self.listing, self.copies, self.made_by, self.taken = listing, copies, made_by, taken
        self.base = int(listing.first[copies.start])
        self.results_per_copy = int(listing.first[copies.start + copies.period]) - self.base
        self.model = [
            _Equation(
                copies.start + index,
                slots,
                tuple(value - self.base for value in listing.results(copies.start + index)),
            )
            for index, slots in slots_of(listing, copies)
        ]
        self.found: dict[int, int | None] = {}
        self.steps: list[int | Added] = []
        self.zeros: list[Added] = []
        self.changed: dict[int, Read] = {}
        self.literals: dict[int, _jax.Atom] = {}

    @property
    @abc.abstractmethod
    def start(self) -> int:
        """The first equation of the part."""

    @property
    @abc.abstractmethod
    def end(self) -> int:
        """The first equation after the part."""

    @abc.abstractmethod
    def match(self) -> bool:
        """Fills :attr:`found`; False if an equation is missing and cannot be added."""

    @abc.abstractmethod
    def can_separate(self, others: set[int], makers_outside: set[int]) -> bool:
        """Returns True if the other equations of the part can move to its far side.

        ``makers_outside`` are the equations outside of the copy that make its operands.
        """

    @abc.abstractmethod
    def carried_operand(self, slot: Slot, equation: _Equation) -> Read:
        """Returns the operand of an added equation that the loop carries from the previous copy."""

    @abc.abstractmethod
    def link_next_copy(self, made: dict[int, Read]) -> None:
        """Makes the next copy read the results of added equations; ``made`` is by offset."""

    @abc.abstractmethod
    def in_order(self, copy: list[int | Added], others: list[int]) -> list[int | Added]:
        """Returns the equations of the completed copy and the part's other equations, in order."""

    @property
    def matched(self) -> set[int]:
        """The positions of the equations that were found."""
        return {at for at in self.found.values() if at is not None}

    def is_almost_copy(self) -> bool:
        """Checks if only few equations are missing, and the copy can be separated from the rest."""
        listing, copies = self.listing, self.copies
        if any(listing.eqns[eqn.position].effects for eqn in self.model) or not self.match():
            return False
        missing = sum(int(listing.weights[m]) for m, at in self.found.items() if at is None)
        whole = int(listing.weights[copies.start : copies.start + copies.period].sum())
        matched = self.matched
        if not matched or _LEAST_FOUND * missing > whole:
            return False
        part = range(self.start, self.end)
        if any(self.taken[at] or listing.eqns[at].effects for at in part):
            return False
        makers_outside = {
            self._maker(value)
            for equation in self.model
            if (at := self.found[equation.position]) is not None
            for slot, value in zip(equation.slots, listing.reads(at), strict=True)
            if slot.kind != "inside"
        }
        return matched.isdisjoint(makers_outside) and self.can_separate(
            set(part) - matched, makers_outside
        )

    def complete(self) -> None:
        """Adds the missing equations."""
        made: dict[int, Read] = {}
        copy: list[int | Added] = []
        for equation in self.model:
            at = self.found[equation.position]
            if at is None:
                copy.append(self._add(equation, made))
            else:
                copy.append(at)
                self._keep(at, equation, made)
        self.link_next_copy(made)
        matched = self.matched
        others = [at for at in range(self.start, self.end) if at not in matched]
        self.steps = self.in_order(copy, others)

    def _add(self, equation: _Equation, made: dict[int, Read]) -> Added:
        """Adds an equation like one of the model; puts its results into ``made``."""
        reads = tuple([self._operand(slot, equation, made) for slot in equation.slots])
        added = Added(self.listing.eqns[equation.position], equation.position, reads)
        made.update({offset: AddedResult(added, i) for i, offset in enumerate(equation.offsets)})
        return added

    def _operand(self, slot: Slot, equation: _Equation, made: dict[int, Read]) -> Read:
        if slot.kind == "inside":
            return made[slot.offset]
        return slot.values[0] if slot.kind == "same" else self.carried_operand(slot, equation)

    def _keep(self, at: int, equation: _Equation, made: dict[int, Read]) -> None:
        """Keeps a found equation, and makes it read the results of added equations."""
        made.update(zip(equation.offsets, self.listing.results(at), strict=True))
        for index, slot in enumerate(equation.slots, int(self.listing.slots[at])):
            if slot.kind == "inside" and isinstance(made[slot.offset], AddedResult):
                self.changed[index] = made[slot.offset]

    def _maker(self, value: int) -> int:
        return int(self.made_by[value]) if value >= 0 else -1

    def _is_same_operation(self, at: int, equation: _Equation) -> bool:
        """Checks if an equation has the key of a model equation and the operands of kind "same"."""
        listing, position = self.listing, equation.position
        if listing.keys[at] != listing.keys[position] or self.taken[at]:
            return False
        moves = position - self.copies.start in self.copies.moving
        if not moves and listing.offsets.get(at) != listing.offsets.get(position):
            return False
        return all(
            slot.kind != "same" or slot.values[0] == value
            for slot, value in zip(equation.slots, listing.reads(at), strict=True)
        )


class _Before(_Edge):
    """The part before a run: matched backwards, from the values that the first copy reads."""

    @property
    def start(self) -> int:
        return min(self.matched)

    @property
    def end(self) -> int:
        return self.copies.start

    def match(self) -> bool:
        required: dict[int, int] = {}  # by offset, the value that the part must make there

        def require(slot: Slot, value: int) -> bool:
            return slot.distance <= 1 and required.setdefault(slot.offset, value) == value

        for equation in self.model:
            for slot in equation.slots:
                if slot.kind == "carried" and not require(slot, slot.values[0]):
                    return False
        for equation in reversed(self.model):
            values = [required.get(offset) for offset in equation.offsets]
            at = max([self._maker(value) for value in values if value is not None], default=-1)
            if self._matches(at, equation, values):
                self.found[equation.position] = at
                reads = self.listing.reads(at)
            elif values[0] is not None and self._accumulates(equation):
                # Without the addition, its other operand is the result.
                self.found[equation.position] = None
                reads = [values[0]] * len(equation.slots)
            else:
                return False
            for slot, read in zip(equation.slots, reads, strict=True):
                if slot.kind == "inside" and not require(slot, read):
                    return False
        return True

    def _matches(self, at: int, equation: _Equation, values: list[int | None]) -> bool:
        """Checks if the equation at a position makes these values as the model equation does."""
        low = max(0, self.copies.start - _REACH * self.copies.period)
        if not low <= at < self.copies.start or at in self.found.values():
            return False
        if not self._is_same_operation(at, equation):
            return False
        results = self.listing.results(at)
        if not all(v in (None, r) for v, r in zip(values, results, strict=True)):
            return False
        return all(
            slot.kind != "inside" or self._maker_may_match(value, slot.offset)
            for slot, value in zip(equation.slots, self.listing.reads(at), strict=True)
        )

    def _maker_may_match(self, value: int, offset: int) -> bool:
        """Returns True if the maker of a value may match the model equation of a result."""
        equation = next(eqn for eqn in self.model if offset in eqn.offsets)
        at = self._maker(value)
        same = at >= 0 and self.listing.keys[at] == self.listing.keys[equation.position]
        return same or self._accumulates(equation)

    def _accumulates(self, equation: _Equation) -> bool:
        """Returns True if an equation adds to a carried value."""
        name = self.listing.eqns[equation.position].primitive.name
        return name == "add_any" and {s.kind for s in equation.slots} == {"carried", "inside"}

    def can_separate(self, others: set[int], makers_outside: set[int]) -> bool:
        reads = {self._maker(value) for at in others for value in self.listing.reads(at)}
        return self.matched.isdisjoint(reads)

    def carried_operand(self, slot: Slot, equation: _Equation) -> Read:
        """Returns zeros, since no copy comes before the first one."""
        aval: ShapedArray = self.listing.eqns[equation.position].outvars[0].aval
        zeros = jax.make_jaxpr(lambda: lax.full(aval.shape or (1,), 0, aval.dtype))()
        (eqn,) = _jax.open_jaxpr(zeros).eqns
        number = min(LITERALS, *self.listing.atoms) - 1 - len(self.literals)
        self.literals[number] = eqn.invars[0]
        if not aval.shape:
            return number
        self.zeros.append(Added(eqn, None, (number,)))
        return AddedResult(self.zeros[-1])

    def link_next_copy(self, made: dict[int, Read]) -> None:
        index = int(self.listing.slots[self.copies.start])
        for equation in self.model:
            for at, slot in enumerate(equation.slots, index):
                if slot.kind == "carried" and isinstance(made[slot.offset], AddedResult):
                    self.changed[at] = made[slot.offset]
            index += len(equation.slots)

    def in_order(self, copy: list[int | Added], others: list[int]) -> list[int | Added]:
        return [*others, *self.zeros, *copy]


class _After(_Edge):
    """The part after a run: matched forwards, by the values that its equations read."""

    @property
    def start(self) -> int:
        return self.copies.end

    @property
    def end(self) -> int:
        return max(self.matched) + 1

    def match(self) -> bool:
        listing, end = self.listing, self.copies.end
        nearby: dict[int, list[int]] = {}  # positions by key
        for at in range(end, min(len(listing.eqns), end + _REACH * self.copies.period)):
            nearby.setdefault(int(listing.keys[at]), []).append(at)
        made: dict[int, int] = {}  # values of the part by offset
        for equation in self.model:
            position = equation.position
            candidates = nearby.get(int(listing.keys[position]), [])
            expected = [self._expected(slot, made) for slot in equation.slots]
            at = self._first_match(candidates, equation, expected)
            self.found[position] = at
            if at is not None:
                candidates.remove(at)
                made.update(zip(equation.offsets, listing.results(at), strict=True))
            elif not self._can_add(equation):
                return False
        return True

    def _first_match(
        self, candidates: list[int], equation: _Equation, expected: list[int | None]
    ) -> int | None:
        for at in candidates:
            if self._is_same_operation(at, equation) and self._reads_all(at, expected):
                return at
        return None

    def _can_add(self, equation: _Equation) -> bool:
        """Returns True if the operands of a missing equation are known."""
        return equation.position - self.copies.start not in self.copies.moving and not any(
            slot.kind == "each" or slot.distance > self.copies.count for slot in equation.slots
        )

    def _expected(self, slot: Slot, made: dict[int, int]) -> int | None:
        """Returns the value that the copy must read in a slot; ``None`` if any value will do."""
        if slot.kind == "inside":
            return made.get(slot.offset, _NO_VALUE)
        return self._from_run(slot) if slot.kind == "carried" else None

    def _from_run(self, slot: Slot) -> int:
        """Returns the value that the run passes to the copy after it."""
        copy = self.copies.count - slot.distance
        return self.base + copy * self.results_per_copy + slot.offset

    def _reads_all(self, at: int, expected: list[int | None]) -> bool:
        reads = self.listing.reads(at)
        return all(value in (None, read) for value, read in zip(expected, reads, strict=True))

    def can_separate(self, others: set[int], makers_outside: set[int]) -> bool:
        return others.isdisjoint(makers_outside)

    def carried_operand(self, slot: Slot, equation: _Equation) -> Read:
        return self._from_run(slot)

    def link_next_copy(self, made: dict[int, Read]) -> None:
        """Does nothing: no copy comes after the last one."""

    def in_order(self, copy: list[int | Added], others: list[int]) -> list[int | Added]:
        return [*copy, *others]
