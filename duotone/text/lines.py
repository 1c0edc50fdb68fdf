"""Views of lines that never wrap, and the records that print themselves through a view."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.text import Text

from duotone.text.columns import fitted, html, plain

_NARROWEST = 60


class Lines(abc.ABC):
    """A rich renderable that is lines of text.

    Attributes:
        widest: characters of a line at most; ``None`` for as many as the console has.
    """

    widest: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines, none longer than the console is wide (at least 60 characters)."""
        del console
        width = max(options.max_width, _NARROWEST)
        if self.widest is not None:
            width = min(width, self.widest)
        for line in self._lines(width):
            yield Text(fitted(line, width), no_wrap=True)

    @abc.abstractmethod
    def _lines(self, width: int) -> Iterator[str]:
        """The lines for a width; what is longer ends in an ellipsis."""


class Viewed(abc.ABC):
    """A record that ``print``, Rich and notebooks show through its view."""

    @abc.abstractmethod
    def __rich__(self) -> Any:
        """The view."""

    def __str__(self) -> str:
        return plain(self.__rich__())

    def _repr_html_(self) -> str:
        return html(self.__rich__())
