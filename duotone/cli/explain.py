"""``duotone explain`` shows what mixed precision does to a function or an ONNX model, and why.

Nothing is compiled, and only the module of the function runs.
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
    PaintTargetOption,
    ShapesOption,
    load,
    program_argument,
    settings,
)

_HINT = "--rows 20, --where '*/attention/*', --rule taint"


def explain(
    program: Annotated[str, program_argument(" Or an ONNX model: model.onnx.")],
    shapes: ShapesOption = None,
    dtype: ChosenHalfOption = None,
    target: PaintTargetOption = None,
    policy_file: PolicyFileOption = None,
    against: Annotated[
        str | None,
        typer.Option(help="List the operations that differ on this device.", metavar="TARGET"),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help="List the operations in these name scopes: '*/attention/*'.", metavar="PATTERN"
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="List the operations that this rule painted: taint.", metavar="RULE"),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--rows", min=1, help="List this many operations, those with the most bytes."),
    ] = None,
    json: JsonOption = None,
    model_explorer: Annotated[
        Path | None, typer.Option(help="Write the graph for Model Explorer.", metavar="FILE")
    ] = None,
) -> None:
    """Show what mixed precision does to a function or ONNX model: totals, reasons, scopes."""
    import duotone
    from duotone._files import write_atomically
    from duotone.explaining.model_explorer import collection_of_record
    from duotone.explaining.operation_rows import Rows
    from duotone.explaining.overview import Overview

    if onnx.is_model(program):
        from duotone.onnx import explain as explain_model

        functions = {"--shapes": shapes, "--target": target, "--against": against}
        onnx.check_options(Path(program), functions, "JAX functions")
        asked = settings(dtype or "float16", policy_file)
        seen = explain_model(program, **asked)
    else:
        function, arguments = load(program, shapes)
        asked = settings(dtype, policy_file)
        seen = duotone.explain(function, *arguments, **asked, target=target)
        if against is not None:
            other = duotone.explain(function, *arguments, **asked, target=against)
            found = seen.difference(other, (target or "here", against))
            show(found, json, found.to_json)
            return
    one_by_one = where is not None or rule is not None or most is not None
    view = Rows(seen, where, rule, most) if one_by_one else Overview(seen, hint=_HINT)
    show(view, json, seen.to_json)
    if model_explorer is not None:
        write_atomically(model_explorer, collection_of_record(seen))
