"""``duotone run``: runs a script in mixed precision without a change of its source.

Keras models of the script are rewritten although their optimizer is a plain one, and optimizers
made with ``duotone.optimizer(...)`` are switched on. The script sees the command line, ``__name__``
and module path that it would have under ``python``.

What goes wrong: a script that does not exist; one that uses neither Keras nor duotone, for which
there is nothing to switch on (said in one line when it ends). Errors of the script are its own.
"""

from __future__ import annotations

import enum
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from duotone._switches import DTYPE, SWITCH, read_switches
from duotone.errors import ArgumentError, DuotoneError


class HalfTypeChoice(enum.StrEnum):
    """The values of ``--dtype``."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


def run(
    script: Annotated[
        str, typer.Argument(help="The Python script, or with --module the name of a module.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the script is called with.")
    ] = None,
    dtype: Annotated[
        HalfTypeChoice | None,
        typer.Option(help="The half type; by default the one that is fast on the device."),
    ] = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")
    ] = False,
) -> None:
    """Run a script in mixed precision: its Keras models, and its duotone.optimizer(...)."""
    if not module and not Path(script).is_file():
        raise ArgumentError(
            f"there is no script {script}. For a module write: duotone run -m {script}"
        )
    if dtype is not None:
        os.environ[DTYPE] = dtype.value
    if not read_switches().found:  # who set TensorFlow's variables chose the parts already
        os.environ[SWITCH] = "1"
    from duotone.adapters.on_import import when_imported

    when_imported("keras", _switch_keras_on)
    sys.argv = [script, *(arguments or [])]
    try:
        if module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
    except (DuotoneError, OSError) as error:
        # Not an error of this command: with its traceback, as python shows it.
        traceback.print_exc()
        raise typer.Exit(1) from error
    if not {"keras", "duotone.adapters.optax"} & set(sys.modules):  # the second loads when used
        typer.echo(
            f"note: {script} uses neither Keras nor duotone.optimizer(...): nothing to switch on",
            err=True,
        )


def _switch_keras_on() -> None:
    from duotone.adapters.keras import enable_everywhere

    switches = read_switches()
    enable_everywhere(switches.rewrite, switches.loss_scaling, dtype=switches.dtype)
