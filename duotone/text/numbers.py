"""Formats numbers and cells of tables."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(number: float, unit: str = "") -> str:
    """Formats a number with three digits and a metric prefix.

    Example:
        >>> amount(26_300_000_000, "B")
        '26.3 GB'
    """
    for size, prefix in _UNITS:
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def add_row(view: Table, *cells: str | Text) -> None:
    """Adds a row of literal strings.

    Rich parses strings in a table as markup: a scope ``layer[i]`` would become ``layer``, and
    ``layer[/i]`` would be an error.
    """
    view.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def json_number(value: float) -> float | str:
    """Returns a number as JSON, or ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
