"""Loads a function and its arguments from a name on the command line: ``train.py:step``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from duotone.cli.run import half_type_option
from duotone.errors import ArgumentError, shown
from duotone.text.suggestions import did_you_mean


def program_argument(more: str = "") -> Any:
    """Returns the argument that names a function; ``more`` says what else the command takes."""
    return typer.Argument(
        help="A function in a file or module: train.py:step or package.train:step. A function "
        "without arguments is called and returns the function to analyze and its arguments: "
        f"(step, x, y), or (step, (x, y)) if step takes no tuple.{more}",
        metavar="FILE:FUNCTION",
    )


ProgramArgument = Annotated[str, program_argument()]
ShapesOption = Annotated[
    str | None,
    typer.Option(
        help="The arguments, arrays of these shapes: 'f32[64,32] i32[8]'. Pytrees need a function "
        "without arguments that returns them.",
        metavar="SHAPES",
    ),
]
ChosenHalfOption = Annotated[
    str | None,
    half_type_option(
        "The half type; by default that of the program, or the one that is fast on the device."
    ),
]
PaintTargetOption = Annotated[
    str | None,
    typer.Option(
        help="Paint for this device, which need not be present: h100, a100, v5e, ….", metavar="NAME"
    ),
]
_SHAPE = re.compile(r"^([a-z]+)(\d+)\[((?:\s*\d+\s*(?:,|(?=\])))*\s*)\]$")
_DTYPES = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint", "c": "complex"}
_KNOWN = frozenset(
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 "
    "complex128".split()
)


def settings(dtype: str | None, policy_file: Path | None) -> dict[str, Any]:
    """Converts options to the arguments ``dtype`` and ``policy`` of duotone's functions."""
    from duotone.policy.policy import Policy

    return {
        "dtype": dtype,
        "policy": None if policy_file is None else Policy.from_file(policy_file),
    }


def names(text: str) -> tuple[str, ...]:
    """Splits a comma-separated list of names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def load(program: str, shapes: str | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Loads the function that a file or module, a colon and a name mean, and its arguments.

    Dots in the name are attributes; ``shapes`` are those of the arguments, if they are arrays.

    Raises:
        ArgumentError: there is no such file, module or function, its arguments are unknown, or the
            function does not take them.
    """
    where, colon, name = program.rpartition(":")
    if not colon or not where or not name:
        file = Path(program)
        graph = file.is_file() and file.suffix != ".py"
        hint = f" duotone view {program} shows a graph or a model." if graph else ""
        raise ArgumentError(f"{program!r}: name a function, as in train.py:step.{hint}")
    sys.argv = [where]  # the script sees a command line without arguments
    found: Any = _module(where)
    for part in name.split("."):
        if not hasattr(found, part):
            there = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            has = ", ".join(sorted(there)) or "no function"
            meant = did_you_mean(part, there, f"it has {has}.")
            raise ArgumentError(f"{where} has no {name}; {meant}")
        found = getattr(found, part)
    if not callable(found):
        raise ArgumentError(f"{program}: {name} is not a function but {type(found).__name__}.")
    if shapes is None:
        return _made(program, found)
    arguments = tuple(_shape(word) for word in re.findall(r"\w+\[[^\]]*\]?|[^\s,]+", shapes))
    _check_call(program, name, found, arguments, "Give --shapes one array for each.")
    error = _error_of(found, arguments)
    if isinstance(error, TypeError | ValueError):
        given = ", ".join(map(shown, arguments))
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ArgumentError(
            f"{program}: {name} fails on {given}{_line_of(found, error)}: {why}. Change --shapes, "
            f"or name a function without arguments that returns ({name}, *arguments)."
        ) from error
    return found, arguments


def _module(where: str) -> ModuleType:
    """Runs a file or imports a module; the file can import its neighbors, as in Python."""
    if not where.endswith(".py"):
        if not sys.flags.safe_path and "" not in sys.path:
            sys.path.insert(0, "")
        refusal = ArgumentError(f"no module {where}; a file ends in .py.")
        if where.startswith("."):
            raise refusal
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is not None and not where.startswith(error.name):
                raise
            raise refusal from error
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
        raise ArgumentError(f"--shapes: {word!r} is not a shape; write f32[8,16] or i32[].")
    sizes = [int(size) for size in found[3].split(",") if size.strip()]
    return jax.ShapeDtypeStruct(sizes, dtype)


def _made(program: str, function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Calls a function without arguments, which returns the function and its arguments."""
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
    if not isinstance(made, tuple) or not made or not callable(made[0]):
        raise ArgumentError(
            f"{program} takes no argument, so it was called; it must return (function, *arguments) "
            f"and returned {shown(made)}."
        )
    step, *arguments = made
    arguments = _spread(step, tuple(arguments))
    name = getattr(step, "__name__", type(step).__name__)
    remedy = f"Return ({name}, *arguments); bind others with functools.partial."
    _check_call(program, name, step, arguments, remedy)
    return step, arguments


def _spread(step: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments of ``(step, (x, y))``: the tuple, or its elements if only they fit.

    If the signature of the step allows both, tracing decides.
    """
    if len(arguments) != 1 or type(arguments[0]) is not tuple:
        return arguments
    inside = arguments[0]
    if _refusal(step, inside) is not None:
        return arguments
    if _refusal(step, arguments) is not None:
        return inside
    fits_only_spread = _error_of(step, arguments) and _error_of(step, inside) is None
    return inside if fits_only_spread else arguments


def _refusal(function: Callable[..., Any], arguments: tuple[Any, ...]) -> TypeError | None:
    """Returns Python's reason why a function cannot be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        return error
    except ValueError:  # it has no signature
        return None
    return None


def _error_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Exception | None:
    """Traces a function with these arguments and returns what it raises; computes nothing."""
    import jax

    leaves, tree = jax.tree.flatten(arguments)

    def call(*arrays: Any) -> None:
        rest = iter(arrays)
        filled = [next(rest) if hasattr(leaf, "dtype") else leaf for leaf in leaves]
        function(*jax.tree.unflatten(tree, filled))

    try:
        jax.eval_shape(call, *[leaf for leaf in leaves if hasattr(leaf, "dtype")])
    except Exception as error:  # any error of the user's function
        return error
    return None


def _line_of(function: Callable[..., Any], error: Exception) -> str:
    """Returns `` at file:line`` for the line in the function's file that raised an error."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    own = getattr(code, "co_filename", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == own]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _check_call(
    program: str, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], remedy: str
) -> None:
    """Raises if a function does not take these arguments by position."""
    refusal = _refusal(function, arguments)
    if refusal is not None:
        takes = ", ".join(inspect.signature(function).parameters) or "nothing"
        given = ", ".join(map(shown, arguments)) or "nothing"
        raise ArgumentError(
            f"{program}: {name} takes {takes} and is given {given}: {refusal}. {remedy}"
        )
