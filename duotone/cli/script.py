"""Runs a user's script for ``duotone run`` and ``duotone profile``.

The script sees the command line, ``__name__`` and module path that it would have under ``python``.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
import sysconfig
import types
from collections.abc import Sequence
from pathlib import Path

from duotone.errors import ArgumentError
from duotone.text.suggestions import did_you_mean


def check_script(command: str, script: str, module: bool, options: Sequence[str]) -> None:
    """Raises if the script is a misspelt option or does not exist.

    Raises:
        ArgumentError: the script is a misspelt option or does not exist.
    """
    if script.startswith("-") and not Path(script).exists():
        meant = did_you_mean(script, options, f"it has {', '.join(options)}.")
        raise ArgumentError(
            f"duotone {command} has no option {script}: {meant} Options of the script come after "
            "it."
        )
    if not module and not Path(script).is_file():
        raise ArgumentError(
            f"there is no script {script}. For a module write: duotone {command} -m {script}"
        )


def execute(command: str, script: str, arguments: Sequence[str], module: bool) -> int:
    """Runs a script or module as ``__main__``.

    Returns:
        The exit status: 0, 1 after an error, or 130 after Ctrl-C; both are printed.

    Raises:
        ArgumentError: there is no such module.
        SystemExit: the script raised it.
    """
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:  # python -P and PYTHONSAFEPATH add no folder to the path
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
    """Runs a file as ``__main__``; unlike ``runpy`` it does not change ``sys.argv[0]``."""
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
    except Exception:  # an error of its package, which running the module will raise again
        found = True
    if not found:
        raise ArgumentError(
            f"there is no module {name} in {sys.path[0]} or installed. "
            f"For a script write its path: duotone {command} path/to/train.py"
        )


def from_users_line(error: BaseException) -> bool:
    """Removes the frames of an error before the first one in a file of the user.

    Files of duotone, of installed libraries and of Python are not the user's. The causes of the
    error lose these frames too.

    Returns:
        True if there is such a frame, or if a file of the user is no Python. Otherwise the error
        does not change.
    """
    frames = error.__traceback__
    while frames is not None and _is_library(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    unread = error.filename if isinstance(error, SyntaxError) else None
    if frames is None and (unread is None or _is_library(unread)):
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
    """Prints an error of the script with ``sys.excepthook``, without frames of duotone."""
    own = {__file__, runpy.run_module.__code__.co_filename}
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    sys.excepthook(type(error), error.with_traceback(frames), frames)
