"""``duotone clusters`` and ``duotone flags``: the causes of slow compilation, and XLA's flags."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from duotone.cli.user_program import ProgramArgument, ShapesOption, load


def clusters(
    program: ProgramArgument,
    shapes: ShapesOption = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Also compile the function, unchanged and rolled.")
    ] = False,
) -> None:
    """Show the repeated parts of a function, and what rolling them into loops saves."""
    from duotone.compiling.clusters import clusters as look

    function, arguments = load(program, shapes)
    typer.echo(str(look(function, *arguments, compile=compile)))


def flags(
    xla: Annotated[
        str | None,
        typer.Option(
            "--xla", help="Flags for XLA_FLAGS; by default its current value.", metavar="FLAGS"
        ),
    ] = None,
    tf_xla: Annotated[
        str | None,
        typer.Option(
            "--tf-xla",
            help="Flags for TF_XLA_FLAGS; by default its current value.",
            metavar="FLAGS",
        ),
    ] = None,
) -> None:
    """Check XLA_FLAGS against the installed XLA, and explain TF_XLA_FLAGS."""
    from duotone.compiling.flags import TF_XLA_FLAGS, check_xla_flags, read_tf_xla_flags

    asked = os.environ.get("XLA_FLAGS", "") if xla is None else xla
    old = os.environ.get("TF_XLA_FLAGS", "") if tf_xla is None else tf_xla
    meanings = {flag.name: flag.here for flag in TF_XLA_FLAGS}
    for name, value in read_tf_xla_flags(old).items():
        typer.echo(f"--{name}{'=' + value if value else ''}: {meanings[name]}")
    check_xla_flags(asked)
    typer.echo(f"XLA takes: {asked}" if asked.strip() else "XLA_FLAGS is not set")
