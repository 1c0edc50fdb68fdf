"""``duotone explain``: what mixed precision does to a function, and why.

Nothing is compiled or run but the module that the function stands in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from duotone.cli.program import (
    ChosenHalfOption,
    PaintTargetOption,
    ProgramArgument,
    ShapesOption,
    load,
    settings,
)
from duotone.cli.run import PolicyFileOption

WhereOption = Annotated[
    str | None,
    typer.Option(
        help="Operations one by one, of these name scopes: '*/attention/*'.", metavar="PATTERN"
    ),
]
RuleOption = Annotated[
    str | None,
    typer.Option(help="Operations one by one, of this rule: taint.", metavar="RULE"),
]
MostOption = Annotated[
    int | None,
    typer.Option("--rows", min=1, help="Operations one by one, so many with the most bytes."),
]


def explain(
    program: ProgramArgument,
    shapes: ShapesOption = None,
    dtype: ChosenHalfOption = None,
    target: PaintTargetOption = None,
    policy_file: PolicyFileOption = None,
    where: WhereOption = None,
    rule: RuleOption = None,
    most: MostOption = None,
    json: Annotated[
        Path | None, typer.Option(help="Write all of it as JSON, for duotone view.", metavar="FILE")
    ] = None,
) -> None:
    """Show what mixed precision does to a function: totals, reasons, a tree by name scope."""
    from rich.console import Console

    import duotone
    from duotone._files import write_atomically
    from duotone.targets import assuming, find_target

    function, arguments = load(program, shapes)
    device = None if target is None else find_target(target).device()
    with assuming(device):
        seen = duotone.explain(function, *arguments, **settings(dtype, policy_file))
    one_by_one = where is not None or rule is not None or most is not None
    Console().print(seen.rows(where, rule=rule, most=most) if one_by_one else seen)
    if json is not None:
        write_atomically(json, seen.to_json())
