"""Tables of functions by the names of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def registering(table: dict[str, T]) -> Callable[..., Callable[[T], T]]:
    """Returns a decorator that puts a function into a table under each of some names.

    Example:
        >>> signs = {}
        >>> rule = registering(signs)
        >>> @rule("neg", "sub")
        ... def negative():
        ...     return -1
        >>> signs["sub"]()
        -1
    """

    def named(*names: str) -> Callable[[T], T]:
        def register(function: T) -> T:
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return named
