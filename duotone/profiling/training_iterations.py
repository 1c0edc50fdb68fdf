"""Cuts a trace into iterations at a key operation, which runs once in each.

These steps find the key operation, unless the user names it::

    module     the compiled program that takes the most device time, among those that ran
               repeatedly or have a loop
    runs       how often its operations outside of loops ran; if that is once, look into the loop
               that takes the most time, and repeat. Equal operations may share a kernel, which then
               runs several times in an iteration, so this takes the number that most others are
               multiples of
    key        the first operation that ran this often

An iteration lasts from one start of the key operation to the next, so it includes the wait before
the next one. The last iteration ends with the last operation that earlier iterations also had. Each
device is cut at its own key operations.

The tables leave out the first of at least three iterations, which warms up. They also leave out
iterations that compile something, unless most do. If the user gives a first or last iteration,
only that range decides.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from duotone.profiling.asked import ProfileChoices
from duotone.profiling.programs import Facts, fact_of
from duotone.profiling.trace_events import EventKind, Trace

_WARMS_UP = 3
"""The least number of iterations of which the first is left out."""
_FREQUENT = 0.25
"""A number of runs is frequent if it has at least this share of the most frequent one's count."""
_NAMED = 8
"""The most operations that a note names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """One iteration on one device, in nanoseconds; fields as in ``IterationRow``."""

    device: str
    index: int
    start: float
    end: float
    compiled: bool
    counted: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Iterations:
    """All iterations.

    Attributes:
        key: the key operation as ``module/operation``; empty if there is none.
        cuts: the iterations, by device and time.
        notes: requests that could not be met.
    """

    key: str
    cuts: tuple[Cut, ...]
    notes: tuple[str, ...] = ()


def cut(trace: Trace, facts: Mapping[int, Facts], asked: ProfileChoices) -> Iterations:
    """Cuts a trace into iterations."""
    if not len(trace.kind):
        return Iterations("", ())
    notes: list[str] = []
    if asked.key_node is None:
        key = _find_key(trace, facts)
    else:
        key = _named_key(trace, asked.key_node)
        if key is None:
            notes.append(_never_ran(trace, facts, asked.key_node))
    cuts = [cut for device in _devices(trace) for cut in _cut_device(trace, device, key)]
    counted, more = _counted(cuts, asked.iter_start, asked.iter_stop)
    cuts = [dataclasses.replace(cut, counted=cut.index in counted) for cut in cuts]
    name = "/".join(key) if key else ""
    return Iterations(name, tuple(cuts), (*notes, *more))


_Key = tuple[str, str]
"""Module and operation; without an operation, an empty text and the kernel."""


def _key_of(kind: EventKind) -> _Key:
    return (kind.module, kind.operation) if kind.operation else ("", kind.kernel)


def _devices(trace: Trace) -> list[str]:
    return sorted({kind.device for kind in trace.kinds})


def _find_key(trace: Trace, facts: Mapping[int, Facts]) -> _Key | None:
    """Finds the key operation of a trace."""
    seconds = np.bincount(trace.kind, trace.end - trace.start, len(trace.kinds))
    runs = np.bincount(trace.kind, minlength=len(trace.kinds))
    by_device: Counter[str] = Counter()
    by_module: Counter[tuple[str, str]] = Counter()
    often: Counter[tuple[str, str, str]] = Counter()
    for kind, spent, ran in zip(trace.kinds, seconds, runs, strict=True):
        if kind.module:
            by_device[kind.device] += spent
            by_module[kind.device, kind.module] += spent
            often[kind.device, kind.module, kind.kernel] += int(ran)
    if not by_module:
        return None
    repeated = {(device, module) for (device, module, _), ran in often.items() if ran > 1}
    if repeated:  # a program that ran once and has no loop is not training; it may make weights
        by_module = Counter({name: by_module[name] for name in repeated})
        by_device = Counter({device: by_device[device] for device, _ in repeated})
    device = by_device.most_common(1)[0][0]
    module = max((m for d, m in by_module if d == device), key=lambda m: by_module[device, m])
    chosen = [n for n, k in enumerate(trace.kinds) if (k.device, k.module) == (device, module)]
    runs = _runs_by_name(trace, chosen, runs)
    times = _times(trace, chosen, runs, seconds, facts)
    first = {int(n): at for at, n in reversed([*zip(*_first_seen(trace), strict=True)])}
    able = [n for n in chosen if runs[n] == times]
    return _key_of(trace.kinds[min(able, key=lambda n: first[n])]) if able else None


def _runs_by_name(trace: Trace, chosen: Sequence[int], runs: np.ndarray) -> np.ndarray:
    """Adds up the runs of a recompiled program, which has another number but the same names."""
    by_name: Counter[tuple[str, str]] = Counter()
    names = {n: (trace.kinds[n].operation, trace.kinds[n].kernel) for n in chosen}
    for n, name in names.items():
        by_name[name] += int(runs[n])
    added = runs.copy()
    for n, name in names.items():
        added[n] = by_name[name]
    return added


def _first_seen(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of the first event of each kind, and the kinds."""
    kinds, indices = np.unique(trace.kind, return_index=True)
    return indices, kinds


