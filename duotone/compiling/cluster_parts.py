"""Cluster parts: cuts a program into parts, so that equal parts share one compiled program.

::

    for each run of equal equations, by decreasing savings:
        cut it into copies (group small copies, cut large ones into several parts)
    each stretch between runs, and each cluster scope of the user, is a separate part
    parts with equal equations, wiring and read results are one *cluster*

A part reads values from other parts, and makes values that other parts read. Literals that differ
between equal parts (the index of an iteration) become operands of the cluster.
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
from duotone.compiling.repeats import CopyRun, find_runs

SCOPE = "duotone.cluster"
"""The prefix of a cluster scope's name; a number and the user's name follow."""
LEAST_SAVED = 256
"""The least number of equations to save; the compiler takes about a millisecond for each."""
LEAST_TIMES = 2.0
"""The least factor by which clusters must reduce the number of compiled equations."""
PROGRAM = 32
"""The overhead of a separate program, in equations: some 40 milliseconds
(``python -m benchmarks.clusters``)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes and exceptions that a user asks for.

    Attributes:
        least: the least number of equations of a repeated part, including nested ones.
        most: the largest number of equations of a part, unless a single equation has more; ``None``
            for no limit.
        excluded: primitives that become separate clusters.
    """

    least: int
    most: int | None
    excluded: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterPart:
    """A stretch of a program.

    Attributes:
        start: its first equation.
        end: the first equation after it.
        reads: numbers of the values that it reads and does not make, in the order of their first
            use, without literals.
        literals: numbers of the literals that it reads, in the order of its operands.
        results: the results that other parts read, counted from its first result.
        key: a key that is the same for equal parts.
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
        passed: indices into :attr:`ClusterPart.literals` whose values differ between the parts.
    """

    parts: tuple[ClusterPart, ...]
    passed: tuple[int, ...]

    def operands(self, part: ClusterPart) -> tuple[int, ...]:
        """Returns numbers of the operands of the cluster's program, for one of its parts."""
        return part.reads + tuple(part.literals[index] for index in self.passed)


@dataclasses.dataclass(frozen=True, slots=True)
class Clusters:
    """A program in clusters.

    Attributes:
        listing: the program.
        clusters: the distinct clusters.
        operations: the number of operations of the program, including nested ones.
        compiled: the number of operations of the clusters, each cluster counted once.
    """

    listing: Listing
    clusters: tuple[Cluster, ...]
    operations: int
    compiled: int

    @property
    def launches(self) -> int:
        """The number of parts that a call runs."""
        return sum(len(cluster.parts) for cluster in self.clusters)

    @property
    def declined(self) -> str:
        """Why clusters would not save time; empty if they would."""
        if any(is_reference(atom.aval) for atom in self.listing.atoms.values()):
            return "it has references, which cannot pass from one program to the next"
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
    """Returns a program in clusters."""
    groups: dict[Hashable, list[ClusterPart]] = {}
    for start, end in _stretches(listing, sizes):
        part = _part(listing, start, end)
        groups.setdefault(part.key, []).append(part)
    clusters = tuple(Cluster(tuple(parts), _differing(parts)) for parts in groups.values())
    firsts = [cluster.parts[0] for cluster in clusters]
    compiled = sum(int(listing.weights[part.start : part.end].sum()) for part in firsts)
    return Clusters(listing, clusters, int(listing.weights.sum()), compiled)


def scope_of(eqn: _jax.Eqn) -> str:
    """Returns the innermost cluster scope of an equation; empty if there is none."""
    names = _jax.scope_names(eqn.source_info.name_stack)
    return next((name for name in reversed(names) if name.startswith(SCOPE)), "")


def _stretches(listing: Listing, sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each part, in order."""
    count = len(listing.eqns)
    fixed = _fixed(listing, sizes)
    taken = np.array([bool(label) for label in fixed], bool)
    edges = {0, count}
    for position in range(1, count):
        if fixed[position] != fixed[position - 1]:
            edges.add(position)
    total = np.concatenate([[0], np.cumsum(listing.weights)])
    for run in find_runs(listing.keys, FEWEST):
        for low, high in _free(taken, run):
            if high - low >= FEWEST * run.period:
                _cut(listing, CopyRun(low, high - low, run.period), sizes, total, taken, edges)
    ordered = sorted(edges)
    for start, end in itertools.pairwise(ordered):
        yield from _small_enough(start, end, sizes, total)


def _fixed(listing: Listing, sizes: Sizes) -> list[str]:
    """Returns a label for each equation in a cluster scope or excluded; empty for all others."""
    return [
        f"excluded {position}" if eqn.primitive.name in sizes.excluded else scope_of(eqn)
        for position, eqn in enumerate(listing.eqns)
    ]


def _free(taken: np.ndarray, run: CopyRun) -> list[tuple[int, int]]:
    """Returns the stretches of a run that are not in a part yet."""
    free = ~taken[run.start : run.start + run.length]
    steps = np.flatnonzero(np.diff(np.concatenate([[False], free, [False]]).astype(np.int8)))
    return [(run.start + int(a), run.start + int(b)) for a, b in steps.reshape(-1, 2)]


def _cut(
    listing: Listing,
    run: CopyRun,
    sizes: Sizes,
    total: np.ndarray,
    taken: np.ndarray,
    edges: set[int],
) -> None:
    """Cuts a run into its copies, unless they would be too small for a launch."""
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
    """Cuts a stretch into pieces of at most the largest size; equal stretches are cut equally."""
    weight = int(total[end] - total[start])
    if sizes.most is None or weight <= sizes.most:
        yield start, end
        return
    low = start
    for cut in range(start + 1, end + 1):
        if cut == end or total[cut + 1] - total[low] > sizes.most:
            yield low, cut
            low = cut


def _part(listing: Listing, start: int, end: int) -> ClusterPart:
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
            wires.append(("outside", outside.setdefault(value, len(outside))))
    results = tuple(int(v) for v in np.flatnonzero(listing.last_use[base:top] >= end))
    moving = tuple(listing.offsets.get(position) for position in range(start, end))
    equations = tuple(listing.keys[start:end].tolist())
    key = (equations, moving, tuple(wires), results)
    return ClusterPart(start, end, tuple(outside), tuple(literals), results, key)


def _type(listing: Listing, value: int) -> Hashable:
    aval = listing.atoms[value].aval
    return aval.shape, str(aval.dtype), bool(aval.weak_type)


def _differing(parts: Sequence[ClusterPart]) -> tuple[int, ...]:
    """Returns the indices of the literals that are not the same in all parts."""
    first = parts[0].literals
    return tuple(
        index
        for index in range(len(first))
        if any(part.literals[index] != first[index] for part in parts)
    )
