"""Adds up events by kind with array operations, so that tables have few rows.

An operation that only runs others (a loop, a branch) counts only if the trace has no event
inside of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from duotone.profiling.programs import Fact, Facts, fact_of, is_container_name
from duotone.profiling.tensor_cores import eligible, uses_tensor_cores
from duotone.profiling.trace_events import EventKind, Trace
from duotone.profiling.training_iterations import Cut, Iterations

NANO = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """The sum of all events of one kind, in counted iterations.

    Attributes:
        kind: the kind.
        fact: the fact of its operation, if known.
        calls: how many events there are.
        seconds: the time of all events.
        eligible: whether Tensor Cores could compute it.
        uses: whether its kernel uses Tensor Cores; ``None`` if not known.
    """

    kind: EventKind
    fact: Fact | None
    calls: int
    seconds: float
    eligible: bool
    uses: bool | None


class Lane:
    """The events of one device by time, without loops and branches, and when it was busy.

    Attributes:
        kind: the kind of each event.
        start: the start of each event in nanoseconds, ascending.
        seconds: the time of each event.
    """

    def __init__(self, trace: Trace, chosen: np.ndarray) -> None:
        self.kind, self.start = trace.kind[chosen], trace.start[chosen]
        end = trace.end[chosen]
        self.seconds = (end - self.start) * NANO
        until = np.maximum.accumulate(end) if len(end) else end
        opens = np.flatnonzero(np.append(True, self.start[1:] > until[:-1])) if len(end) else []
        self._begin = self.start[opens]
        self._end = until[np.append(opens[1:], len(until)).astype(int) - 1] if len(end) else end
        self._before = np.append(0.0, np.cumsum(self._end - self._begin))

    def within(self, cut: Cut) -> slice:
        """Returns the range of the events that began in an iteration."""
        first, stop = np.searchsorted(self.start, [cut.start, cut.end])
        return slice(int(first), int(stop))

    def busy(self, cut: Cut) -> float:
        """Returns the seconds of an iteration in which anything ran."""
        return (self._busy_until(cut.end) - self._busy_until(cut.start)) * NANO

    def _busy_until(self, time: float) -> float:
        count = int(np.searchsorted(self._begin, time))
        beyond = max(self._end[count - 1] - time, 0.0) if count else 0.0
        return float(self._before[count] - beyond)


@dataclasses.dataclass(frozen=True, slots=True)
class Events:
    """The events of all devices, and facts about their kinds."""

    trace: Trace
    lanes: Mapping[str, Lane]
    facts: Sequence[Fact | None]
    eligible: np.ndarray
    uses: Sequence[bool | None]


def events_of(trace: Trace, facts: Mapping[int, Facts]) -> Events:
    """Sorts the events of a trace by device."""
    known = [fact_of(kind, facts) for kind in trace.kinds]
    pairs = list(zip(trace.kinds, known, strict=True))
    containers = [f.is_container if f else is_container_name(k.operation) for k, f in pairs]
    return Events(
        trace=trace,
        lanes=dict(_lanes(trace, np.array(containers, bool))),
        facts=known,
        eligible=np.array([eligible(fact) for fact in known], bool),
        uses=[uses_tensor_cores(kind.kernel, fact) for kind, fact in pairs],
    )


def _lanes(trace: Trace, is_container: np.ndarray) -> Iterable[tuple[str, Lane]]:
    """Yields each device with its events, without loops and branches that have events inside."""
    devices = sorted({kind.device for kind in trace.kinds})
    number = np.array([devices.index(kind.device) for kind in trace.kinds])
    for index, device in enumerate(devices):
        here = (number == index)[trace.kind]
        leaf = here & ~is_container[trace.kind]
        around = np.flatnonzero(here & is_container[trace.kind])
        begins = trace.start[leaf]
        first = np.searchsorted(begins, trace.start[around])
        stop = np.searchsorted(begins, trace.end[around])
        leaf[around[first == stop]] = True
        yield device, Lane(trace, leaf)


def sums_of(events: Events, iterations: Iterations) -> Iterable[Sum]:
    """Adds up the counted events by kind, the most expensive first."""
    count = len(events.trace.kinds)
    calls, seconds = np.zeros(count, int), np.zeros(count)
    for cut in iterations.cuts:
        if cut.counted:
            lane = events.lanes[cut.device]
            began = lane.within(cut)
            calls += np.bincount(lane.kind[began], minlength=count)
            seconds += np.bincount(lane.kind[began], lane.seconds[began], count)
    for n in np.argsort(-seconds, kind="stable"):
        if calls[n]:
            yield Sum(
                events.trace.kinds[n],
                events.facts[n],
                int(calls[n]),
                float(seconds[n]),
                bool(events.eligible[n]),
                events.uses[n],
            )
