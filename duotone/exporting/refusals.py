"""Errors for functions that cannot be exported: one line with the function and the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from duotone.errors import ArgumentError, ArgumentTypeError, DuotoneError, shown

LARGEST = 2**31 - 2**20
"""The largest program in bytes: FlatBuffers and protobuf messages are limited to 2 GiB."""


@contextlib.contextmanager
def errors_in_one_line(name: str, hint: str = "") -> Iterator[None]:
    """Replaces errors of tracing a function by one that names it.

    Raises:
        ArgumentTypeError: replaces a type error, which the function may have raised itself.
        ArgumentError: replaces other errors; duotone's own errors do not change.
    """
    try:
        yield
    except DuotoneError:
        raise
    except (NotImplementedError, TypeError, ValueError) as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind(f"export: JAX cannot export {name}: {first_line(error)}{hint}") from error


def first_line(error: Exception) -> str:
    """Returns the first line of an error as a sentence."""
    line = (str(error).strip() or type(error).__name__).split("\n")[0]
    return line if line.endswith(".") else f"{line}."


def check_results(name: str, results: Sequence[Any]) -> None:
    """Refuses a function without results.

    Raises:
        ArgumentError: it returns no array.
    """
    if not results:
        raise ArgumentError(f"export: {name} returns no array: there is nothing to export.")


def check_types(name: str, results: Any) -> None:
    """Refuses a function that returns anything but arrays and numbers.

    Raises:
        ArgumentTypeError: it does.
    """
    for leaf in jax.tree.leaves(results):
        try:
            jax.typeof(leaf)
        except TypeError as error:
            raise ArgumentTypeError(
                f"export: {name} returns {shown(leaf)}: an exported program returns arrays."
            ) from error


def check_size(name: str, size: int) -> None:
    """Refuses a program that is too large for a file.

    Raises:
        ArgumentError: it is too large.
    """
    if size > LARGEST:
        raise ArgumentError(
            f"export: {name} has {size:,} bytes with its weights, and the limit of a file is "
            f"{LARGEST:,}. Make the weights an argument: duotone.autocast without weights=."
        )
