"""Advice, comparisons and blame as sections of small tables, which the page draws alike.

A cell is a text, or ``{"text": …, "share": …}`` where a bar of that length (0 to 1) stands beside.

Who calls this: :mod:`duotone.views.page.assemble`. What goes wrong: a finding that is no mapping
of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.graph.blame import BlameRecord, Suspect
from duotone.graph.classify.rules import WORDS
from duotone.targets.advice import AdviceRecord, Finding
from duotone.targets.comparison import DUOTONE, ComparisonRow, SideBySide
from duotone.views.advice import cost_of
from duotone.views.comparison import duration
from duotone.views.sources import short_source
from duotone.views.text import amount

FINDING = ("title", "where", "cost", "remedy")
"""The keys of a finding."""


def advice_section(advice: AdviceRecord | Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Findings as a section, in the order in which they are given.

    Args:
        advice: of :func:`duotone.advise`; or of each finding texts by the keys of :data:`FINDING`,
            of which only ``"title"`` is needed.

    Raises:
        ArgumentTypeError: it is neither.
        ArgumentError: a finding has no title, or a key that is unknown.
    """
    lines: list[str] = []
    notes: Sequence[str] = ()
    if isinstance(advice, AdviceRecord):
        half = f" ({advice.half})" if advice.half else ""
        cost = duration(advice.seconds) or amount(advice.bytes, "B")
        lines.append(f"{advice.function} on {advice.target}{half}: {cost} a step, estimated")
        notes = advice.notes
        advice = [_of_advice(finding) for finding in advice.findings]
        if not advice:
            lines.append("Nothing to advise.")
    if not isinstance(advice, Iterable):
        raise ArgumentTypeError(
            f"report: advice is {shown(advice)}; pass what duotone.advise returned, or a list of "
            f"dicts of texts by {', '.join(FINDING)}"
        )
    rows = [_finding(number, finding) for number, finding in enumerate(advice, 1)]
    columns = ["", "finding", "where", "cost", "remedy"]
    tables = [_table("", columns, rows)] if rows else []
    return _section("advice", "Advice", lines=lines, tables=tables, notes=notes)


def _of_advice(f: Finding) -> dict[str, str]:
    name = f"{f.scope}/{f.operation}" if f.scope else f.operation
    more = f" and {f.count - 1} more" if f.count > 1 else ""
    where = f"{short_source(f.source)}: {name}{more}" if f.operation else ""
    title = f"{f.kind}: {f.what}"
    return {"title": title, "where": where, "cost": cost_of(f), "remedy": f.remedy}


def _finding(number: int, finding: Any) -> list[str]:
    if not isinstance(finding, Mapping):
        raise ArgumentTypeError(
            f"report: finding {number} is {shown(finding)}; pass a dict of texts by "
            f"{', '.join(FINDING)}"
        )
    unknown = ", ".join(sorted(str(key) for key in set(finding) - set(FINDING)))
    if unknown or not finding.get("title"):
        wrong = f"has {unknown}" if unknown else "has no title"
        raise ArgumentError(f"report: finding {number} {wrong}; keys are {', '.join(FINDING)}")
    return [str(number), *(str(finding.get(key, "")) for key in FINDING)]


