"""Running a user's script, as ``python`` would: what ``duotone run`` and ``duotone profile`` share.

The script sees the command line, ``__name__`` and module path that it would have under ``python``.
"""

from __future__ import annotations

import difflib
import importlib.util
import runpy
import sys
import sysconfig
import types
from collections.abc import Sequence
from pathlib import Path

from duotone.errors import ArgumentError


def check_script(command: str, script: str, module: bool, options: Sequence[str]) -> None:
    """Raises if this is a misspelt option, or no file where one is meant.

    Args:
        command: the command's name, for the message.
        script: a path, or with `module` a module's name.
        module: which of the two it is.
        options: the command's own.

    Raises:
        ArgumentError: likewise.
    """
    if script.startswith("-") and not Path(script).exists():
        near = difflib.get_close_matches(script, options, n=1)
        meant = f"did you mean {near[0]}?" if near else f"it has {', '.join(options)}."
        raise ArgumentError(
            f"duotone {command} has no option {script}: {meant} Options of the script stand behind "
            "it."
        )
    if not module and not Path(script).is_file():
        raise ArgumentError(
            f"there is no script {script}. For a module write: duotone {command} -m {script}"
        )


def execute(command: str, script: str, arguments: Sequence[str], module: bool) -> int:
    """Runs a script or module as ``__main__``.

    Args:
        command: the command's name, for the message.
        script: a path, or with `module` a module's name.
        arguments: what it is called with.
        module: which of the two it is.

    Returns:
        The exit status: 0, or 1 after an error and 130 after Ctrl-C, which have been shown.

    Raises:
        ArgumentError: there is no such module.
        SystemExit: the script ended by it.
    """
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:  # of python -P and PYTHONSAFEPATH, where nothing comes first
        sys.path[0] = str(Path.cwd() if module else Path(script).resolve().parent)
    if module:
        _check_module(command, script)
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            _run_file(Path(script))
    except (Exception, KeyboardInterrupt) as error:
        _show(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _run_file(path: Path) -> None:
    """Runs a file as ``__main__``; unlike ``runpy`` it leaves ``sys.argv[0]`` as it was typed."""
    main = types.ModuleType("__main__")
    main.__file__ = str(path.absolute())
    sys.modules["__main__"] = main
    exec(compile(path.read_bytes(), main.__file__, "exec", dont_inherit=True), main.__dict__)


def _check_module(command: str, name: str) -> None:
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
            f"For a script write its path: duotone {command} path/to/train.py"
        )


def from_users_line(error: BaseException) -> bool:
    """Cuts off the frames of an error before the first one in a file of the user's.

    Files of duotone, of installed libraries and of Python are not the user's. The errors that led
    to it are cut too.

    Returns:
        Whether there is such a frame; the error is as it was if there is none.
    """
    frames = error.__traceback__
    while frames is not None and _is_library(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is None:
        return False
    error.__traceback__ = frames
    for before in (error.__cause__, error.__context__):
        if before is not None:
            from_users_line(before)
    return True


def _is_library(file: str) -> bool:
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    roots = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
    return bool(installed) or file.startswith("<") or any(map(path.is_relative_to, roots))


def _show(error: BaseException) -> None:
    """Shows an error of the script as python does, by its own hook if it has one."""
    own = {__file__, runpy.run_module.__code__.co_filename}
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    sys.excepthook(type(error), error.with_traceback(frames), frames)
