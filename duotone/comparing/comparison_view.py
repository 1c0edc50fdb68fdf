"""Prints a comparison: a table for each target, its most expensive kernels, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duotone.comparing.comparison import DUOTONE, ComparisonRow, SideBySide
from duotone.cost.compiled_record import Kernel
from duotone.text.columns import columns, ending
from duotone.text.lines import Lines
from duotone.text.numbers import amount
from duotone.text.source_lines import short_source

_LEAST = 1e-9
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (_LEAST, "ns"))


class ComparisonView(Lines):
    """A comparison as a rich renderable."""

    widest = 80

    def __init__(self, seen: SideBySide) -> None:
        self._seen = seen

    def _lines(self, width: int) -> Iterator[str]:
        yield f"{self._seen.function}: float32, as written and with duotone"
        for target in self._seen.targets:
            yield ""
            yield from _table([row for row in self._seen.rows if row.target == target], width)
        for note in self._seen.notes:
            yield ""
            yield note


def _table(rows: Sequence[ComparisonRow], width: int) -> Iterator[str]:
    """Yields the forms on one target, and the most expensive kernels of the last form."""
    first = rows[0]
    several = f" for {first.devices} devices; of each:" if first.devices > 1 else ""
    made = "compiled" if first.exact else "estimated"
    yield f"{first.target} ({first.device}), {made}{several}"
    bounds = ("", "") if first.exact else ("least", "most")
    heads = ("speed-up", "bytes", "memory", "half", "bounded by")
    yield _cells(width, "", bounds[0], "time", bounds[1], *heads, is_head=True)
    for row in rows:
        yield _row(row, width)
    yield from _sent(rows, width)
    known = [row for row in rows if row.largest_batch is not None and not row.same_as]
    if known:
        batches = ", ".join(f"{row.form} {row.largest_batch}" for row in known)
        yield f"largest batch, about: {batches}"
    mixed = next(row for row in rows if row.form == DUOTONE)
    half = f" ({mixed.half})" if mixed.half else ", which finds no half type that is fast here"
    if not mixed.most_expensive:
        return
    yield f"most expensive kernels with duotone{half}"
    for kernel in mixed.most_expensive:
        yield _kernel(kernel, mixed, width)


def _row(row: ComparisonRow, width: int) -> str:
    if row.same_as:
        return columns(width, (row.form, 10), (f"the same as {row.same_as}", 0))
    cells = cells_of(row)
    cells["memory"] += "!" if row.fits is False else ""
    return _cells(width, row.form, *cells.values())


def cells_of(row: ComparisonRow) -> dict[str, str]:
    """Returns the figures of a row in words, by the name of the column."""
    by = row.bounded_by
    return {
        "least": duration(row.least_seconds or 0.0),
        "time": "?" if row.doubt else duration(row.seconds),
        "most": duration(row.most_seconds or 0.0),
        "speed-up": "" if row.speedup is None else f"{row.speedup:.2f}x",
        "bytes": "?" if row.doubt else amount(row.bytes, "B"),
        "memory": amount(row.memory, "B"),
        "FLOPs in half": f"{row.half_flops_share:.0%}" if row.flops else "",
        "bounded by": f"{by} {row.time_by[by]:.0%}" if by else "",
    }


def _sent(rows: Sequence[ComparisonRow], width: int) -> Iterator[str]:
    """Yields the bytes that a device sends in each form, by kind of collective."""
    if not any(row.sent for row in rows):
        return
    yield columns(width, ("", 10), ("sends", -8), is_head=True)
    for row in rows:
        if not row.same_as:
            kinds = sorted(row.sent.items(), key=lambda kind: -kind[1])
            by_kind = ", ".join(f"{kind} {amount(sent, 'B')}" for kind, sent in kinds)
            total = amount(sum(row.sent.values()), "B")
            yield columns(width, (row.form, 10), (total, -8), (by_kind, 0))


def _cells(width: int, *cells: str, is_head: bool = False) -> str:
    form, least, time, most, speedup, moved, memory, half, by = cells
    return columns(
        width,
        (form, 10),
        (least, -7),
        (time, -7),
        (most, -7),
        (speedup, -8),
        (moved, -7),
        (memory, -8),
        (half, -4),
        (by, 0),
        is_head=is_head,
    )


def _kernel(kernel: Kernel, row: ComparisonRow, width: int) -> str:
    share = kernel.total_seconds / row.seconds if row.seconds else 0.0
    return columns(
        width,
        (f"{share:.0%}" if row.seconds else "", -5),
        (duration(kernel.total_seconds) or amount(kernel.total_bytes, "B"), -8),
        (f"{kernel.runs} x", -6),
        (f"{kernel.op} {kernel.dtype}".rstrip(), 28),
        (ending(short_source(kernel.source), width - 51), 0),
    )


def duration(seconds: float) -> str:
    """Formats seconds with three digits; 0 is empty.

    Example:
        >>> duration(0.00312), duration(0.0)
        ('3.12 ms', '')
    """
    if not seconds:
        return ""
    if seconds < _LEAST:
        return "<1 ns"
    size, unit = next(s for s in _SECONDS if seconds >= s[0])
    return f"{seconds / size:.3g} {unit}"
