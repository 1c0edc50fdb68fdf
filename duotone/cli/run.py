"""``duotone run``: runs a script in mixed precision without a change of its source.

Keras models of the script are rewritten although their optimizer is a plain one, and optimizers
made with ``duotone.optimizer_from_environment(...)`` are switched on. The options become the
environment variables that say the same, so whatever the script itself says wins. The script sees
the command line, ``__name__`` and module path that it would have under ``python``.

What goes wrong: a script that does not exist; one that uses neither Keras nor duotone, for which
there is nothing to switch on (said in one line when it ends). Errors of the script are its own,
whatever their class: they go to ``sys.excepthook`` without the frames of this command.
"""

from __future__ import annotations

import difflib
import enum
import importlib.util
import logging
import os
import runpy
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TextIO

import typer

from duotone._environment import PAINTER, POLICY_FILE
from duotone._switches import DTYPE, LOSS_SCALE, SWITCH, read_switches
from duotone.errors import ArgumentError, EnvironmentVariableError

_OPTIONS = ("--dtype", "--loss-scale", "--policy-file", "--painter", "--module")


class HalfTypeChoice(enum.StrEnum):
    """The values of ``--dtype``."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class RunPainterChoice(enum.StrEnum):
    """The values of ``--painter``."""

    DUOTONE = "duotone"
    TENSORFLOW = "tensorflow"


LossScaleOption = Annotated[
    str | None,
    typer.Option(
        help="dynamic, none or a number such as 1024; by default dynamic in float16 and none "
        "in bfloat16.",
        metavar="SCALE",
    ),
]
PolicyFileOption = Annotated[
    Path | None,
    typer.Option(
        help="A TOML or JSON file with fields of duotone.Policy, such as "
        'deny_add = ["tanh"]; what the script itself says wins.',
        metavar="FILE",
    ),
]
RunPainterOption = Annotated[
    RunPainterChoice | None,
    typer.Option(help="duotone's rules, or TensorFlow's passes."),
]


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
    loss_scale: LossScaleOption = None,
    policy_file: PolicyFileOption = None,
    painter: RunPainterOption = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")
    ] = False,
) -> None:
    """Run a script in mixed precision: Keras models, duotone.optimizer_from_environment(...)."""
    _check_script(script, module)
    _set_variables(
        {
            DTYPE: None if dtype is None else dtype.value,
            LOSS_SCALE: loss_scale,
            POLICY_FILE: None if policy_file is None else str(policy_file.absolute()),
            PAINTER: None if painter is None else painter.value,
        }
    )
    from duotone._on_import import when_imported

    _show_log()
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
            f"note: {script} uses neither Keras nor duotone.optimizer_from_environment(...): "
            "nothing to switch on",
            err=True,
        )


def _check_script(script: str, module: bool) -> None:
    """Raises if this is a misspelt option, or no file where one is meant."""
    if script.startswith("-") and not Path(script).exists():
        near = difflib.get_close_matches(script, _OPTIONS, n=1)
        meant = f"did you mean {near[0]}?" if near else f"it has {', '.join(_OPTIONS)}."
        raise ArgumentError(
            f"duotone run has no option {script}: {meant} Options of the script stand behind it."
        )
    if not module and not Path(script).is_file():
        raise ArgumentError(
            f"there is no script {script}. For a module write: duotone run -m {script}"
        )


def _set_variables(options: Mapping[str, str | None]) -> None:
    """Hands the options to the script as variables, which reach the processes it starts as well."""
    os.environ.update({name: value for name, value in options.items() if value is not None})
    if (text := options[LOSS_SCALE]) is not None:
        try:
            read_switches({LOSS_SCALE: text})
        except EnvironmentVariableError as error:
            takes = "dynamic, none or a number from 1 on, such as --loss-scale 1024"
            raise ArgumentError(f"--loss-scale {text}: it takes {takes}.") from error
    if not read_switches().found:  # who set TensorFlow's variables chose the parts already
        os.environ[SWITCH] = "1"
    if text is not None and not read_switches().loss_scaling:
        typer.echo(
            f"note: --loss-scale {text} has no effect: an environment variable switches loss "
            "scaling off (docs/environment.md, Switched on from outside)",
            err=True,
        )
    if options[POLICY_FILE] is not None:
        from duotone.policy import Policy  # an error in it is to come before the script begins

        Policy.from_file(str(options[POLICY_FILE]))


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


class _LogLines(logging.StreamHandler[TextIO]):
    """Shows log lines, unless the script set up a log of its own, which shows them too."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        if not logging.getLogger().handlers:
            super().emit(record)


def _show_log() -> None:
    """Shows what duotone logs, from level INFO on."""
    handler = _LogLines()
    handler.setFormatter(logging.Formatter("duotone: %(message)s"))
    logger = logging.getLogger("duotone")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _switch_keras_on() -> None:
    from duotone.adapters.keras import enable_everywhere

    switches = read_switches()
    enable_everywhere(
        switches.rewrite,
        switches.loss_scaling,
        dtype=switches.dtype,
        loss_scale=switches.loss_scale,
    )
