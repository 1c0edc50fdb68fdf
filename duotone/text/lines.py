"""Views of lines that never wrap, and the records that print themselves through a view."""

from __future__ import annotations

import abc
import re
import textwrap
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions
from rich.text import Text

from duotone.text.columns import Row, fitted, plain, table_html

_NARROWEST = 60
_BEGIN = re.compile(r"\s*(?:-> |- )?")
"""The indentation and the list marker of a line."""
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
        """Yields the lines; text is wrapped at the width, and rows have at least 60 characters."""
        text_width = min(options.max_width, self.widest or options.max_width)
        width = max(text_width, _NARROWEST)
        for line in self._lines(width):
            is_row = isinstance(line, Row)
            shown = fitted(line, width) if is_row else _wrapped(line, text_width)
            style = line.style if is_row else ""
            yield Text(shown, style=style, no_wrap=True, overflow="ignore")

    @abc.abstractmethod
    def _lines(self, width: int) -> Iterator[str]:
        """Yields rows for a width, and text of any length."""


def _wrapped(text: str, width: int) -> str:
    """Wraps a text below its indentation; a longer word, such as a name, stays whole.

    Example:
        >>> print(_wrapped("  - keep 'encoder/attention/*' in float32", 24))
          - keep
            'encoder/attention/*'
            in float32
    """
    found = _BEGIN.match(text)
    assert found is not None, "it matches the empty string"
    begin = found[0]
    lines = textwrap.wrap(
        text[len(begin) :],
        width,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


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
