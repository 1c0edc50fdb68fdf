"""Measured ranges as a table for a terminal, 80 columns wide."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from duotone.graph.graph import HALF_TYPES
from duotone.precision.ranges.refine import MOSTLY_SMALL
from duotone.text.columns import plain
from duotone.text.numbers import add_row

if TYPE_CHECKING:
    from duotone.policy.calibration import ValueRange

_FLOAT16 = HALF_TYPES["float16"]
_STYLE = {"overflows": "red", "underflows": "yellow"}
_WIDTH = 80
_NAME = 26
"""The width of the names in a table of 80 columns."""


def mark(value: ValueRange) -> str:
    """Returns ``"overflows"`` if the largest magnitude exceeds float16.

    Returns ``"underflows"`` if more than half of the elements are below its normal numbers, else an
    empty text.
    """
    if value.largest > _FLOAT16.largest:
        return "overflows"
    return "underflows" if value.small > MOSTLY_SMALL else ""


def table(title: str, values: Sequence[ValueRange], width: int = _WIDTH) -> Group:
    """Returns measured ranges as a Rich renderable: a title, and a row for each value in order."""
    view = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    view.add_column("value", overflow="fold", max_width=max(_NAME, width - _WIDTH + _NAME))
    view.add_column("shape", overflow="fold")
    for name in ("smallest", "largest", "tiny", "huge"):
        view.add_column(name, justify="right", no_wrap=True)
    view.add_column("float16", no_wrap=True)
    for value in values:
        add_row(
            view,
            _broken(value.name, max(_NAME, width - _WIDTH + _NAME)),
            "x".join(map(str, value.shape)),
            f"{value.smallest:.2g}",
            f"{value.largest:.3g}",
            _share(value.small),
            _share(value.over),
            Text(mark(value), style=_STYLE.get(mark(value), "")),
        )
    marks = [mark(value) for value in values]
    total = ", ".join(f"{marks.count(name)} of {len(marks)} values {name[:-1]}" for name in _STYLE)
    legend = (
        f"{total} in float16.\ntiny and huge: the shares of nonzero elements below "
        f"{_FLOAT16.smallest_normal:.2g} and beyond {_FLOAT16.largest:.0f}."
    )
    return Group(Text(title), view, Text(legend))


def _broken(name: str, width: int) -> str:
    """Returns a name, broken into lines at its slashes."""
    lines = [""]
    for part in name.split("/"):
        begun = f"{lines[-1]}/{part}" if lines[-1] else part
        if len(begun) < width or not lines[-1]:
            lines[-1] = begun
        else:
            lines[-1] += "/"
            lines.append(part)
    return "\n".join(lines)


def _share(share: float) -> str:
    """Returns a share in percent; a dot for zero, and never 0 for a share above zero."""
    if share == 0.0:
        return "."
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def render(title: str, values: Sequence[ValueRange]) -> str:
    """Returns :func:`table` as plain text, as wide as the terminal (at least 80 columns)."""
    width = max(shutil.get_terminal_size().columns, _WIDTH)
    return "\n".join(map(str.rstrip, plain(table(title, values, width), width).splitlines()))
