"""Lines of columns that never wrap."""

from __future__ import annotations

import io
import shutil
from typing import Any

from rich.console import Console

_NOTEBOOK = 100


def columns(width: int, *cells: tuple[str, int]) -> str:
    """One line of cells, each with its width; what is too long ends in an ellipsis.

    Args:
        width: of the line.
        cells: texts and widths; a negative width aligns right, that of 0 takes what is left.

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
    return " ".join(padded).rstrip()


def fitted(text: str, width: int) -> str:
    """A text that ends in an ellipsis where it is longer than ``width``.

    Example:
        >>> fitted("reduce_window_sum", 8)
        'reduce_…'
    """
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def plain(view: Any) -> str:
    """A rich renderable as plain text, as wide as the terminal."""
    width = shutil.get_terminal_size().columns
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def html(view: Any) -> str:
    """A rich renderable as a fragment of HTML, for notebooks."""
    console = Console(file=io.StringIO(), width=_NOTEBOOK, record=True)
    console.print(view)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
