"""``duotone compare`` compares a function in float32, as written and with duotone on devices.

It also runs two ONNX models, TensorFlow graphs or SavedModels and finds where they first differ:
``duotone compare a.onnx b.onnx``. The exit status is 1 if a result is infinite or NaN in one of
them alone. The module of a function runs, but not the function. The progress bar is on stderr.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from duotone.cli import onnx_models as onnx
from duotone.cli.output import STANDARD_OUTPUT, JsonOption, progress, show
from duotone.cli.run import PolicyFileOption
from duotone.cli.user_program import ChosenHalfOption, load, names, settings
from duotone.errors import ArgumentError


def compare(
    program: Annotated[
        str,
        typer.Argument(
            help="A function in a file or module: train.py:step, as for explain. Or a model: an "
            "ONNX file, a TensorFlow graph or a SavedModel folder.",
            metavar="FILE:FUNCTION|MODEL",
        ),
    ],
    second: Annotated[
        str | None,
        typer.Argument(
            help="For models: the second model, to compare with the first; both run.",
            metavar="[MODEL]",
        ),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            help="The devices, which need not be present: h100,a100,v5e.", metavar="NAME,NAME"
        ),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            help="The arguments of a function, 'f32[64,32] i32[8]'; or of a model, the shapes of "
            "random inputs by name, 'x=1,3,320,640 ids=1,16'.",
            metavar="SHAPES",
        ),
    ] = None,
    dtype: ChosenHalfOption = None,
    policy_file: PolicyFileOption = None,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--bound",
            help="Always compile, or only estimate. By default, compile if possible.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Positions, from 0, of the arguments whose first axis is the batch; shows the "
            "largest batch that fits.",
            metavar="N,N",
        ),
    ] = None,
    json: JsonOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="For models: inputs by name in an .npz file; random numbers by default, in "
            "sizes that are printed.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Show what a function costs on several devices, or where two models first differ.

    Models are ONNX files, TensorFlow graphs or SavedModel folders. ONNX Runtime or TensorFlow
    runs both. The exit status is 1 if a result is infinite or NaN in one of them alone.
    """
    if second is not None or _is_model(program):
        functions = {"--targets": targets, "--dtype": dtype, "--batch": batch}
        onnx.check_options(Path(program), functions, "JAX functions")
        if second is None:
            raise ArgumentError(f"compare {program} with another model: compare a.onnx b.onnx")
        _compare_models(program, second, data, shapes, json)
        return
    onnx.check_options(Path(program), {"--data": data}, "models")
    if targets is None:
        raise ArgumentError("name devices to compare: --targets h100,a100")
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    from duotone.comparing.compare import ComparisonPlan

    function, arguments = load(program, shapes)
    asked = settings(dtype, policy_file)
    positions = None if batch is None else _positions(batch)
    devices = names(targets)
    plan = ComparisonPlan(
        function, arguments, {}, devices, asked["dtype"], asked["policy"], exact, positions
    )
    columns = TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn()
    with progress(*columns) as shown:
        bar = shown.add_task("tracing", total=plan.count)
        begun = 0

        def report(program: str) -> None:
            nonlocal begun
            shown.update(bar, description=program, completed=begun)
            begun += 1

        seen = plan.run(report)
    show(seen, json, seen.to_json)


def _positions(text: str) -> tuple[int, ...]:
    """Parses comma-separated numbers."""
    positions = [position.strip() for position in text.split(",")]
    if not all(position.isdigit() for position in positions):
        raise ArgumentError(f"--batch is {text!r}; name positions of arguments, as --batch 1,2")
    return tuple(map(int, positions))


def _is_model(program: str) -> bool:
    """Returns True for an ONNX file, and for a file or folder without Python's suffix."""
    path = Path(program)
    return onnx.is_model(program) or (path.exists() and path.suffix != ".py")


def _compare_models(
    first: str, second: str, data: Path | None, shapes: str | None, json: Path | None
) -> None:
    """Prints where two models first differ.

    Raises:
        Exit: with status 1, if the error of a result is infinite.
    """
    from rich.console import Console

    from duotone._files import check_writable
    from duotone.measuring.inputs import parse_shapes

    if json is not None and json != STANDARD_OUTPUT:
        check_writable(json)
    asked = None if shapes is None else parse_shapes(shapes)
    if onnx.is_model(first):
        from duotone.onnx import compare as run_both
    else:
        from duotone.tensorflow import compare as run_both
    with Console(stderr=True).status("running both models"):
        seen = run_both(first, second, data, shapes=asked)
    show(str(seen), json, seen.to_json)
    if math.isinf(seen.error):
        raise typer.Exit(1)
