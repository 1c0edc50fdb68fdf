"""``duotone tune``: the switches with which a function costs least on a device.

Nothing runs but the module that the function stands in. The progress bar is on stderr. An interrupt
ends the search; what was found until then is written.
"""

from __future__ import annotations

import enum
import time
from pathlib import Path
from typing import Annotated

import typer

from duotone.cli.program import ChosenHalfOption, ProgramArgument, ShapesOption, load, settings
from duotone.cli.run import PolicyFileOption


class JudgeChoice(enum.StrEnum):
    """The figure that is to be least."""

    SECONDS = "seconds"
    BYTES = "bytes"


def tune(
    program: ProgramArgument,
    target: Annotated[
        str,
        typer.Option(
            help="The device, which need not be here; its compiler must be: h100, a100, v5e, cpu.",
            metavar="NAME",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write.", metavar="FILE")
    ] = Path("tuned.json"),
    shapes: ShapesOption = None,
    dtype: ChosenHalfOption = None,
    policy_file: PolicyFileOption = None,
    minutes: Annotated[
        float, typer.Option(help="No compilation is begun that would end later.", min=0.01)
    ] = 10.0,
    by: Annotated[JudgeChoice, typer.Option(help="What is to be least.")] = JudgeChoice.SECONDS,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Find the switches with which a function costs least on a device; Policy(tuned=FILE)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from duotone._files import check_free
    from duotone._tuning import Search
    from duotone.targets import find_target

    check_free(out, overwrite=force)
    function, arguments = load(program, shapes)
    asked = settings(dtype, policy_file)
    search = Search(
        function, arguments, {}, find_target(target), asked["dtype"], asked["policy"], by.value
    )
    progress = Progress(
        TextColumn("{task.description:<40}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    begun = time.monotonic()

    def left() -> float:
        return begun + 60.0 * minutes - time.monotonic()

    with progress:
        bar = progress.add_task("compiling duotone's own choice", total=60.0 * minutes)
        try:
            for trial in search.trials(left):
                passed = 60.0 * minutes - left()
                progress.update(bar, description=f"after: {trial.change}", completed=passed)
        except KeyboardInterrupt:
            if not search.best.trials:
                raise
            Console(stderr=True).print("interrupted: this was found until now")
    search.best.save(out)
    Console().print(search.best)
    Console().print(f"Written: {out}. Paint with Policy(tuned={str(out)!r}).", markup=False)
