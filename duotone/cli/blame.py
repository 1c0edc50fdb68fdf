"""``duotone blame``: which operation of a step is the first that is not finite in half, and why.

The step runs once, so its arguments need data: a function without arguments returns them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from duotone.cli.program import ProgramArgument, load
from duotone.cli.run import HalfTypeChoice, PolicyFileOption


def blame(
    program: ProgramArgument,
    dtype: Annotated[
        HalfTypeChoice | None,
        typer.Option(help="The half type; by default that of the step, or what is fast here."),
    ] = None,
    policy_file: PolicyFileOption = None,
) -> None:
    """Run a step once beside float32 and name the first operation that is not finite in half."""
    from rich.console import Console

    import duotone

    function, arguments = load(program, None)
    policy = None if policy_file is None else duotone.Policy.from_file(policy_file)
    found = duotone.blame(
        function, *arguments, dtype=None if dtype is None else dtype.value, policy=policy
    )
    Console().print(found)
