"""A function and its arguments, as the command line names them: ``train.py:step``.

Who calls this: the commands that look at a program: ``explain``, ``compare``, ``advise``,
``blame``.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from duotone.cli.run import HalfTypeChoice
from duotone.errors import ArgumentError

ProgramArgument = Annotated[
    str,
    typer.Argument(
        help="A function in a file or module: train.py:step or package.train:step. One without "
        "arguments is called, and returns the function to look at and its arguments.",
        metavar="FILE:FUNCTION",
    ),
]
ShapesOption = Annotated[
    str | None,
    typer.Option(
        help="The arguments, arrays of these shapes: 'f32[64,32] i32[8]'. Pytrees need a function "
        "without arguments that returns them.",
        metavar="SHAPES",
    ),
]
ChosenHalfOption = Annotated[
    HalfTypeChoice | None,
    typer.Option(help="The half type; by default that of the program, or what is fast there."),
]
PaintTargetOption = Annotated[
    str | None,
    typer.Option(
        help="Paint as for this device, which need not be here: h100, a100, v5e, ….",
        metavar="NAME",
    ),
]
_SHAPE = re.compile(r"^([a-z]+)(\d+)\[([\d,\s]*)\]$")
_DTYPES = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint", "c": "complex"}
_KNOWN = frozenset(
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 "
    "complex128".split()
)


def settings(dtype: HalfTypeChoice | None, policy_file: Path | None) -> dict[str, Any]:
    """The arguments ``dtype`` and ``policy`` of duotone's functions, as options say them."""
    from duotone.policy import Policy

    return {
        "dtype": None if dtype is None else dtype.value,
        "policy": None if policy_file is None else Policy.from_file(policy_file),
    }


def names(text: str) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def load(program: str, shapes: str | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function that is meant, and its arguments.

    Args:
        program: file or module, colon, name; dots in the name go into classes and objects.
        shapes: of its arguments, if they are arrays.

    Raises:
        ArgumentError: there is no such file, module or function, or its arguments are unknown.
    """
    where, colon, name = program.rpartition(":")
    if not colon or not where or not name:
        raise ArgumentError(f"{program!r}: name a function, as in train.py:step.")
    found: Any = _module(where)
    for part in name.split("."):
        if not hasattr(found, part):
            there = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            near = difflib.get_close_matches(part, there, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(sorted(there))}"
            raise ArgumentError(f"{where} has no {name}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ArgumentError(f"{program}: {name} is no function but {type(found).__name__}.")
    if shapes is not None:
        return found, tuple(_shape(word) for word in re.findall(r"\w+\[[^\]]*\]?|[^\s,]+", shapes))
    return _made(program, found)


def _module(where: str) -> ModuleType:
    """Runs a file, or imports a module; what stands beside it can be imported, as in Python."""
    if not where.endswith(".py"):
        if not sys.flags.safe_path and "" not in sys.path:
            sys.path.insert(0, "")
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is not None and not where.startswith(error.name):
                raise
            raise ArgumentError(f"no module {where}; a file ends in .py.") from error
    path = Path(where)
    if not path.is_file():
        raise ArgumentError(f"there is no file {where}.")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _shape(word: str) -> Any:
    import jax

    found = _SHAPE.match(word)
    dtype = found and _DTYPES.get(found[1], "") + found[2]
    if found is None or dtype not in _KNOWN:
        raise ArgumentError(f"--shapes: {word!r} is no shape; write f32[8,16] or i32[].")
    sizes = [int(size) for size in found[3].split(",") if size.strip()]
    return jax.ShapeDtypeStruct(sizes, dtype)


def _made(program: str, function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Calls a function without arguments for another one and its arguments."""
    try:
        needed = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        needed = []
    if needed:
        raise ArgumentError(
            f"{program} takes {', '.join(needed)}: give --shapes 'f32[8,16] ...', or name a "
            "function without arguments that returns (function, *arguments)."
        )
    made = function()
    if isinstance(made, tuple) and made and callable(made[0]):
        return made[0], made[1:]
    raise ArgumentError(
        f"{program} takes no argument, so it was called; it must return (function, *arguments) "
        f"and returned {type(made).__name__}."
    )
