"""Loop plan: which runs of a program become loops, and where each loop reads its operands.

::

    take the run in this stretch that saves most:
        plan the equations before it
        its copies are linked, and a loop costs less than it saves?      a loop
        else                                                             the next run
        plan the equations after it
    all other equations are bound unchanged

The order matters: a later run may read the stacks of an earlier one at no cost.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from duotone import _jax
from duotone.compiling.copies import FEWEST, Copies, find_copies, slots_of
from duotone.compiling.gain import LEAST_GAIN, Loop, depth, fresh_bytes, why_not
from duotone.compiling.listing import LITERALS, Listing, is_reference
from duotone.compiling.repeats import CopyRun, find_runs
from duotone.compiling.sources import IterationSource, Piece, Places, StackKey, find_source, window

_MOVES = frozenset(
    "squeeze reshape expand_dims transpose convert_element_type broadcast_in_dim rev copy "
    "reduce_precision".split()
)
"""Operations that only move elements: applying them to all copies at once gives the same bits."""
_JOINS = ("stack", "concatenate")


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One run of equal equations, and whether it became a loop.

    Attributes:
        copies: the number of copies.
        period: the number of equations in a copy, including nested ones.
        rolled: whether they became a loop.
        reason: why they did not; empty if they did.
        where: the user's source line of the first equation of a copy.
        stacked: bytes that are stacked for the loop and were in no stack before.
        depth: 0 in the program itself, 1 inside a loop of it, ….
    """

    copies: int
    period: int
    rolled: bool
    reason: str
    where: str
    stacked: int = 0
    depth: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Join:
    """A ``stack`` or ``concatenate`` of values that are in stacks."""

    position: int
    source: IterationSource


