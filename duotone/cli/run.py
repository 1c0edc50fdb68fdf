"""``duotone run``: runs a script in mixed precision without a change of its source.

Keras models of the script are rewritten although their optimizer is a plain one, and optimizers
made with ``duotone.optimizer(...)`` are switched on. The script sees the command line, ``__name__``
and module path that it would have under ``python``.

What goes wrong: a script that does not exist; one that uses neither Keras nor duotone, for which
there is nothing to switch on (said in one line when it ends). Errors of the script are its own,
whatever their class: they go to ``sys.excepthook`` without the frames of this command.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import runpy
import sys
import types
from pathlib import Path
from typing import Annotated

import typer

from duotone._switches import DTYPE, SWITCH, read_switches
from duotone.errors import ArgumentError


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
    from duotone._on_import import when_imported

    when_imported("keras", _switch_keras_on)
    sys.argv = [script, *(arguments or [])]
    if not sys.flags.safe_path:  # of python -P and PYTHONSAFEPATH, where nothing comes first
        sys.path[0] = str(Path.cwd() if module else Path(script).resolve().parent)
    if module:
        _check_module(script)
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            _run_script(Path(script))
    except (Exception, KeyboardInterrupt) as error:
        _show(error)
        raise typer.Exit(130 if isinstance(error, KeyboardInterrupt) else 1) from error
    if not {"keras", "duotone.adapters.optax"} & set(sys.modules):  # the second loads when used
        typer.echo(
            f"note: {script} uses neither Keras nor duotone.optimizer(...): nothing to switch on",
            err=True,
        )


def _run_script(path: Path) -> None:
    """Runs a file as ``__main__``; unlike ``runpy`` it leaves ``sys.argv[0]`` as it was typed."""
    main = types.ModuleType("__main__")
    main.__file__ = str(path.absolute())
    sys.modules["__main__"] = main
    exec(compile(path.read_bytes(), main.__file__, "exec", dont_inherit=True), main.__dict__)


def _check_module(name: str) -> None:
    """Raises if there is no such module."""
    try:
        found = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        found = error.name is None or not f"{name}.".startswith(f"{error.name}.")
    except Exception:  # of a package around it; importing it again says so, as the script's error
        found = True
    if not found:
        raise ArgumentError(
            f"there is no module {name} in {sys.path[0]} or installed. "
            "For a script write its path: duotone run path/to/train.py"
        )


def _show(error: BaseException) -> None:
    """Shows an error of the script as python does, by its own hook if it has one."""
    own = {__file__, runpy.run_module.__code__.co_filename}
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    sys.excepthook(type(error), error.with_traceback(frames), frames)


def _switch_keras_on() -> None:
    from duotone.adapters.keras import enable_everywhere

    switches = read_switches()
    enable_everywhere(switches.rewrite, switches.loss_scaling, dtype=switches.dtype)
