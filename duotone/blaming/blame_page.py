"""Blame as a section of the report page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duotone.blaming.findings import BlameRecord, Suspect
from duotone.explaining.page.tables import section, table
from duotone.precision.rules import WORDS
from duotone.text.source_lines import short_source


def blame_section(record: BlameRecord) -> dict[str, Any]:
    """Makes the section: verdict, suspects, pin, and rankings."""
    tables = []
    for title, suspect in (("not finite", record.first), ("because of", record.culprit)):
        if suspect is not None:
            tables.append(table("", [title, ""], _suspect_rows(suspect, record)))
    lost = [(s, f"{s.underflow:.1%}", s.underflow) for s in record.underflows]
    largest = max((s.error for s in record.errors), default=0.0)
    errors = [(s, f"{s.error:.1e}", s.error / largest if largest else 0.0) for s in record.errors]
    tables += _ranking("0 or subnormal where float32 is normal", lost)
    tables += _ranking("error against float32, relative to its rms", errors)
    pins = "".join(f"    {pin!r},\n" for pin in record.pins)
    lines = [f"{record.verdict.value}: {record.verdict.words}"]
    if record.inputs:
        lines.append(f"arguments that are not finite: {', '.join(record.inputs)}")
    if record.loss_scale is not None:
        fits = record.fitting_scale
        fits = "" if fits is None else f"; the backward pass fits at {fits:g}"
        lines.append(f"the loss scale is {record.loss_scale:g}{fits}")
    return section(
        "blame",
        "Blame",
        lines=lines,
        tables=tables,
        code=f"policy = duotone.Policy(keep_full=[\n{pins}])" if pins else "",
        notes=[f"{record.watched:,} operations were compared with float32."],
    )


def _suspect_rows(s: Suspect, r: BlameRecord) -> list[list[str]]:
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
    return [table("", [title, "source", ""], rows)] if rows else []
