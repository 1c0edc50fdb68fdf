"""Sections of small tables, which the page draws alike.

A cell is a text, or ``{"text": …, "share": …}`` where a bar of that length (0 to 1) stands beside.
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
        """The record as a section of the page; see :func:`section`."""
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
    """A section of the page.

    Args:
        name: its anchor.
        title: its heading.
        lines: above the tables.
        tables: made by :func:`table`.
        code: shown to be copied.
        notes: below the tables.
    """
    return {
        "id": name,
        "title": title,
        "lines": list(lines),
        "tables": list(tables),
        "code": code,
        "notes": list(notes),
    }


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A table with a title over it; cells are texts, or bars made by :func:`bar`."""
    return {"title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def bar(part: float, whole: float, text: str) -> Any:
    """A cell with a bar as long as a part is of a whole; a text alone where the whole is 0."""
    return {"text": text, "share": part / whole} if whole else text


def findings_section(
    findings: Iterable[Mapping[str, str]], lines: Sequence[str] = (), notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Findings as a section, in the order in which they are given.

    Args:
        findings: of each, texts by the keys of :data:`FINDING`; only ``"title"`` is needed.
        lines: above the table.
        notes: below the table.

    Raises:
        ArgumentTypeError: ``findings`` is no list of mappings.
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
