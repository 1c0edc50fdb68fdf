"""Shows the progress of a command, prints its result, and writes it as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")

STANDARD_OUTPUT = Path("-")
JsonOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the result as JSON; - writes to standard output, in place of the table.",
        metavar="FILE",
    ),
]


def show(view: Any, json: Path | None, to_json: Callable[[], str]) -> None:
    """Prints a result, a Rich renderable or a string, and writes it as JSON.

    The file ``-`` writes only the JSON, to standard output.

    Raises:
        WriteError: the file system refuses the file.
    """
    from rich.console import Console

    from duotone._files import write_atomically

    if json == STANDARD_OUTPUT:
        typer.echo(to_json())
        return
    is_text = isinstance(view, str)
    Console().print(view, highlight=not is_text, markup=not is_text, soft_wrap=is_text, crop=False)
    if json is not None:
        write_atomically(json, to_json())


def progress(*columns: ProgressColumn) -> Progress:
    """Makes a progress display on stderr, with the elapsed time; it disappears at the end."""
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)


def in_stages(
    console: Console, rewrite: Callable[..., T], source: Path, out: Path | None, **options: Any
) -> T:
    """Calls ``rewrite(source, out, **options)`` and shows its current stage."""
    from rich.markup import escape

    def line(stage: str) -> str:
        return escape(f"{stage} {out if stage == 'writing' else source}")

    with console.status(line("reading")) as status:
        return rewrite(source, out, **options, on_stage=lambda stage: status.update(line(stage)))
