"""``duotone report`` writes which operations of a function are half, and why, as one HTML file.

Only the module of the function runs, and with ``--blame`` the function itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from duotone.cli.run import PolicyFileOption
from duotone.cli.user_program import (
    ChosenHalfOption,
    PaintTargetOption,
    ShapesOption,
    load,
    names,
    program_argument,
    settings,
)
from duotone.cli.view import read_record
from duotone.errors import ArgumentError


def report(
    program: Annotated[str, program_argument(" Or the JSON of explain --json.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write.", metavar="FILE")
    ] = Path("report.html"),
    shapes: ShapesOption = None,
    dtype: ChosenHalfOption = None,
    target: PaintTargetOption = None,
    policy_file: PolicyFileOption = None,
    title: Annotated[
        str | None, typer.Option(help="The title of the page; by default the function's name.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Show what it costs on these devices, estimated: h100,a100,v5e.",
            metavar="NAME,NAME",
        ),
    ] = None,
    blame: Annotated[
        bool,
        typer.Option(
            "--blame", help="Run it once; show operations that overflow or lose most in half."
        ),
    ] = False,
    advise: Annotated[
        bool,
        typer.Option("--advise", help="Show what makes it slow on the target, and what to do."),
    ] = False,
    history: Annotated[
        Path | None,
        typer.Option(
            help="Show the curves of this CSV file; its first line names them: step,loss.",
            metavar="FILE",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a page about a function: overview, graph to zoom into, table to sort and to search."""
    from rich.console import Console
    from rich.markup import escape

    import duotone
    from duotone._files import check_free

    check_free(out, overwrite=force)
    shown: dict[str, Any] = {} if history is None else {"history": history}
    if title is not None:
        shown["title"] = title
    if program.endswith(".json"):
        if blame or advise or any((shapes, dtype, target, policy_file, compare)):
            raise ArgumentError(
                f"{program} is an explanation, painted already: only --out, --title, --history and "
                "--force go with it."
            )
        _write_record(Path(program), out, shown)
    else:
        function, arguments = load(program, shapes)
        asked = settings(dtype, policy_file)
        if compare is not None:
            shown["comparison"] = duotone.compare(
                function, *arguments, targets=names(compare), exact=False, **asked
            )
        if advise:
            shown["advice"] = duotone.advise(function, *arguments, target=target, **asked)
        if blame:
            shown["blame"] = duotone.blame(function, *arguments, **asked)
        duotone.report(
            function, *arguments, out=out, target=target, overwrite=force, **asked, **shown
        )
    size = f"{out.stat().st_size / 1e3:.0f} kB"
    Console().print(f"Written: [bold]{escape(str(out))}[/bold] ({size}). Open it in a browser.")


def _write_record(source: Path, out: Path, shown: dict[str, Any]) -> None:
    from duotone._files import write_atomically
    from duotone.explaining.page.assemble import make_page

    if not source.is_file():
        raise ArgumentError(f"there is no file {source}.")
    record = read_record(source)
    about = f"{record.summary.half_dtype}, from {source.name}"
    shown = {"title": source.stem, "about": about} | shown
    write_atomically(out, make_page(record, **shown))
