"""Prints a profile: the summary, the most expensive rows of each table, advice and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from duotone.comparing.comparison_view import duration
from duotone.errors import plural
from duotone.ops.jax import DOTS
from duotone.profiling.profile_record import (
    DtypeRow,
    KernelRow,
    OperationRow,
    ProfileRecord,
    ScopeRow,
)
from duotone.text.columns import columns
from duotone.text.lines import Lines
from duotone.text.numbers import amount
from duotone.text.source_lines import short_source

_MOST = 8
"""The most rows of a printed table."""
_LEAST_SHARE = 0.005


class ProfileView(Lines):
    """A profile as a rich renderable."""

    widest = 80

    def __init__(self, record: ProfileRecord, folder: Path | None = None) -> None:
        self._record = record
        self._folder = folder

    def _lines(self, width: int) -> Iterator[str]:
        record = self._record
        yield from _summary(record)
        cores = record.summary.platform == "GPU"
        if record.operations:
            yield from _operations(record, width, cores)
            yield from _kernels(record, width, cores)
            yield from _scopes(record, width, cores)
            yield from _dtypes(record, width, cores)
        for title, sentences in (("advice", record.advice), ("notes", record.notes)):
            if sentences:
                yield ""
                yield title
            yield from (f"- {sentence}" for sentence in sentences)
        if self._folder is not None:
            yield ""
            yield f"all tables: {self._folder}/profile.json, profile.sqlite and *.csv"
            if record.summary.platform:
                yield f"the trace: tensorboard --logdir {self._folder}"


def _summary(record: ProfileRecord) -> Iterator[str]:
    seen = record.summary
    if not seen.platform:
        yield "profile: nothing ran on a device"
        return
    devices = f"{seen.devices} devices" if seen.devices > 1 else "1 device"
    yield f"profile: {seen.platform}, {devices} ({seen.versions or 'versions not known'})"
    by = f" by {seen.key_node}" if seen.key_node else ""
    yield f"{'iterations':<14}{seen.counted} of {seen.iterations} counted{by}"
    yield f"{'wall':<14}{duration(seen.wall_seconds)} per iteration"
    yield f"{'device idle':<14}{seen.idle:.1%}"
    if seen.platform == "GPU":
        yield f"{'Tensor Cores':<14}{_efficiency(record)}"
    if seen.flops and seen.wall_seconds:
        rate = amount(seen.flops / seen.wall_seconds, "FLOP/s")
        yield f"{'dots':<14}{amount(seen.flops, 'FLOP')} per iteration and device, {rate}"
    if seen.compilations:
        times = plural(seen.compilations, "time")
        yield f"{'compiled':<14}{times}, {duration(seen.compile_seconds)}"


def _efficiency(record: ProfileRecord) -> str:
    seen = record.summary
    eligible, unknown = seen.eligible_seconds or 0.0, seen.unknown_seconds or 0.0
    if not eligible:
        return "no operation that they could compute is known"
    share = f" ({eligible / seen.busy_seconds:.0%} of the busy time)" if seen.busy_seconds else ""
    rest = f"; {unknown / eligible:.0%} not known" if unknown else ""
    if seen.tensor_core_efficiency is None:
        return f"not known for any eligible kernel{share}"
    return f"{seen.tensor_core_efficiency:.0%} of the eligible time{share}{rest}"


def _head(title: str, width: int, cores: bool, *more: tuple[str, int]) -> Iterator[str]:
    yield ""
    yield columns(
        width,
        (title, 0),
        ("share", -6),
        ("time", -8),
        ("calls", -7),
        *_last(cores, *more),
        is_head=True,
    )


def _last(cores: bool, *more: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    return (*more, ("cores", -5)) if cores and len(more) < 2 else more


def _row(
    width: int,
    name: str,
    row: OperationRow | KernelRow | ScopeRow | DtypeRow,
    cores: str | None,
    *more: tuple[str, int],
) -> str:
    cells = (*more, (cores, -5)) if cores is not None else more
    return columns(
        width,
        (name, 0),
        (f"{row.share:.1%}", -6),
        (duration(row.seconds), -8),
        (str(row.calls), -7),
        *cells,
    )


def _operations(record: ProfileRecord, width: int, cores: bool) -> Iterator[str]:
    yield from _head("operations", width, cores, ("dtype", 14))
    rows = record.operations
    for row in rows[:_MOST]:
        primitive = row.primitive if row.primitive in DOTS or not row.flops else row.kind
        name = "/".join(filter(None, (row.scope, primitive))) or row.operation
        where = f" {short_source(row.source)}" if row.source else ""
        used = _used(row.tensor_core_seconds, row.unknown_seconds, row.seconds, row.eligible)
        yield _row(width, name + where, row, used if cores else None, (row.dtype, 14))
    yield from _rest(len(rows))


def _used(inside: float | None, unknown: float | None, seconds: float, eligible: bool) -> str:
    """Formats the share of an eligible operation's time in kernels that use Tensor Cores."""
    if not eligible or not seconds:
        return ""
    return "?" if unknown and not inside else f"{(inside or 0.0) / seconds:.0%}"


def _kernels(record: ProfileRecord, width: int, cores: bool) -> Iterator[str]:
    yield from _head("kernels", width, cores)
    says = {"yes": "yes", "no": "", "unknown": "?"}
    for row in record.kernels[:_MOST]:
        used = says.get(row.tensor_cores or "", "")
        if row.tensor_cores == "no" and row.eligible_seconds:
            used = "no"
        yield _row(width, row.kernel, row, used if cores else None)
    yield from _rest(len(record.kernels))


def _scopes(record: ProfileRecord, width: int, cores: bool) -> Iterator[str]:
    rows = [row for row in record.scopes if row.share >= _LEAST_SHARE]
    if not any(row.scope for row in rows):
        return
    yield from _head("scopes", width, cores)
    chosen = _outer(rows)
    for row in chosen:
        name = f"{'  ' * (row.depth - 1)}{row.scope.rpartition('/')[2] or '(no scope)'}"
        used = _share(row.tensor_core_seconds, row.eligible_seconds)
        yield _row(width, name, row, used if cores else None)
    yield from _rest(len(record.scopes), len(chosen))


def _outer(rows: Sequence[ScopeRow]) -> list[ScopeRow]:
    """Returns the outermost scopes, to the greatest depth that fits."""
    most = 2 * _MOST
    for depth in range(max(row.depth for row in rows), 0, -1):
        shown = [row for row in rows if row.depth <= depth]
        if len(shown) <= most:
            return shown
    return [row for row in rows if row.depth <= 1][:most]


def _dtypes(record: ProfileRecord, width: int, cores: bool) -> Iterator[str]:
    yield from _head("dtypes", width, cores)
    for row in record.dtypes[:_MOST]:
        used = _share(row.tensor_core_seconds, row.eligible_seconds)
        yield _row(width, row.dtype or "(no program)", row, used if cores else None)
    yield from _rest(len(record.dtypes))


def _share(part: float | None, whole: float | None) -> str:
    return f"{(part or 0.0) / whole:.0%}" if whole else ""


def _rest(count: int, shown: int = _MOST) -> Iterator[str]:
    if count > shown:
        yield f"… {count - shown} more"
