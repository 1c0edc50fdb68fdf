"""Lines of columns that never wrap, as text and as rows of an HTML table."""

from __future__ import annotations

import html
import io
import itertools
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console


class Row(str):
    """A line of text that is a row of a table.

    Attributes:
        cells: the uncut texts and their widths; a negative width aligns right.
        is_head: whether it names the columns.
        style: the Rich style of the line.
    """

    cells: tuple[tuple[str, int], ...]
    is_head: bool
    style: str


def columns(width: int, *cells: tuple[str, int], is_head: bool = False, style: str = "") -> Row:
    """Makes a line of cells; a text that is too long ends in an ellipsis.

    Args:
        width: the width of the line in characters.
        cells: texts and widths; a negative width aligns right, a width of 0 takes the rest.
        is_head: whether the cells name the columns.
        style: the Rich style of the line.

    Example:
        >>> columns(16, ("layer_norm", 0), ("12", -4), ("deny", 4))
        'layer…   12 deny'
    """
    taken = sum(abs(size) + 1 for _, size in cells if size)
    sizes = [size or width - taken for _, size in cells]
    shown = (fitted(text, abs(size)) for (text, _), size in zip(cells, sizes, strict=True))
    padded = (
        text.rjust(-size) if size < 0 else text.ljust(size)
        for text, size in zip(shown, sizes, strict=True)
    )
    row = Row(" ".join(padded).rstrip())
    row.cells, row.is_head, row.style = cells, is_head, style
    return row


def fitted(text: str, width: int) -> str:
    """Cuts a text longer than ``width`` and ends it in an ellipsis.

    Example:
        >>> fitted("reduce_window_sum", 8)
        'reduce_…'
    """
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def ending(text: str, width: int) -> str:
    """Cuts the start of a text longer than ``width``, for names.

    Example:
        >>> ending("block_0/attention/dot_general", 15)
        '…on/dot_general'
    """
    return text if len(text) <= width else f"…{text[1 - width :]}"


def plain(view: Any, width: int | None = None) -> str:
    """Renders a rich renderable as plain text, by default in the width of the terminal."""
    width = width or shutil.get_terminal_size().columns
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(view, crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def table_html(lines: Iterable[str]) -> str:
    """Converts lines to HTML: consecutive rows become a table, other lines text.

    Example:
        >>> table_html([columns(8, ("a<b", 4))])
        '<table><tr><td style="text-align: left">a&lt;b</td></tr></table>'
    """
    parts: list[str] = []
    for is_table, group in itertools.groupby(lines, lambda line: isinstance(line, Row)):
        if is_table:
            rows = "".join(_row_html(line) for line in group if isinstance(line, Row))
            parts.append(f"<table>{rows}</table>")
        else:
            text = html.escape("\n".join(group).strip("\n"))
            parts.append(f'<div style="white-space: pre-wrap">{text}</div>' if text else "")
    return "".join(parts)


def _row_html(row: Row) -> str:
    tag = "th" if row.is_head else "td"
    style = f' style="color: {row.style}"' if row.style.isalpha() else ""
    return f"<tr{style}>{''.join(_cells_html(row, tag))}</tr>"


def _cells_html(row: Row, tag: str) -> Iterator[str]:
    for text, size in row.cells:
        indent = f"; padding-left: {len(text) - len(text.lstrip())}em" if text[:1] == " " else ""
        side = "right" if size < 0 else "left"
        text = html.escape(text.strip())
        yield f'<{tag} style="text-align: {side}{indent}">{text}</{tag}>'
