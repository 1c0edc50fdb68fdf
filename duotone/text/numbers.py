"""Numbers and cells of tables, as people read them."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(number: float, unit: str = "") -> str:
    """A number with three digits and a metric prefix.

    Example:
        >>> amount(26_300_000_000, "B")
        '26.3 GB'
    """
    for size, prefix in _UNITS:
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def add_row(view: Table, *cells: str | Text) -> None:
    """Adds a row whose strings are shown as they are.

    Rich reads a string of a table as markup: of a scope ``layer[i]`` only ``layer`` would be left,
    and ``layer[/i]`` would be an error.
    """
    view.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