def _section(
    name: str,
    title: str,
    *,
    lines: Sequence[str] = (),
    tables: Sequence[dict[str, Any]] = (),
    code: str = "",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "id": name,
        "title": title,
        "lines": list(lines),
        "tables": list(tables),
        "code": code,
        "notes": list(notes),
    }


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {"title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def comparison_section(seen: SideBySide) -> dict[str, Any]:
    """A comparison as a section: a table for each target, and one of its dearest kernels."""
    tables = []
    for target in seen.targets:
        rows = [row for row in seen.rows if row.target == target]
        tables += _target(rows)
    return _section(
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
    dearest = [
        [
            f"{kernel.op} {kernel.dtype}".rstrip(),
            _bar(kernel.total_seconds, mixed.seconds, duration(kernel.total_seconds)),
            f"{kernel.runs}",
            amount(kernel.total_bytes, "B"),
            short_source(kernel.source),
        ]
        for kernel in mixed.dearest
    ]
    heads = ["dearest of duotone", "time", "runs", "bytes", "source"]
    return [_table(title, columns, forms), _table("", heads, dearest)]


def _form(row: ComparisonRow, columns: Sequence[str], most: float) -> list[Any]:
    name = f"{row.form} ({row.half})" if row.half else row.form
    if row.same_as:
        return [name, f"the same as {row.same_as}", *[""] * (len(columns) - 2)]
    by = row.bounded_by
    cells = {
        "": name,
        "time": _bar(row.seconds, most, duration(row.seconds)),
        "least": duration(row.least_seconds or 0.0),
        "most": duration(row.most_seconds or 0.0),
        "speed-up": "" if row.speedup is None else f"{row.speedup:.2f}x",
        "bytes": amount(row.bytes, "B"),
        "memory": amount(row.memory, "B") + (" (does not fit)" if row.fits is False else ""),
        "FLOPs in half": f"{row.half_flops_share:.0%}" if row.flops else "",
        "bounded by": f"{by} {row.time_by[by]:.0%}" if by else "",
        "largest batch, about": "" if row.largest_batch is None else str(row.largest_batch),
        "sends": amount(sum(row.sent.values()), "B"),
    }
    return [cells[column] for column in columns]


def _bar(part: float, whole: float, text: str) -> Any:
    return {"text": text, "share": part / whole} if whole else text


def blame_section(record: BlameRecord) -> dict[str, Any]:
    """Blame as a section: the verdict, what is not finite, the pin, and what loses most."""
    tables = []
    for title, suspect in (("not finite", record.first), ("because of", record.culprit)):
        if suspect is not None:
            tables.append(_table("", [title, ""], _told(suspect, record)))
    lost = [(s, f"{s.underflow:.1%}", s.underflow) for s in record.underflows]
    largest = max((s.error for s in record.errors), default=0.0)
    errors = [(s, f"{s.error:.1e}", s.error / largest if largest else 0.0) for s in record.errors]
    tables += _ranking("0 or subnormal where float32 is normal", lost)
    tables += _ranking("error against float32, relative to its rms", errors)
    pins = "".join(f"    {pin!r},\n" for pin in record.pins)
    lines = [f"{record.verdict.value}: {record.verdict.words}"]
    if record.inputs:
        lines.append(f"not finite to begin with: {', '.join(record.inputs)}")
    if record.loss_scale is not None:
        fits = record.fitting_scale
        fits = "" if fits is None else f"; the backward pass fits at {fits:g}"
        lines.append(f"the loss scale is {record.loss_scale:g}{fits}")
    return _section(
        "blame",
        "Blame",
        lines=lines,
        tables=tables,
        code=f"policy = duotone.Policy(keep_full=[\n{pins}])" if pins else "",
        notes=[f"{record.watched:,} operations were looked at."],
    )


def _told(s: Suspect, r: BlameRecord) -> list[list[str]]:
    found = [
        ["operation", s.path],
        ["source", short_source(s.source)],
        ["stored as", f"{s.dtype}[{','.join(map(str, s.shape))}]"],
        ["cast for", s.reader],
        ["in", "the backward pass" if s.backward else "the forward pass"],
        ["iteration", "" if s.iteration is None else str(s.iteration)],
        ["in float32", f"from {s.low:.4g} to {s.high:.4g}"],
        [f"{r.half_dtype} holds", f"±{r.half_largest:.5g}"],
        ["not finite", f"{s.nonfinite:,} elements" if s.nonfinite else ""],
        ["lost", f"{s.underflow:.1%} of its elements" if s.underflow else ""],
        ["rule", f"{s.rule}: {WORDS.get(s.rule, '')}" if s.rule else ""],
    ]
    return [row for row in found if row[1]]


def _ranking(title: str, ranked: Sequence[tuple[Suspect, str, float]]) -> list[dict[str, Any]]:
    rows = [
        [
            f"{s.path} for {s.reader}" if s.reader else s.path,
            short_source(s.source),
            {"text": text, "share": share},
        ]
        for s, text, share in ranked
    ]
    return [_table("", [title, "source", ""], rows)] if rows else []
