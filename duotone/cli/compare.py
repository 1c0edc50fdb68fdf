"""``duotone compare``: float32, as written and duotone side by side, for devices here or not.

Of two ONNX models, where they first differ: ``duotone compare a.onnx b.onnx``. Of a function only
its module runs. The progress bar is on stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from duotone.cli import onnx_models as onnx
from duotone.cli.output import JsonOption, show
from duotone.cli.run import PolicyFileOption
from duotone.cli.user_program import (
    ChosenHalfOption,
    ProgramArgument,
    ShapesOption,
    load,
    names,
    settings,
)
from duotone.errors import ArgumentError


def compare(
    program: ProgramArgument,
    second: Annotated[
        str | None,
        typer.Argument(
            help="Of ONNX models the one to compare with the first: both are run.", metavar="[ONNX]"
        ),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            help="The devices, which need not be here: h100,a100,v5e.", metavar="NAME,NAME"
        ),
    ] = None,
    shapes: ShapesOption = None,
    dtype: ChosenHalfOption = None,
    policy_file: PolicyFileOption = None,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--bound",
            help="Compile, or be satisfied with bounds; by default what can be had.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Positions of the arguments that begin with the batch, from 0: tells the largest.",
            metavar="N,N",
        ),
    ] = None,
    json: JsonOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Of ONNX models: inputs by name in an .npz file; random ones without.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Show what a function costs on several devices, or where two ONNX models first differ."""
    if onnx.is_model(program):
        if second is None:
            raise ArgumentError(f"compare {program} with another model: compare a.onnx b.onnx")
        functions = {"--targets": targets, "--shapes": shapes, "--dtype": dtype, "--batch": batch}
        onnx.check_options(Path(program), functions, ["JAX functions"])
        onnx.compare_models(program, second, data, json)
        return
    onnx.check_options(Path(program), {"--data": data, "a second": second}, ["ONNX models"])
    if targets is None:
        raise ArgumentError("name devices to compare: --targets h100,a100")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from duotone.comparing.compare import Plan

    function, arguments = load(program, shapes)
    asked = settings(dtype, policy_file)
    positions = None if batch is None else _positions(batch)
    devices = names(targets)
    plan = Plan(function, arguments, {}, devices, asked["dtype"], asked["policy"], exact, positions)
    progress = Progress(
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        bar = progress.add_task("tracing", total=plan.count)
        begun = 0

        def told(what: str) -> None:
            nonlocal begun
            progress.update(bar, description=what, completed=begun)
            begun += 1

        seen = plan.run(told)
    show(seen, json, seen.to_json)


def _positions(text: str) -> tuple[int, ...]:
    """Numbers divided by commas."""
    positions = [position.strip() for position in text.split(",")]
    if not all(position.isdigit() for position in positions):
        raise ArgumentError(f"--batch is {text!r}; name positions of arguments, as --batch 1,2")
    return tuple(map(int, positions))