class LoopPlan:
    """Decides which runs of a program become loops.

    Attributes:
        listing: the program.
        steps: equations by position, joins and loops, in order.
        places: the stacks of each value.
        wanted: the stacks that loops must make.
        lines: one for each run.
    """

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.steps: list[int | Join | Loop] = []
        self.places: Places = {}
        self.wanted: set[StackKey] = set()
        self.lines: list[Line] = []
        self._stretch(0, len(listing.eqns), find_runs(listing.keys, FEWEST))
        self._want_single_values()

    def _stretch(self, low: int, high: int, runs: list[CopyRun]) -> None:
        """Plans the equations from ``low`` to ``high``; ``runs`` are the runs among them."""
        todo: list[tuple[int, int, list[CopyRun], Copies | None]] = [(low, high, runs, None)]
        while todo:
            low, high, runs, copies = todo.pop()
            if copies is not None:
                loop = self._loop(copies)
                if isinstance(loop, Loop):
                    self._take(loop)
                else:
                    self._line(copies, loop)
                    shorter = [run for run in runs if run.period < copies.period]
                    todo.append((low, high, shorter, None))
                continue
            found = None
            while runs and found is None:
                run, *runs = runs
                found = find_copies(self.listing, run) if self._gain(run) else None
            if found is None:
                for position in range(low, high):
                    self._plain(position)
                continue
            todo.append((found.end, high, _within(runs, found.end, high), None))
            inside = _within(runs, found.start, found.end)
            todo.append((found.start, found.end, inside, found))
            todo.append((low, found.start, _within(runs, low, found.start), None))

    def _gain(self, run: CopyRun) -> bool:
        weights = self.listing.weights[run.start : run.start + run.length]
        moves = self._only_moves(run.start, run.start + run.period)
        return int(weights.sum()) * (run.copies - 1) >= LEAST_GAIN * run.copies or moves

    def _only_moves(self, low: int, high: int) -> bool:
        return all(
            eqn.primitive.name in _MOVES or eqn.primitive.name == "slice"
            for eqn in self.listing.eqns[low:high]
        )

    def _line(self, copies: Copies, reason: str = "", stacked: int = 0) -> None:
        """Notes why a run does not become a loop; no reason if it does."""
        weights = self.listing.weights[copies.model : copies.model + copies.period]
        where = _jax.source_line(self.listing.eqns[copies.model])
        period = int(weights.sum())
        self.lines.append(Line(copies.count, period, not reason, reason, where, stacked))

    def _plain(self, position: int) -> None:
        eqn = self.listing.eqns[position]
        if eqn.primitive.name in _JOINS and len(eqn.invars) >= FEWEST:
            source = find_source(self.listing.reads(position), self.places)
            same = len({atom.aval.shape for atom in eqn.invars}) == 1
            if same and 0 < 2 * len(source.pieces) <= len(eqn.invars):
                self.wanted |= {piece.stack for piece in source.pieces if piece.stack}
                self.steps.append(Join(position, source))
                return
        if eqn.primitive.name == "unstack":
            for index, value in enumerate(self.listing.results(position)):
                self.places[value] = [((position, "split", 0), index)]
        self.steps.append(position)

    def _loop(self, copies: Copies) -> Loop | str:
        """Returns the loop that copies become, or the reason why they do not."""
        if any(not _may_loop(eqn) for eqn in self._model(copies)):
            return "it has references, which a loop cannot carry"
        reverse = self._reverse(copies)
        order = slice(None, None, -1 if reverse else 1)
        sources = {
            index: find_source(slot.values[order], self.places)
            for index, slot in enumerate(copies.slots)
            if slot.kind == "each"
        }
        windows = self._windows(copies, order)
        early = self._early(copies, windows)
        kept = self._kept(copies)
        loop = Loop(len(self.steps), copies, reverse, sources, windows, early, kept)
        return why_not(self.listing, loop) or loop

    def _model(self, copies: Copies) -> list[Any]:
        return self.listing.eqns[copies.model : copies.model + copies.period]

    def _reverse(self, copies: Copies) -> bool:
        """Checks if more bytes are stacked in reverse order than in the order of the copies."""
        if any(eqn.effects for eqn in self._model(copies)):
            return False
        ahead = back = 0
        for slot in copies.slots:
            if slot.kind == "each":
                size = self.listing.bytes_of(slot.values[0])
                turned = find_source(slot.values, self.places).reversed * size
                back += turned
                ahead += len(slot.values) * size if not turned else 0
        return back > ahead

    def _windows(self, copies: Copies, order: slice) -> dict[int, tuple[int, int, int]]:
        found = {}
        for index, slots in slots_of(self.listing, copies):
            eqn = self.listing.eqns[copies.model + index]
            if index in copies.moving and eqn.primitive.name == "slice" and slots[0].kind == "same":
                sizes = eqn.outvars[0].aval.shape
                if (along := window(copies.moving[index][order], sizes)) is not None:
                    found[index] = along
        return found

    def _early(self, copies: Copies, windows: dict[int, Any]) -> frozenset[int]:
        """Returns the equations of a copy that only move stacked values."""
        listing, early = self.listing, set(windows)
        base = int(listing.first[copies.start])
        made = {value - base for index in early for value in listing.results(copies.start + index)}
        all_of_it = self._only_moves(copies.start, copies.start + copies.period)
        for index, slots in slots_of(listing, copies):
            eqn = listing.eqns[copies.model + index]
            stacked = [
                s for s in slots if s.kind == "each" or (s.kind == "inside" and s.offset in made)
            ]
            movable = eqn.primitive.name in _MOVES and len(slots) == 1 and index not in early
            if not movable or not stacked or slots[0].kind == "carried" or index in copies.moving:
                continue
            grows = eqn.outvars[0].aval.size > eqn.invars[0].aval.size
            if slots[0].kind in ("each", "inside") and (all_of_it or not grows):
                early.add(index)
                made |= {value - base for value in listing.results(copies.start + index)}
        return frozenset(early)

    def _kept(self, copies: Copies) -> dict[int, tuple[int, ...]]:
        listing = self.listing
        low, high = int(listing.first[copies.start]), int(listing.first[copies.end])
        read = (listing.last_use[low:high] >= copies.end).reshape(copies.count, -1)
        return {
            int(offset): tuple(np.flatnonzero(read[:, offset]).tolist())
            for offset in np.flatnonzero(read.any(axis=0))
        }

    def _take(self, loop: Loop) -> None:
        self._line(loop.copies, stacked=fresh_bytes(self.listing, loop))
        for source in loop.sources.values():
            self.wanted |= {piece.stack for piece in source.pieces if piece.stack}
        listing, copies = self.listing, loop.copies
        base = int(listing.first[copies.start])
        made = int(listing.first[copies.start + copies.period]) - base
        early = {v - base for p in loop.early for v in listing.results(copies.start + p)}
        for offset in loop.kept:
            stack = (loop.number, "early" if offset in early else "out", offset)
            for copy in range(copies.count):
                value = base + copy * made + offset
                self.places.setdefault(value, []).append((stack, loop.index(copy)))
        for index, slot in enumerate(copies.slots):
            if slot.kind == "carried" and slot.distance == 1 and slot.offset in loop.kept:
                stack = (loop.number, "in", index)
                before = (
                    slot.values[0],
                    *(base + c * made + slot.offset for c in range(copies.count - 1)),
                )
                for copy, value in enumerate(before):
                    self.places.setdefault(value, []).append((stack, loop.index(copy)))
        self.steps.append(loop)

    def _want_single_values(self) -> None:
        """Adds the stacks from which single values are read to ``wanted``."""
        loops = {step.number: step for step in self.steps if isinstance(step, Loop)}
        for value in self._single_values():
            stacks = [stack for stack, _ in self.places.get(value, ()) if stack[1] != "split"]
            own = [stack for stack in stacks if stack[1] != "in"]
            if not own or not self.wanted.isdisjoint(own):
                continue
            loop, offset = loops[own[0][0]], own[0][2]
            base = int(self.listing.first[loop.copies.start])
            made = int(self.listing.first[loop.copies.start + loop.copies.period]) - base
            copy = (value - base) // made
            if own[0][1] == "out" and copy >= loop.copies.count - depth(
                self.listing, loop.copies, offset
            ):
                continue
            self.wanted.add(own[0])

    def _single_values(self) -> list[int]:
        found = list(self.listing.outputs)
        for step in self.steps:
            if isinstance(step, int):
                found += self.listing.reads(step)
            elif isinstance(step, Join):
                found += _singles(step.source.pieces)
            else:
                for slot in step.copies.slots:
                    found += slot.values if slot.kind in ("same", "carried") else ()
                for source in step.sources.values():
                    found += _singles(source.pieces)
        return [value for value in found if value >= 0]


def _singles(pieces: tuple[Piece, ...]) -> list[int]:
    return [piece.start for piece in pieces if piece.stack is None and piece.start > LITERALS]


def _within(runs: list[CopyRun], low: int, high: int) -> list[CopyRun]:
    """Returns the parts of runs in a stretch, by decreasing savings."""
    found = []
    for run in runs:
        start, end = max(run.start, low), min(run.start + run.length, high)
        if end - start >= FEWEST * run.period:
            found.append(CopyRun(start, end - start, run.period))
    return sorted(found, key=lambda run: (-run.gain, run.start))


def _may_loop(eqn: Any) -> bool:
    return all(
        hasattr(atom.aval, "shape") and not is_reference(atom.aval)
        for atom in (*eqn.invars, *eqn.outvars)
    )
