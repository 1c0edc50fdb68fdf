"""``duotone export`` writes a function as files that JAX runs without duotone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from duotone.cli.run import PolicyFileOption
from duotone.cli.user_program import (
    ChosenHalfOption,
    PaintTargetOption,
    ProgramArgument,
    ShapesOption,
    load,
    names,
    settings,
)
from duotone.errors import ArgumentError


def export(
    program: ProgramArgument,
    out: Annotated[Path, typer.Option(help="The new folder.", metavar="FOLDER")],
    shapes: ShapesOption = None,
    dtype: ChosenHalfOption = None,
    format: Annotated[
        Literal["jax", "onnx", "saved_model"],
        typer.Option(
            help="jax: program.jax; onnx: model.onnx, by jax2onnx; saved_model: a TensorFlow "
            "SavedModel."
        ),
    ] = "jax",
    target: PaintTargetOption = None,
    policy_file: PolicyFileOption = None,
    platforms: Annotated[
        str | None,
        typer.Option(
            help="The platforms to run on: cpu,cuda,rocm,tpu. The default is that of this machine "
            "and that of the target.",
            metavar="NAME,NAME",
        ),
    ] = None,
    batch: Annotated[
        str,
        typer.Option(
            help="Positions, from 0, of the arguments whose first axis is the batch; the program "
            "takes any batch size.",
            metavar="N,N",
        ),
    ] = "",
) -> None:
    """Write a function in mixed precision as files, for servers without duotone."""
    import duotone

    if not all(name.isdigit() for name in names(batch)):
        raise ArgumentError(f"--batch: {batch!r} holds no positions; write --batch 0,2.")
    function, arguments = load(program, shapes)
    made = duotone.export(
        function,
        *arguments,
        path=out,
        format=format,
        target=target,
        platforms=None if platforms is None else names(platforms),
        batch_argnums=[int(name) for name in names(batch)],
        **settings(dtype, policy_file),
    )
    for file in sorted(file for file in made.path.rglob("*") if file.is_file()):
        typer.echo(f"{file.stat().st_size:>13,} bytes  {file}")
    typer.echo(made)
