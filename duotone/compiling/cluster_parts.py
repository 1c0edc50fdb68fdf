"""Cluster parts: a program cut into parts, so that equal parts share one compiled program.

::

    of all runs of equal equations, those that leave out most first:
        cut it into copies (several together if a copy is small, several parts if it is large)
    what is left, and what stands in a scope of the user's, is a part by itself
    two parts with the same equations, wired alike, with results read alike, are one *cluster*

A part reads values that other parts made and makes some that others read. Numbers written into the
program that differ between equal parts (the turn of a loop) become operands of the cluster.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from duotone import _jax
from duotone.compiling.copies import FEWEST, phase
from duotone.compiling.listing import LITERALS, Listing, is_reference
from duotone.compiling.repeats import Run, find_runs

SCOPE = "duotone.cluster"
"""How the name of a scope of the user's begins; a number and the user's name follow."""
LEAST_SAVED = 256
"""Equations that clusters must save the compiler, which takes about a millisecond for each."""
LEAST_TIMES = 2.0
"""How many times fewer equations clusters must compile than the whole program."""
PROGRAM = 32
"""Equations that a program of its own costs the compiler besides those in it, some 40 milliseconds:
``python -m benchmarks.clusters``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes and exceptions that a user asks for.

    Attributes:
        least: equations, nested ones included, that a repeated part has at least.
        most: equations that a part has at most, unless a single one holds more; ``None``: any.
        excluded: primitives that are clusters of their own.
    """

    least: int
    most: int | None
    excluded: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a program.

    Attributes:
        start: its first equation.
        end: the first one behind it.
        reads: numbers of the values that it reads and does not make, in the order of their first
            use; literals are not among them.
        literals: numbers of the literals that it reads, in the order of its operands.
        results: which of the values that it makes others read, counted from its first.
        key: what equal parts have in common.
    """

    start: int
    end: int
    reads: tuple[int, ...]
    literals: tuple[int, ...]
    results: tuple[int, ...]
    key: Hashable


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """Equal parts.

    Attributes:
        parts: all of them, in the order of the program.
        passed: places among :attr:`Part.literals` that differ between the parts.
    """

    parts: tuple[Part, ...]
    passed: tuple[int, ...]

    def operands(self, part: Part) -> tuple[int, ...]:
        """Numbers of what the cluster's program takes, for one of its parts."""
        return part.reads + tuple(part.literals[place] for place in self.passed)


@dataclasses.dataclass(frozen=True, slots=True)
class Clusters:
    """A program in clusters.

    Attributes:
        listing: the program.
        clusters: each distinct one.
        operations: of the program, nested ones included.
        compiled: operations of the clusters, each counted once.
    """

    listing: Listing
    clusters: tuple[Cluster, ...]
    operations: int
    compiled: int

    @property
    def launches(self) -> int:
        """Parts that a call runs."""
        return sum(len(cluster.parts) for cluster in self.clusters)

    @property
    def declined(self) -> str:
        """Why clusters would not win, in words; empty if they would."""
        if any(is_reference(atom.aval) for atom in self.listing.atoms.values()):
            return "it holds references, which cannot go from one program to the next"
        saved = self.operations - self.compiled
        if saved < LEAST_SAVED:
            return f"clusters would save the compilation of only {saved} operations"
        programs = len(self.clusters)
        if self.operations < LEAST_TIMES * (self.compiled + PROGRAM * programs):
            return (
                f"{self.compiled} of {self.operations} operations in {programs} programs would "
                "take half as long to compile as the whole, or longer"
            )
        return ""

    def __str__(self) -> str:
        return (
            f"{self.launches} parts of {len(self.clusters)} programs; "
            f"{self.compiled} of {self.operations} operations are compiled"
        )


def find_clusters(listing: Listing, sizes: Sizes) -> Clusters:
    """A program in clusters.

    Args:
        listing: the program.
        sizes: what the user asks of them.
    """
    groups: dict[Hashable, list[Part]] = {}
    for start, end in _stretches(listing, sizes):
        part = _part(listing, start, end)
        groups.setdefault(part.key, []).append(part)
    clusters = tuple(Cluster(tuple(parts), _differing(parts)) for parts in groups.values())
    firsts = [cluster.parts[0] for cluster in clusters]
    compiled = sum(int(listing.weights[part.start : part.end].sum()) for part in firsts)
    return Clusters(listing, clusters, int(listing.weights.sum()), compiled)


