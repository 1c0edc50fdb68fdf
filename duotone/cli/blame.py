"""``duotone blame`` names the first operation of a step that is not finite in half, and why.

The step runs once, so its arguments need data: a function without arguments returns them, or with
``--shapes`` they are random numbers. Progress is shown on stderr.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from duotone.cli.output import JsonOption, progress, show
from duotone.cli.run import PolicyFileOption
from duotone.cli.user_program import ChosenHalfOption, ProgramArgument, load, settings


def blame(
    program: ProgramArgument,
    shapes: Annotated[
        str | None,
        typer.Option(
            help="The arguments, arrays of these shapes: 'f32[64,32] i32[8]'. Floats are normal "
            "random numbers, integers are 0.",
            metavar="SHAPES",
        ),
    ] = None,
    dtype: ChosenHalfOption = None,
    policy_file: PolicyFileOption = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="Lines of each ranking, if every value is finite.")
    ] = 5,
    json: JsonOption = None,
) -> None:
    """Run a step once in half and float32; name the first operation that only half breaks."""
    from rich.progress import SpinnerColumn, TextColumn

    from duotone.blaming.blame import look
    from duotone.blaming.blame_view import BlameView

    function, arguments = load(program, shapes)
    if shapes is not None:
        arguments = _filled(arguments)
    asked = settings(dtype, policy_file)
    with progress(SpinnerColumn(), TextColumn("{task.description}")) as shown:
        bar = shown.add_task("tracing", total=None)

        def report(stage: str) -> None:
            shown.update(bar, description=stage if stage == "tracing" else f"compiling: {stage}")

        found = look(function, arguments, {}, asked["dtype"], asked["policy"], report)
    show(BlameView(found, rows), json, found.to_json)


def _filled(shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Makes arrays of these shapes: normal random floats, and integer zeros."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), max(len(shapes), 1))
    return tuple(
        jax.random.normal(key, shape.shape, shape.dtype)
        if jnp.issubdtype(shape.dtype, jnp.inexact)
        else jnp.zeros(shape.shape, shape.dtype)
        for key, shape in zip(keys, shapes, strict=True)
    )
