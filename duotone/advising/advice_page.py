"""Advice as a section of the report page."""

from __future__ import annotations

from typing import Any

from duotone.advising.advice import AdviceRecord, Finding
from duotone.advising.advice_view import cost_of, heading
from duotone.explaining.page.tables import findings_section
from duotone.text.source_lines import short_source


def advice_section(advice: AdviceRecord) -> dict[str, Any]:
    """Makes the section with the findings of a record."""
    lines = [heading(advice)]
    if not advice.findings:
        lines.append("Nothing to advise.")
    return findings_section(map(_of_advice, advice.findings), lines, advice.notes)


def _of_advice(f: Finding) -> dict[str, str]:
    name, more = f.named
    where = f"{short_source(f.source)}: {name}{more}" if f.operation else ""
    title = f"{f.kind}: {f.what}"
    return {"title": title, "where": where, "cost": cost_of(f), "remedy": f.remedy}
