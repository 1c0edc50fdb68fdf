"""A comparison as a section of the report page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duotone.comparing.comparison import DUOTONE, ComparisonRow, SideBySide
from duotone.comparing.comparison_view import cells_of, duration
from duotone.explaining.page.tables import bar, section, table
from duotone.text.numbers import amount
from duotone.text.source_lines import short_source


def comparison_section(seen: SideBySide) -> dict[str, Any]:
    """Makes the section: for each target a table of forms and one of expensive kernels."""
    tables = []
    for target in seen.targets:
        rows = [row for row in seen.rows if row.target == target]
        tables += _target(rows)
    return section(
        "comparison",
        "Comparison",
        lines=[f"{seen.function}: float32, as written and with duotone"],
        tables=tables,
        notes=seen.notes,
    )


def _target(rows: Sequence[ComparisonRow]) -> list[dict[str, Any]]:
    first = rows[0]
    made = "compiled" if first.exact else "estimated"
    several = f", each of {first.devices} devices" if first.devices > 1 else ""
    columns = ["", "time", "speed-up", "bytes", "memory", "FLOPs in half", "bounded by"]
    if not first.exact:
        columns[2:2] = ["least", "most"]
    if any(row.sent for row in rows):
        columns.append("sends")
    if any(row.largest_batch is not None for row in rows):
        columns.append("largest batch, about")
    most = max(row.seconds for row in rows)
    forms = [_form(row, columns, most) for row in rows]
    title = f"{first.target} ({first.device}), {made}{several}"
    mixed = next(row for row in rows if row.form == DUOTONE)
    most_expensive = [
        [
            f"{kernel.op} {kernel.dtype}".rstrip(),
            bar(kernel.total_seconds, mixed.seconds, duration(kernel.total_seconds)),
            f"{kernel.runs}",
            amount(kernel.total_bytes, "B"),
            short_source(kernel.source),
        ]
        for kernel in mixed.most_expensive
    ]
    heads = ["most expensive kernels with duotone", "time", "runs", "bytes", "source"]
    return [table(title, columns, forms), table("", heads, most_expensive)]


def _form(row: ComparisonRow, columns: Sequence[str], most: float) -> list[Any]:
    name = f"{row.form} ({row.half})" if row.half else row.form
    if row.same_as:
        return [name, f"the same as {row.same_as}", *[""] * (len(columns) - 2)]
    known = cells_of(row)
    cells = {
        **known,
        "": name,
        "time": bar(row.seconds, most, known["time"]),
        "memory": known["memory"] + (" (does not fit)" if row.fits is False else ""),
        "largest batch, about": "" if row.largest_batch is None else str(row.largest_batch),
        "sends": amount(sum(row.sent.values()), "B"),
    }
    return [cells[column] for column in columns]
