"""A record as text for a terminal.

Who calls this: ``print(duotone.explain(...))`` and the command line.
"""

from __future__ import annotations

import io
import shutil

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from duotone.graph.record import Record

_STYLE = {"half": "green", "full": "yellow"}
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(number: float, unit: str = "") -> str:
    """A number with three digits and a metric prefix.

    Example:
        >>> amount(26_300_000_000, "B")
        '26.3 GB'
    """
    for size, prefix in _UNITS:
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def add_row(view: Table, *cells: str | Text) -> None:
    """Adds a row whose strings are shown as they are.

    Rich reads a string of a table as markup: of a scope ``layer[i]`` only ``layer`` would be left,
    and ``layer[/i]`` would be an error.
    """
    view.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def table(record: Record, *, most: int | None = None) -> Group:
    """A record as a rich renderable.

    Args:
        record: the record.
        most: show the operations with the most bytes only, in program order.
    """
    rows = record.operations
    if most is not None and len(rows) > most:
        largest = sorted(rows, key=lambda o: o.bytes_full, reverse=True)[:most]
        rows = tuple(sorted(largest, key=lambda o: o.index))
    view = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("operation", "result", "paint", "rule", "scope", "source"):
        view.add_column(name, overflow="fold" if name in ("scope", "source") else "ellipsis")
    for name in ("runs", "FLOPs", "bytes", "casts"):
        view.add_column(name, justify="right")
    for o in rows:
        paint = o.paint if o.paint == o.stored else f"{o.paint}>{o.stored}"
        add_row(
            view,
            o.operation,
            f"{o.dtype}[{','.join(o.shape)}]",
            Text(paint, style=_STYLE[o.paint]),
            f"{o.rule} again" if o.recomputed else o.rule,
            o.scope,
            o.source,
            str(o.runs),
            amount(o.flops),
            amount(o.bytes, "B"),
            str(o.casts or ""),
        )
    hidden = len(record.operations) - len(rows)
    more = [Text(f"… and {hidden} operations with fewer bytes")] if hidden else []
    return Group(view, *more, Text(summary(record)))


def summary(record: Record) -> str:
    """The totals, in a few lines."""
    s = record.summary
    lines = [
        f"{s.half_dtype}: {s.operations_half} operations half, {s.operations_full} full, "
        f"{s.casts_inserted} casts; {s.allow_half} of {s.allow_total} allow operations half",
        f"FLOPs in half: {s.flops_half_share:.1%} of {amount(s.flops_half + s.flops_full)}; "
        f"operand and result bytes {amount(s.bytes_half + s.bytes_full, 'B')}, "
        f"{amount(s.bytes_original, 'B')} in float32",
    ]
    if s.rewritten:
        lines.append(
            f"{s.rewritten} operations stand in programs that are rewritten inside of this one, "
            "and run as shown; the others are shown as autocast around it all would paint them"
        )
    if s.recomputed:
        lines.append(f'calculated again for later readers ("again"): {s.recomputed} operations')
    if s.unlisted:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(s.unlisted.items()))
        lines.append(f"left alone, on no list: {names}")
    return "\n".join(lines)


def render(record: Record) -> str:
    """A record as plain text, as wide as the terminal (at least 100 columns)."""
    width = max(shutil.get_terminal_size().columns, 100)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table(record))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")
