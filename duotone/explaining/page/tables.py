"""Sections of small tables for the page.

A cell is a text or ``{"text": …, "share": …}``, a text next to a bar of that length (0 to 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from duotone.errors import ArgumentError, ArgumentTypeError, shown

FINDING = ("title", "where", "cost", "remedy")
"""The keys of a finding."""


class Paged(Protocol):
    """A record that the page shows as a section: a comparison, blame, advice."""

    def page_section(self) -> dict[str, Any]:
        """Returns the record as a section of the page; see :func:`section`."""
        ...


def section(
    name: str,
    title: str,
    *,
    lines: Sequence[str] = (),
    tables: Sequence[dict[str, Any]] = (),
    code: str = "",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Makes a section of the page."""
    return {
        "id": name,
        "title": title,
        "lines": list(lines),
        "tables": list(tables),
        "code": code,
        "notes": list(notes),
    }


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Makes a table with a title; cells are texts or results of :func:`bar`."""
    return {"title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def bar(part: float, whole: float, text: str) -> Any:
    """Makes a cell with a bar of length ``part / whole``, or without a bar if the whole is 0."""
    return {"text": text, "share": part / whole} if whole else text


def findings_section(
    findings: Iterable[Mapping[str, str]], lines: Sequence[str] = (), notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Makes a section of findings, in the given order.

    Args:
        findings: dicts of texts by the keys of :data:`FINDING`; only ``"title"`` is required.
        lines: lines above the table.
        notes: lines below the table.

    Raises:
        ArgumentTypeError: ``findings`` is not a list of mappings.
        ArgumentError: a finding has no title, or a key that is unknown.
    """
    if not isinstance(findings, Iterable):
        raise ArgumentTypeError(
            f"report: advice is {shown(findings)}; pass what duotone.advise returned, or a list of "
            f"dicts of texts by {', '.join(FINDING)}"
        )
    rows = [_finding(number, finding) for number, finding in enumerate(findings, 1)]
    columns = ["", "finding", "where", "cost", "remedy"]
    tables = [table("", columns, rows)] if rows else []
    return section("advice", "Advice", lines=lines, tables=tables, notes=notes)


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
