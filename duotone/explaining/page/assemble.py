"""Assembles the page from template, style, script, and the JSON that the script draws.

The JSON is ASCII in a separate ``<script>``, with every ``<``, ``>`` and ``&`` escaped, so no
name of the user can end it. The script inserts text as text, never as HTML. The page's content
security policy forbids it to load anything.
"""

from __future__ import annotations

import functools
import json
import string
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from os import PathLike
from typing import Any, TypedDict, Unpack

from duotone._checks import check_string
from duotone._version import __version__
from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.explaining.page.curves import curves_of
from duotone.explaining.page.program import program_data
from duotone.explaining.page.tables import Paged, findings_section
from duotone.precision.record import Record

_SCRIPTS = ("data.js", "sections.js", "graph.js", "operations.js")
"""The scripts in dependency order."""
_RECORDS = {"advice": "duotone.advise", "comparison": "duotone.compare", "blame": "duotone.blame"}
"""Records that are sections, in their order in the page, and the functions that return them."""
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


class Sections(TypedDict, total=False):
    """The optional parts of a report page.

    Attributes:
        title: the title of the page.
        about: a line below the title.
        comparison: the result of :func:`duotone.compare`.
        blame: the result of :func:`duotone.blame`.
        advice: the result of :func:`duotone.advise`; or a list of findings, dicts of texts by
            ``"title"`` and optionally ``"where"``, ``"cost"`` and ``"remedy"``.
        history: curves of a training: a dict from names to numbers or to pairs of step and number;
            or a CSV file with a column for each curve and optionally one named ``step``.
    """

    title: str
    about: str
    comparison: Paged | None
    blame: Paged | None
    advice: Paged | Sequence[Mapping[str, str]] | None
    history: Mapping[str, Any] | str | PathLike[str] | None


def make_page(record: Record, **sections: Unpack[Sections]) -> str:
    """Makes the report page of a record.

    Returns:
        A complete HTML file, the same for the same arguments.

    Raises:
        ArgumentError, ArgumentTypeError: a section is unknown or not in its form.
    """
    unknown = sorted(set(sections) - set(Sections.__annotations__))
    if unknown:
        known = ", ".join(Sections.__annotations__)
        raise ArgumentError(f"to_html: there is no {', '.join(unknown)}; there are {known}")
    for name in ("title", "about"):
        if sections.get(name) is not None:
            check_string("report", name, sections.get(name))
    history = sections.get("history")
    data = {
        "version": __version__,
        "title": sections.get("title") or "duotone report",
        "about": sections.get("about") or "",
        **program_data(record),
        "sections": list(_sections(sections)),
        "curves": [] if history is None else curves_of(history),
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
    script = "".join(map(_file, _SCRIPTS))
    return _template().substitute(style=_file("page.css"), script=script, data=text)


def _sections(given: Sections) -> Iterator[dict[str, Any]]:
    for name, maker in _RECORDS.items():
        record: Any = given.get(name)
        if record is None:
            continue
        made = record.page_section() if hasattr(record, "page_section") else None
        if made is None and name == "advice":
            made = findings_section(record)
        if made is None or made["id"] != name:
            raise ArgumentTypeError(
                f"report: {name} is {shown(record)}; pass what {maker} returned"
            )
        yield made


@functools.cache
def _template() -> string.Template:
    return string.Template(_file("page.html"))


@functools.cache
def _file(name: str) -> str:
    return resources.files("duotone.explaining.page").joinpath(name).read_text("utf-8")
