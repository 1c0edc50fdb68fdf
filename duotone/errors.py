"""All exceptions that duotone raises.

Each message names the problem, its location (the operation and, if known, the user's source line)
and the remedy. :class:`DuotoneError` is the base of all of them. Each class is also a built-in
error (``TypeError``, ``ValueError``), so code that does not know duotone can catch it.

``LeakedTracerError`` is raised if a traced value left a function other than by its return value; it
is also JAX's ``UnexpectedTracerError``.
"""

from __future__ import annotations

import importlib
import numbers
from typing import Any


def shown(thing: object) -> str:
    """Formats an argument for a message; an array by its type and shape, never its elements.

    Example:
        >>> shown("fast"), shown({"w": 3})
        ("'fast'", 'a dict')
    """
    if isinstance(thing, str | bytes | numbers.Number | type) or thing is None:
        return repr(thing)
    dtype = getattr(thing, "dtype", None)
    if dtype is not None:
        return f"an array of {dtype}{list(getattr(thing, 'shape', ()))}"
    return kind_of(thing)


def kind_of(thing: object) -> str:
    """Returns the class of an argument with its article: "an Optimizer".

    Example:
        >>> kind_of([]), kind_of(3)
        ('a list', 'an int')
    """
    return with_article(type(thing).__name__)


def with_article(words: str) -> str:
    """Puts "a" or "an" before words.

    Example:
        >>> with_article("optax GradientTransformation")
        'an optax GradientTransformation'
    """
    return f"{'an' if words[:1] in set('aeiouAEIOU') else 'a'} {words}"


def plural(number: int, noun: str) -> str:
    """Formats a number and a noun.

    Example:
        >>> plural(1, "step"), plural(1200, "step")
        ('1 step', '1,200 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def way_out(argument: str) -> str:
    """Tells how to call a user's function that has an argument of the same name as duotone's."""
    return (
        f"for a function with an argument of this name, pass functools.partial(fn, {argument}=...)"
    )


class DuotoneError(Exception):
    """Base of all errors raised by duotone."""


class ArgumentError(DuotoneError, ValueError):
    """An argument has the right type and a value that cannot be used."""


class ArgumentTypeError(DuotoneError, TypeError):
    """An argument has the wrong type."""


class PolicyError(DuotoneError, ValueError):
    """A policy contradicts itself or has a value that no painter knows."""


class PolicyTypeError(PolicyError, ArgumentTypeError):
    """A policy field has a value of the wrong type, such as one string instead of a list."""


class UnknownOperationError(PolicyError):
    """A list edit names an operation that the front end does not know."""


class RangeError(ArgumentError):
    """A stated range is of a value that does not exist, or contradicts the known range."""


class CalibrationError(ArgumentError):
    """A calibration cannot be made from this data, read from this file or used here."""


class EnvironmentVariableError(DuotoneError, ValueError):
    """An environment variable has a value that it does not take."""


class OutputError(DuotoneError, TypeError):
    """A function returned something that cannot leave a traced function."""


class WriteError(DuotoneError, OSError):
    """A file cannot be written; ``errno`` is that of the file system."""


class RewriteError(DuotoneError, RuntimeError):
    """The rewritten program violates an invariant of rewrites. This is a bug of duotone."""


class MissingExtraError(DuotoneError, ImportError):
    """A part of duotone needs a library that is installed with one of its extras.

    Args:
        what: the feature that needs the library.
        library: the name of the library for pip.
        extra: the extra of duotone that installs it.
    """

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {library}, which is not installed: "
            f"python -m pip install 'duotone[{extra}]'"
        )


class UnknownTargetError(ArgumentError):
    """A target that duotone does not know.

    Args:
        name: the name that the user gave.
        known: all known names.
        meant: a question for the nearest known name, or the empty string.
    """

    def __init__(self, name: object, known: list[str], meant: str = "") -> None:
        meant = f"; {meant}" if meant else "."
        # A function of the user may have an argument `target`, which takes something else.
        other = "" if isinstance(name, str) else f"; {way_out('target')}"
        super().__init__(
            f"target {shown(name)} is not known{meant} Known: {', '.join(known)}{other}"
        )


class CompilationError(DuotoneError, RuntimeError):
    """The compiler of a target refused a program, or could not be started."""


class TraceError(DuotoneError, ValueError):
    """A profile cannot be made, or a file is not a trace of JAX's profiler."""


class GraphDefError(ArgumentError):
    """A TensorFlow graph cannot be rewritten; the message names the node and the remedy."""


class TensorFlowError(DuotoneError, RuntimeError):
    """Raised if this TensorFlow, or a program that runs in it, cannot be rewritten live."""


class OnnxError(ArgumentError):
    """An ONNX model cannot be rewritten or run; the message names the file and the node."""


class ProgramTextError(DuotoneError, ValueError):
    """duotone cannot parse the text of a compiled program.

    Args:
        what: the unexpected text.
        line: its line.
    """

    def __init__(self, what: str, line: str) -> None:
        super().__init__(
            f"the compiled program has {what}, which duotone cannot read; this is a bug in "
            f"duotone with this version of XLA, please report the line: {line.strip()[:200]}"
        )


def __getattr__(name: str) -> Any:
    """Makes ``LeakedTracerError``, a subclass of JAX's error, without importing JAX earlier."""
    if name != "LeakedTracerError":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    base: Any = importlib.import_module("jax.errors").UnexpectedTracerError

    class LeakedTracerError(DuotoneError, base):
        """A traced value left the function other than by its return value."""

        def __init__(self, message: str) -> None:
            Exception.__init__(self, message)  # the initializer of JAX's error adds a link

    LeakedTracerError.__qualname__ = name
    globals()[name] = LeakedTracerError
    return LeakedTracerError
