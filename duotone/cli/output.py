"""Prints the result of a command as a table, and writes it as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

STANDARD_OUTPUT = Path("-")
JsonOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the result as JSON; - writes to standard output, in place of the table.",
        metavar="FILE",
    ),
]


def show(view: Any, json: Path | None, to_json: Callable[[], str]) -> None:
    """Prints a result, and writes it as JSON.

    Args:
        view: a rich renderable, or a string.
        json: the file; ``-`` writes only the JSON to standard output.
        to_json: makes the JSON.

    Raises:
        WriteError: the file system refuses the file.
    """
    from rich.console import Console

    from duotone._files import write_atomically

    if json == STANDARD_OUTPUT:
        typer.echo(to_json())
        return
    is_text = isinstance(view, str)
    Console().print(view, highlight=not is_text, markup=not is_text, soft_wrap=is_text)
    if json is not None:
        write_atomically(json, to_json())
