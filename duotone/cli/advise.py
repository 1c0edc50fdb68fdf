"""``duotone advise`` lists what makes a step slow on a device, with remedies.

Nothing is compiled, and only the module of the function runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from duotone.cli.output import JsonOption, show
from duotone.cli.run import PolicyFileOption
from duotone.cli.user_program import ChosenHalfOption, ProgramArgument, ShapesOption, load, settings


def advise(
    program: ProgramArgument,
    target: Annotated[
        str | None,
        typer.Option(
            help="The device, which need not be present: h100, a100, v5e, …; by default this "
            "machine's if its speed is known, else an h100.",
            metavar="NAME",
        ),
    ] = None,
    shapes: ShapesOption = None,
    dtype: ChosenHalfOption = None,
    policy_file: PolicyFileOption = None,
    json: JsonOption = None,
) -> None:
    """List what makes a step slow on a device, with remedies, most expensive first."""
    import duotone

    function, arguments = load(program, shapes)
    asked = settings(dtype, policy_file)
    found = duotone.advise(function, *arguments, target=target, **asked)
    show(found, json, found.to_json)