def _times(
    trace: Trace,
    chosen: Sequence[int],
    runs: np.ndarray,
    seconds: np.ndarray,
    facts: Mapping[int, Facts],
) -> int:
    """Counts the iterations in the entry of the program or in its most expensive loops."""
    known = {n: fact for n in chosen if (fact := fact_of(trace.kinds[n], facts)) is not None}
    if not known:
        return _common(int(runs[n]) for n in chosen if runs[n] > 1)
    loop: tuple[str, ...] = ()
    while True:
        times = _common(int(runs[n]) for n, fact in known.items() if fact.loop == loop)
        inside: Counter[str] = Counter()
        for n, fact in known.items():
            if len(fact.loop) > len(loop) and fact.loop[: len(loop)] == loop:
                inside[fact.loop[len(loop)]] += seconds[n]
        if times > 1 or not inside:
            return times
        loop = (*loop, inside.most_common(1)[0][0])


def _common(runs: Iterable[int]) -> int:
    """Returns the frequent number of runs that most numbers are multiples of; 1 if there is none.

    If several numbers qualify equally, it returns the most frequent one.
    """
    often = Counter(runs)
    least = max(often.values(), default=0) * _FREQUENT
    frequent = [times for times, count in often.items() if count >= least]
    return max(
        frequent,
        key=lambda n: (sum(c for other, c in often.items() if other % n == 0), often[n]),
        default=1,
    )


def _named_key(trace: Trace, name: str) -> _Key | None:
    """Returns the earliest operation that matches a name or pattern."""
    indices, kinds = _first_seen(trace)
    for index in kinds[np.argsort(indices)]:
        kind = trace.kinds[index]
        names = (kind.operation, kind.kernel, f"{kind.module}/{kind.operation}")
        if any(name == own or fnmatch.fnmatchcase(own, name) for own in names if own):
            return _key_of(kind)
    return None


def _never_ran(trace: Trace, facts: Mapping[int, Facts], name: str) -> str:
    """Writes a note on a key operation that never ran, with the operations that did."""
    seconds = np.bincount(trace.kind, trace.end - trace.start, len(trace.kinds))
    order = np.argsort(-seconds)
    names = dict.fromkeys("/".join(_key_of(trace.kinds[n])).lstrip("/") for n in order)
    found = _find_key(trace, facts)
    proposed = f"; found by itself: {'/'.join(found)}" if found else ""
    return (
        f"the key operation {name} never ran, so that all is one iteration. "
        f"What ran: {', '.join([*names][:_NAMED])}{', …' if len(names) > _NAMED else ''}{proposed}"
    )


def _cut_device(trace: Trace, device: str, key: _Key | None) -> list[Cut]:
    """Cuts the trace of one device; without a key operation, all of it is one iteration."""
    here = np.array([kind.device == device for kind in trace.kinds])[trace.kind]
    kind, start, end = trace.kind[here], trace.start[here], trace.end[here]
    if key is None:
        begins, last = [float(start[0])], float(end.max())
    else:
        keys = np.array([_key_of(k) == key and k.device == device for k in trace.kinds])
        # An operation may be several kernels: the first one counts.
        first = kind[np.flatnonzero(keys[kind])[:1]]
        marks = start[np.isin(kind, _same_kernel(trace, first, keys))]
        if not len(marks):
            return []
        begins, last = (
            [float(t) for t in marks],
            _end_of_last(_names(trace)[kind], start, end, marks),
        )
    cuts = []
    for index, (begin, until) in enumerate(zip(begins, [*begins[1:], last], strict=True)):
        compiled = bool(
            np.any((trace.compilations[:, 0] < until) & (trace.compilations[:, 1] > begin))
        )
        cuts.append(Cut(device, index, begin, until, compiled, True))
    return cuts


def _same_kernel(trace: Trace, first: np.ndarray, keys: np.ndarray) -> list[int]:
    """Returns the kinds of a key operation with the kernel of the first one.

    A recompiled program has another number but the same names.
    """
    names = {trace.kinds[n].kernel for n in first}
    return [int(n) for n in np.flatnonzero(keys) if trace.kinds[n].kernel in names]


def _names(trace: Trace) -> np.ndarray:
    """Numbers the names of the kinds; recompiled programs share names."""
    numbers: dict[_Key, int] = {}
    return np.array([numbers.setdefault(_key_of(k), len(numbers)) for k in trace.kinds])


def _end_of_last(name: np.ndarray, start: np.ndarray, end: np.ndarray, marks: np.ndarray) -> float:
    """Returns the end of the last operation that earlier iterations also had."""
    within = start >= marks[-1]
    if len(marks) > 1:
        before = np.unique(name[(start >= marks[0]) & ~within])
        within &= np.isin(name, before)
    return float(end[within].max())


def _counted(
    cuts: Sequence[Cut], iter_start: int | None, iter_stop: int | None
) -> tuple[set[int], list[str]]:
    """Returns the numbers of the iterations that count, and notes."""
    numbers = sorted({cut.index for cut in cuts})
    notes = []
    if iter_start is not None or iter_stop is not None:
        first, last = iter_start or 0, numbers[-1] if iter_stop is None else iter_stop
        chosen = {n for n in numbers if first <= n <= last}
        if chosen:
            if last > numbers[-1]:
                notes.append(f"there is no iteration {last}: the last one is {numbers[-1]}")
            return chosen, notes
        asked = f"{first} on" if iter_stop is None else f"{first} to {iter_stop}"
        notes.append(
            f"there is no iteration from {asked}: the trace has 0 to {numbers[-1]}; "
            "--iter-start and --iter-stop are ignored"
        )
    compiled = {cut.index for cut in cuts if cut.compiled}
    if len(numbers) < _WARMS_UP:
        return set(numbers) - compiled or set(numbers), notes
    rest = set(numbers[1:])
    steady = rest - compiled
    return steady if 2 * len(steady) >= len(rest) else rest, notes
