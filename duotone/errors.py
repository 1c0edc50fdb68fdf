"""Every exception duotone raises, in one place.

Each message names the thing that is wrong, where it is (the operation and the user's source line
when there is one) and the remedy. Callers catch :class:`DuotoneError` for all of them; each class
is also the built-in error a Python user would expect (``TypeError``, ``ValueError``), so code that
knows nothing of duotone still catches them. :func:`shown` and :func:`way_out` help to write them.
"""

from __future__ import annotations

import importlib
import numbers
from typing import Any


def shown(thing: object) -> str:
    """Shows an argument in a message: of an array its type and shape, never its elements.

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
    """The class of an argument with its article: "an Optimizer".

    Example:
        >>> kind_of([]), kind_of(3)
        ('a list', 'an int')
    """
    return with_article(type(thing).__name__)


def with_article(words: str) -> str:
    """Words with "a" or "an" before them.

    Example:
        >>> with_article("optax GradientTransformation")
        'an optax GradientTransformation'
    """
    return f"{'an' if words[:1] in set('aeiouAEIOU') else 'a'} {words}"


def plural(number: int, noun: str) -> str:
    """A number and a noun.

    Example:
        >>> plural(1, "step"), plural(1200, "step")
        ('1 step', '1,200 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def way_out(argument: str) -> str:
    """How to call a function of the user's whose own argument has a name that duotone takes."""
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
    """A policy contradicts itself or holds a value that no painter knows."""


class PolicyTypeError(PolicyError, ArgumentTypeError):
    """A policy field holds a value of the wrong type, such as one string instead of a list."""


class UnknownOperationError(PolicyError):
    """A list edit names an operation that the front end does not know."""


class RangeError(ArgumentError):
    """A range was stated of something that does not exist, or contradicts what is known."""


class CalibrationError(ArgumentError):
    """A calibration cannot be made from this data, read from this file or used here."""


class EnvironmentVariableError(DuotoneError, ValueError):
    """An environment variable holds a value that it does not take."""


class OutputError(DuotoneError, TypeError):
    """A function returned something that cannot leave a traced function."""


class WriteError(DuotoneError, OSError):
    """A file cannot be written: names it and the remedy; ``errno`` is the file system's own."""


class RewriteError(DuotoneError, RuntimeError):
    """The rewritten program does not keep what a rewrite must keep. A fault of duotone."""


class MissingExtraError(DuotoneError, ImportError):
    """A part of duotone needs a library that is installed with one of its extras.

    Args:
        what: what cannot be done without the library.
        library: the library, by the name pip knows.
        extra: the extra of duotone that installs it.
    """

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(
            f"{what} cannot be had without {library}, which is not installed: "
            f"python -m pip install 'duotone[{extra}]'"
        )


class UnknownTargetError(ArgumentError):
    """A target that duotone has no description of.

    Args:
        name: what was asked for.
        known: the names there are.
        near: the name that was probably meant.
    """

    def __init__(self, name: object, known: list[str], near: str | None = None) -> None:
        meant = f"; did you mean {near!r}?" if near else "."
        other = "" if near else f"; {way_out('target')}"
        super().__init__(
            f"target {shown(name)} is not known{meant} Known: {', '.join(known)}{other}"
        )


class CompilationError(DuotoneError, RuntimeError):
    """The compiler of a target refused a program, or could not be started."""


class TraceError(DuotoneError, ValueError):
    """A profile cannot be taken, or a file is no trace of JAX's profiler."""


class GraphDefError(ArgumentError):
    """A TensorFlow graph that cannot be rewritten: names the node, what is wrong and the remedy."""


class OnnxError(ArgumentError):
    """An ONNX model that cannot be rewritten or run: names file and node, and what is wrong."""


class ProgramTextError(DuotoneError, ValueError):
    """The text of a compiled program is not as duotone's reader expects it.

    Args:
        what: what was found.
        line: where.
    """

    def __init__(self, what: str, line: str) -> None:
        super().__init__(
            f"the compiled program has {what}, which duotone cannot read; this is a fault of "
            f"duotone with this version of XLA, please report the line: {line.strip()[:200]}"
        )


def __getattr__(name: str) -> Any:
    """Makes ``LeakedTracerError``, whose base is JAX's, when it is first read.

    Importing this module loads no JAX.
    """
    if name != "LeakedTracerError":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    base: Any = importlib.import_module("jax.errors").UnexpectedTracerError

    class LeakedTracerError(DuotoneError, base):
        """A traced value left the function by a way other than its return value."""

        def __init__(self, message: str) -> None:
            Exception.__init__(self, message)  # JAX's own adds a link to a page on its class

    LeakedTracerError.__qualname__ = name
    globals()[name] = LeakedTracerError
    return LeakedTracerError
