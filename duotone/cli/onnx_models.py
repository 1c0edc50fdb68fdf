"""ONNX models in the commands ``rewrite``, ``view``, ``explain`` and ``compare``.

A file whose name ends in ``.onnx`` is a model. :mod:`duotone.onnx` does the work; this file shows
progress and prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duotone.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console

    from duotone.onnx.api import Rewritten

KeepIoOption = Annotated[
    bool,
    typer.Option(
        "--keep-io/--half-io", help="ONNX: whether float32 inputs and results stay float32."
    ),
]
KeepFullOption = Annotated[
    list[str] | None,
    typer.Option(
        help="ONNX: nodes, operations or results that stay float32: '*/detect/*'; may be repeated.",
        metavar="PATTERN",
    ),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        help="Inputs by name in an .npz file, for an ONNX model or a frozen graph (run in "
        "TensorFlow); values that do not fit half stay float32.",
        metavar="FILE",
    ),
]
ProviderOption = Annotated[
    str | None,
    typer.Option(
        help="ONNX: cpu, cuda, tensorrt or directml; operations without a half kernel there stay "
        "float32.",
        metavar="NAME",
    ),
]
RangeCheckOption = Annotated[
    bool,
    typer.Option(
        "--range-check/--no-range-check",
        help="ONNX, float16 without --calibration: run the float32 model on random inputs of "
        "several sizes, and name the operations that overflow.",
    ),
]
FoldInputsOption = Annotated[
    bool,
    typer.Option(
        "--fold-inputs",
        help="ONNX: weights that are inputs too, as in files of IR version 3, become constants.",
    ),
]
OpsetOption = Annotated[
    int | None,
    typer.Option(
        help="ONNX: convert the model to this opset first; bfloat16 needs 13, convolutions 22.",
        metavar="N",
    ),
]


def is_model(path: str | Path) -> bool:
    """Returns True if a path names an ONNX model."""
    return str(path).endswith(".onnx")


def check_options(path: Path, given: Mapping[str, object], foreign: str) -> None:
    """Raises if the user gave options that have no meaning for a file.

    Options that are ``None``, false or empty were not given. They are for ``foreign`` files.

    Raises:
        ArgumentError: the user gave an option.
    """
    for option, value in given.items():
        if value not in (None, False, "", [], ()):
            raise ArgumentError(f"{option} is for {foreign}, and {path} is not one: leave it out.")


def say_rewritten(console: Console, model: Path, done: Rewritten) -> None:
    """Prints the totals of a rewrite and the path of the new model."""
    from rich.markup import escape

    from duotone.explaining.overview import Overview

    hint = f"duotone view {model} --nodes '*', with the same options"
    console.print(Overview(done.record, hint=hint))
    share = done.bytes_after / max(done.bytes_before, 1)
    console.print(f"Tensors: {done.bytes_after:,} bytes of {done.bytes_before:,} ({share:.0%})")
    where = f"[bold]{escape(str(done.out))}[/bold] (ONNX)"
    console.print(f"Rewritten in {done.seconds:.2f} s: {where}")


def say_range(console: Console, model: Path, done: Rewritten) -> None:
    """Runs the model and prints in one line which operations leave the range of float16."""
    from duotone import onnx

    with console.status("checking ranges"):
        found = onnx.check_range(model, done)
    console.print(str(found), highlight=False, markup=False, soft_wrap=True)
