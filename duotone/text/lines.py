"""Views of lines that never wrap, and the records that print themselves through a view."""

from __future__ import annotations

import abc
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions
from rich.text import Text

from duotone.text.columns import Row, fitted, plain, table_html

_NARROWEST = 60
_NOTEBOOK = 100
"""The width of text in a notebook in characters; rows of a table are not cut there."""
MOST_LINES = 40
"""The most lines of a ``repr``."""


class Lines(abc.ABC):
    """A rich renderable that is lines of text.

    ``print`` shows all of them, a ``repr`` the first :data:`MOST_LINES`, a notebook tables.

    Attributes:
        widest: the most characters of a line; ``None`` for the width of the console.
    """

    widest: int | None = None

    def __str__(self) -> str:
        return plain(self)

    def __repr__(self) -> str:
        lines = str(self).splitlines()
        if len(lines) > MOST_LINES:
            rest = len(lines) - MOST_LINES + 1
            lines[MOST_LINES - 1 :] = [f"… {rest} more lines: print(…) shows all of them"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return table_html(self._lines(min(self.widest or _NOTEBOOK, _NOTEBOOK)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yields the lines, cut to the width of the console (at least 60 characters)."""
        width = max(options.max_width, _NARROWEST)
        if self.widest is not None:
            width = min(width, self.widest)
        for line in self._lines(width):
            style = line.style if isinstance(line, Row) else ""
            yield Text(fitted(line, width), style=style, no_wrap=True)

    @abc.abstractmethod
    def _lines(self, width: int) -> Iterator[str]:
        """Yields the lines for a width; longer ones are cut later."""


class Viewed(abc.ABC):
    """A record that ``print``, ``repr``, Rich and notebooks show through its view."""

    @abc.abstractmethod
    def __rich__(self) -> Lines:
        """Returns the view."""

    def __str__(self) -> str:
        return str(self.__rich__())

    def __repr__(self) -> str:
        return repr(self.__rich__())

    def _repr_html_(self) -> str:
        return self.__rich__()._repr_html_()