def scope_of(eqn: _jax.Eqn) -> str:
    """The innermost scope of the user's in which an equation stands; empty if there is none."""
    names = _jax.scope_names(eqn.source_info.name_stack)
    return next((name for name in reversed(names) if name.startswith(SCOPE)), "")


def _stretches(listing: Listing, sizes: Sizes) -> Iterator[tuple[int, int]]:
    """First and end of each part, in order."""
    count = len(listing.eqns)
    fixed = _fixed(listing, sizes)
    taken = np.array([bool(label) for label in fixed], bool)
    edges = {0, count}
    for place in range(1, count):
        if fixed[place] != fixed[place - 1]:
            edges.add(place)
    total = np.concatenate([[0], np.cumsum(listing.weights)])
    for run in find_runs(listing.keys, FEWEST):
        for low, high in _free(taken, run):
            if high - low >= FEWEST * run.period:
                _cut(listing, Run(low, high - low, run.period), sizes, total, taken, edges)
    ordered = sorted(edges)
    for start, end in itertools.pairwise(ordered):
        yield from _small_enough(start, end, sizes, total)


def _fixed(listing: Listing, sizes: Sizes) -> list[str]:
    """A label of each equation that stands in a scope or is excluded; empty of all others."""
    return [
        f"excluded {place}" if eqn.primitive.name in sizes.excluded else scope_of(eqn)
        for place, eqn in enumerate(listing.eqns)
    ]


def _free(taken: np.ndarray, run: Run) -> list[tuple[int, int]]:
    """The stretches of a run that belong to no part yet."""
    free = ~taken[run.start : run.start + run.length]
    steps = np.flatnonzero(np.diff(np.concatenate([[False], free, [False]]).astype(np.int8)))
    return [(run.start + int(a), run.start + int(b)) for a, b in steps.reshape(-1, 2)]


def _cut(
    listing: Listing, run: Run, sizes: Sizes, total: np.ndarray, taken: np.ndarray, edges: set[int]
) -> None:
    """Cuts a run into its copies, unless they would be too small to be worth a launch."""
    start = run.start + phase(listing, run, run.period)
    copies = (run.start + run.length - start) // run.period
    if copies < 2:
        return
    weight = int(total[start + run.period] - total[start])
    together = math.ceil(sizes.least / max(weight, 1))
    if copies // together < 2:
        return
    period = together * run.period
    end = start + copies // together * period
    edges.update(range(start, end + 1, period))
    taken[start:end] = True


def _small_enough(
    start: int, end: int, sizes: Sizes, total: np.ndarray
) -> Iterator[tuple[int, int]]:
    """A stretch in pieces of at most the largest size, the same for equal stretches."""
    weight = int(total[end] - total[start])
    if sizes.most is None or weight <= sizes.most:
        yield start, end
        return
    low = start
    for place in range(start + 1, end + 1):
        if place == end or total[place + 1] - total[low] > sizes.most:
            yield low, place
            low = place


def _part(listing: Listing, start: int, end: int) -> Part:
    base, top = int(listing.first[start]), int(listing.first[end])
    read = listing.operands[listing.slots[start] : listing.slots[end]].tolist()
    outside: dict[int, int] = {}
    literals: list[int] = []
    wires: list[tuple[str, Hashable]] = []
    for value in read:
        if value <= LITERALS:
            literals.append(value)
            wires.append(("literal", _type(listing, value)))
        elif base <= value < top:
            wires.append(("inside", value - base))
        else:
            place = outside.setdefault(value, len(outside))
            wires.append(("outside", place))
    results = tuple(int(v) for v in np.flatnonzero(listing.last_use[base:top] >= end))
    moving = tuple(listing.offsets.get(place) for place in range(start, end))
    equations = tuple(listing.keys[start:end].tolist())
    key = (equations, moving, tuple(wires), results)
    return Part(start, end, tuple(outside), tuple(literals), results, key)


def _type(listing: Listing, value: int) -> Hashable:
    aval = listing.atoms[value].aval
    return aval.shape, str(aval.dtype), bool(aval.weak_type)


def _differing(parts: Sequence[Part]) -> tuple[int, ...]:
    """Places of the literals that are not the same in all parts."""
    first = parts[0].literals
    return tuple(
        place
        for place in range(len(first))
        if any(part.literals[place] != first[place] for part in parts)
    )
