"""Makes the tables of a profile from sums over the counted iterations.

Operations on a CPU may overlap, so the sum of their times may exceed the wall time. The busy
time of a device counts an overlap once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from duotone.profiling.profile_record import (
    DtypeRow,
    IterationRow,
    KernelRow,
    OperationRow,
    ProfileRecord,
    ProfileSummary,
    ScopeRow,
)
from duotone.profiling.programs import Facts
from duotone.profiling.time_sums import NANO, Events, Sum, events_of, sums_of
from duotone.profiling.trace_events import Trace
from duotone.profiling.training_iterations import Cut, Iterations

_NUMBER = re.compile(r"(\.\d+)+$")
_SAYS = {True: "yes", False: "no", None: "unknown"}


def tabulate(
    trace: Trace, facts: Mapping[int, Facts], iterations: Iterations, notes: Sequence[str] = ()
) -> tuple[ProfileRecord, tuple[Sum, ...]]:
    """Makes all tables.

    Returns:
        The record without advice, and the sums of its tables.
    """
    events = events_of(trace, facts)
    rows = tuple(_iteration(events, cut) for cut in iterations.cuts)
    sums = tuple(sums_of(events, iterations))
    has_cores = trace.platform == "GPU"
    record = ProfileRecord(
        summary=_summary(trace, iterations, rows, sums),
        iterations=rows,
        operations=tuple(_operations(sums, has_cores)),
        kernels=tuple(_kernels(sums, has_cores)),
        scopes=tuple(_scopes(sums, has_cores)),
        dtypes=tuple(_dtypes(sums, has_cores)),
        notes=(*trace.notes, *notes, *iterations.notes),
    )
    return record, sums


def _iteration(events: Events, cut: Cut) -> IterationRow:
    lane, count = events.lanes[cut.device], len(events.trace.kinds)
    began = lane.within(cut)
    by_kind = np.bincount(lane.kind[began], lane.seconds[began], count)
    chosen = map(int, np.flatnonzero(events.eligible & (by_kind > 0)))
    cores = _cores((by_kind[n], events.uses[n]) for n in chosen)
    seconds, busy = (cut.end - cut.start) * NANO, lane.busy(cut)
    return IterationRow(
        device=cut.device,
        iteration=cut.index,
        start=(cut.start - float(events.trace.start[0])) * NANO,
        seconds=seconds,
        busy_seconds=busy,
        idle=max(1 - busy / seconds, 0.0) if seconds else 0.0,
        kernels=began.stop - began.start,
        compiled=cut.compiled,
        counted=cut.counted,
        **cores.columns(events.trace.platform == "GPU"),
    )


class _CoreColumns(TypedDict):
    """The three columns on Tensor Cores; ``None`` on devices without them."""

    eligible_seconds: float | None
    tensor_core_seconds: float | None
    unknown_seconds: float | None


class _Cores(NamedTuple):
    """Seconds in eligible operations; the parts with Tensor Cores, and where that is unknown."""

    eligible: float
    used: float
    unknown: float

    def columns(self, has_cores: bool, over: int = 1) -> _CoreColumns:
        """Returns the columns, divided by a number of iterations."""
        return {
            "eligible_seconds": self.eligible / over if has_cores else None,
            "tensor_core_seconds": self.used / over if has_cores else None,
            "unknown_seconds": self.unknown / over if has_cores else None,
        }


def _cores(times: Iterable[tuple[float, bool | None]]) -> _Cores:
    """Adds up pairs of the time of an eligible kernel and whether it uses Tensor Cores."""
    eligible_seconds = used = unknown = 0.0
    for seconds, uses in times:
        eligible_seconds += float(seconds)
        used += float(seconds) if uses else 0.0
        unknown += float(seconds) if uses is None else 0.0
    return _Cores(eligible_seconds, used, unknown)


def _summary(
    trace: Trace, iterations: Iterations, rows: Sequence[IterationRow], sums: Sequence[Sum]
) -> ProfileSummary:
    counted = [row for row in rows if row.counted]
    compile_seconds = float(np.sum(trace.compilations[:, 1] - trace.compilations[:, 0])) * NANO
    versions = ", ".join(
        f"{name.removesuffix('_version')} {value}" for name, value in sorted(trace.versions.items())
    )
    summary = ProfileSummary(
        platform=trace.platform,
        devices=len({kind.device for kind in trace.kinds}),
        key_node=iterations.key,
        iterations=len({row.iteration for row in rows}),
        counted=len({row.iteration for row in counted}),
        compilations=len(trace.compilations),
        compile_seconds=compile_seconds,
        versions=versions,
    )
    if not counted:
        return summary
    wall = sum(row.seconds for row in counted)
    busy = sum(row.busy_seconds for row in counted)
    flops = sum(s.fact.flops * s.calls for s in sums if s.fact)
    summary = dataclasses.replace(
        summary,
        wall_seconds=wall / len(counted),
        busy_seconds=busy / len(counted),
        idle=max(1 - busy / wall, 0.0) if wall else 0.0,
        flops=flops / len(counted),
    )
    if trace.platform != "GPU":
        return summary
    cores = _cores((s.seconds, s.uses) for s in sums if s.eligible)
    known = cores.eligible - cores.unknown
    return dataclasses.replace(
        summary,
        tensor_core_efficiency=cores.used / known if known > 0 else None,
        **cores.columns(True, len(counted)),
    )


def _grouped(
    sums: Iterable[Sum], key: Callable[[Sum], Hashable]
) -> list[tuple[Any, list[Sum], float]]:
    """Groups sums by a key and adds up their times; the most expensive group first."""
    groups: dict[Hashable, list[Sum]] = {}
    for one in sums:
        groups.setdefault(key(one), []).append(one)
    spent = [(name, group, sum(s.seconds for s in group)) for name, group in groups.items()]
    return sorted(spent, key=lambda found: -found[2])


class _Totals(TypedDict):
    """Columns of every table except that of iterations."""

    calls: int
    seconds: float
    share: float


def _totals(group: Sequence[Sum], seconds: float, all_seconds: float) -> _Totals:
    return {
        "calls": sum(s.calls for s in group),
        "seconds": seconds,
        "share": seconds / all_seconds if all_seconds else 0.0,
    }


def _flops(group: Sequence[Sum]) -> float:
    return sum(s.fact.flops * s.calls for s in group if s.fact)


def _core_columns(group: Sequence[Sum], has_cores: bool) -> _CoreColumns:
    return _cores((s.seconds, s.uses) for s in group if s.eligible).columns(has_cores)


def _all_seconds(sums: Sequence[Sum]) -> float:
    return sum(s.seconds for s in sums)


def _operations(sums: Sequence[Sum], has_cores: bool) -> Iterable[OperationRow]:
    together = _all_seconds(sums)

    def key(one: Sum) -> Hashable:
        return one.kind.module, one.kind.operation or one.kind.kernel

    for (module, operation), group, seconds in _grouped(sums, key):
        fact = next((s.fact for s in group if s.fact), None)
        cores = _core_columns(group, has_cores)
        yield OperationRow(
            module=module,
            operation=operation,
            kind=fact.kind if fact else "",
            scope=fact.scope if fact else "",
            primitive=fact.primitive if fact else "",
            source=fact.source if fact else "",
            dtype=fact.dtype if fact else "",
            flops=_flops(group),
            eligible=any(s.eligible for s in group),
            tensor_core_seconds=cores["tensor_core_seconds"],
            unknown_seconds=cores["unknown_seconds"],
            **_totals(group, seconds, together),
        )


def _kernels(sums: Sequence[Sum], has_cores: bool) -> Iterable[KernelRow]:
    together = _all_seconds(sums)

    def key(one: Sum) -> Hashable:
        name = one.kind.kernel
        return (name, one.uses) if has_cores else (_NUMBER.sub("", name), None)

    for (kernel, uses), group, seconds in _grouped(sums, key):
        yield KernelRow(
            kernel=kernel,
            operations=len({(s.kind.module, s.kind.operation) for s in group}),
            eligible_seconds=_core_columns(group, has_cores)["eligible_seconds"],
            tensor_cores=_SAYS[uses] if has_cores else None,
            **_totals(group, seconds, together),
        )


def _scopes(sums: Sequence[Sum], has_cores: bool) -> Iterable[ScopeRow]:
    """Yields every scope after its enclosing scope."""
    together = _all_seconds(sums)
    groups: dict[str, list[Sum]] = {}
    for one in sums:
        scope = one.fact.scope if one.fact else ""
        names = scope.split("/")
        for depth in range(1, len(names) + 1):
            groups.setdefault("/".join(names[:depth]), []).append(one)
    spent = {scope: _all_seconds(group) for scope, group in groups.items()}

    def order(scope: str) -> list[tuple[float, str]]:
        names = scope.split("/")
        around = ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]
        return [(-spent[name], name) for name in around]

    for scope in sorted(groups, key=order):
        group = groups[scope]
        yield ScopeRow(
            scope=scope,
            depth=len(scope.split("/")) if scope else 0,
            flops=_flops(group),
            **_totals(group, spent[scope], together),
            **_core_columns(group, has_cores),
        )


def _dtypes(sums: Sequence[Sum], has_cores: bool) -> Iterable[DtypeRow]:
    together = _all_seconds(sums)
    for dtype, group, seconds in _grouped(sums, lambda one: one.fact.dtype if one.fact else ""):
        yield DtypeRow(
            dtype=dtype,
            flops=_flops(group),
            **_totals(group, seconds, together),
            **_core_columns(group, has_cores),
        )
