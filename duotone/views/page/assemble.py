"""Puts the page together: template, style, script, and the JSON that the script draws.

The JSON stands in a ``<script>`` of its own, in ASCII, with every ``<``, ``>`` and ``&`` escaped:
no name of the user's can end it. The script writes texts as texts, never as HTML, and the page
forbids itself to load anything.

Who calls this: :meth:`duotone.Explanation.to_html`, :func:`duotone.report`. What goes wrong: a
finding or a curve that is not in the form that :class:`Sections` says.
"""

from __future__ import annotations

import functools
import json
import string
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from os import PathLike
from typing import Any, TypedDict, TypeVar, Unpack

from duotone._version import __version__
from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.graph.blame import BlameRecord
from duotone.graph.record import Record
from duotone.targets.advice import AdviceRecord
from duotone.targets.comparison import SideBySide
from duotone.views.page.curves import curves_of
from duotone.views.page.program import program_data
from duotone.views.page.tables import advice_section, blame_section, comparison_section

T = TypeVar("T")
_SCRIPTS = ("data.js", "sections.js", "graph.js", "operations.js")
"""In the order in which they stand in the page: what a file uses comes before it."""
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


class Sections(TypedDict, total=False):
    """The parts of a report page that are there if they are given.

    Attributes:
        title: of the page.
        about: a line below it.
        comparison: of :func:`duotone.compare`.
        blame: of :func:`duotone.blame`.
        advice: of :func:`duotone.advise`; or findings, texts by ``"title"``, ``"where"``,
            ``"cost"`` and ``"remedy"``, of which only the first is needed.
        history: curves of a training: by name numbers, or pairs of step and number; or a CSV file
            with a column for each curve and perhaps one named ``step``.
    """

    title: str
    about: str
    comparison: SideBySide | None
    blame: BlameRecord | None
    advice: AdviceRecord | Sequence[Mapping[str, str]] | None
    history: Mapping[str, Any] | str | PathLike[str] | None


def make_page(record: Record, **sections: Unpack[Sections]) -> str:
    """The report page of a record.

    Args:
        record: the painted program.
        **sections: see :class:`Sections`.

    Returns:
        HTML, complete; the same for the same arguments.

    Raises:
        ArgumentError, ArgumentTypeError: a section is unknown or not in its form.
    """
    unknown = sorted(set(sections) - set(Sections.__annotations__))
    if unknown:
        known = ", ".join(Sections.__annotations__)
        raise ArgumentError(f"to_html: there is no {', '.join(unknown)}; there are {known}")
    history = sections.get("history")
    data = {
        "version": __version__,
        "title": str(sections.get("title") or "duotone report"),
        "about": str(sections.get("about") or ""),
        **program_data(record),
        "sections": list(_sections(sections)),
        "curves": [] if history is None else curves_of(history),
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
    script = "".join(map(_file, _SCRIPTS))
    return _template().substitute(style=_file("page.css"), script=script, data=text)


def _sections(given: Sections) -> Iterator[dict[str, Any]]:
    advice = given.get("advice")
    if advice is not None:
        yield advice_section(advice)
    comparison = _checked("comparison", given.get("comparison"), SideBySide, "duotone.compare")
    if comparison is not None:
        yield comparison_section(comparison)
    blame = _checked("blame", given.get("blame"), BlameRecord, "duotone.blame")
    if blame is not None:
        yield blame_section(blame)


def _checked(name: str, given: T | None, kind: type[T], maker: str) -> T | None:
    if given is not None and not isinstance(given, kind):
        raise ArgumentTypeError(f"report: {name} is {shown(given)}; pass what {maker} returned")
    return given


@functools.cache
def _template() -> string.Template:
    return string.Template(_file("page.html"))


@functools.cache
def _file(name: str) -> str:
    return resources.files("duotone.views.page").joinpath(name).read_text("utf-8")
