"""``duotone blame``: which operation of a step is the first that is not finite in half, and why.

The step runs once, so its arguments need data: a function without arguments returns them.
"""

from __future__ import annotations

from duotone.cli.run import PolicyFileOption
from duotone.cli.user_program import ChosenHalfOption, ProgramArgument, load, settings


def blame(
    program: ProgramArgument,
    dtype: ChosenHalfOption = None,
    policy_file: PolicyFileOption = None,
) -> None:
    """Run a step once beside float32 and name the first operation that is not finite in half."""
    from rich.console import Console

    import duotone

    function, arguments = load(program, None)
    found = duotone.blame(function, *arguments, **settings(dtype, policy_file))
    Console().print(found)
