"""Functions that cannot be exported: one line that names the function and what is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from duotone.errors import ArgumentError, ArgumentTypeError, DuotoneError


@contextlib.contextmanager
def told_in_one_line(name: str, hint: str = "") -> Iterator[None]:
    """Turns errors of tracing a function into one that names it.

    Args:
        name: of the function.
        hint: what may help, after the error's own first line.

    Raises:
        ArgumentTypeError: in place of a type error, which the function may have made itself.
        ArgumentError: in place of others; duotone's own pass.
    """
    try:
        yield
    except DuotoneError:
        raise
    except (NotImplementedError, TypeError, ValueError) as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind(f"export: JAX cannot export {name}: {first_line(error)}{hint}") from error


def first_line(error: Exception) -> str:
    """The first line of an error, as a sentence."""
    line = (str(error).strip() or type(error).__name__).split("\n")[0]
    return line if line.endswith(".") else f"{line}."


def check_results(name: str, results: Sequence[Any]) -> None:
    """Raises where a function has nothing to hand out.

    Raises:
        ArgumentError: it returns no array.
    """
    if not results:
        raise ArgumentError(f"export: {name} returns no array: there is nothing to export.")
