"""The ``jit`` functions that duotone makes, with compiler options where a program gains from them.

Compiler options are part of a ``jit``, and the fastest forms depend on them, so the options must be
chosen before anything inside is painted. Every part of duotone that compiles a user's function
makes it with :func:`own_jit`, which decides at the first call of each signature::

    trace for a program without options
    is a convolution left in float32 there?   trace once more, for a program with options
    is then 1.25 times as much work in half?  compile with options, else without

On devices without options (:func:`duotone.compiler_options`) this is ``jax.jit`` itself.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
from jax.core import Tracer

from duotone import _jax
from duotone.devices.options import compiler_options, painting_for
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.reading.operations import dtype_name, product_flops
from duotone.jaxpr.reading.trace import Traced
from duotone.jaxpr.running.inside import collection_now, holds_rewritten
from duotone.jaxpr.running.jaxprs import programs_in

T = TypeVar("T")
Make = Callable[[bool | None], tuple[T, Callable[[], _jax.ClosedJaxpr]]]

_WORTH_OPTIONS = 1.25
"""How many times as much must be half with compiler options: dots are then rounded, for no gain."""


def own_jit(function: Callable[..., Any], *, rewritten: bool = False, **settings: Any) -> Any:
    """Returns ``jax.jit(function)``, with the device's compiler options where they gain.

    Inside of another trace it has no options, since JAX takes them on the outermost ``jit`` only.

    Args:
        function: takes and returns trees of arrays.
        rewritten: whether it is a rewritten program, not a function that may call some.
        **settings: arguments of ``jax.jit``.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> step = own_jit(lambda x: duotone.autocast(jnp.dot)(x, x))
        >>> float(step(jnp.full(2, 3.0)))
        18.0
    """
    if not compiler_options():
        return jax.jit(function, **settings)
    return _OwnJit(function, rewritten, settings)


class _OwnJit:
    """A function compiled with or without options; the decision is made for each signature."""

    def __init__(
        self, function: Callable[..., Any], rewritten: bool, settings: dict[str, Any]
    ) -> None:
        self._rewritten = rewritten
        self._inner = jax.jit(function, **settings)
        self._outermost = {
            False: jax.jit(_painted_for(False, function), **settings),
            True: jax.jit(
                _painted_for(True, function), compiler_options=compiler_options(), **settings
            ),
        }
        self._chosen: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._for(args, kwargs)(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Calls ``trace`` of the ``jit`` function for these arguments."""
        return self._for(args, kwargs).trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Calls ``lower`` of the ``jit`` function for these arguments."""
        return self._for(args, kwargs).lower(*args, **kwargs)

    def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        if not is_alone(leaves):
            return self._inner
        key = tree, types_of(leaves)
        chosen = self._chosen.get(key)
        if chosen is None:

            def make(options: bool | None) -> tuple[Any, Callable[[], _jax.ClosedJaxpr]]:
                jitted = self._outermost[bool(options)]
                return jitted, lambda: jitted.trace(*args, **kwargs).jaxpr  # which `jit` keeps

            chosen = self._chosen[key] = decided(make, leaves, rewritten=self._rewritten)
        return chosen


def _painted_for(options: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def painted(*args: Any, **kwargs: Any) -> Any:
        with painting_for(options):
            return function(*args, **kwargs)

    return painted


def may_have_options(leaves: Sequence[Any]) -> bool:
    """Checks if a ``jit`` function called with these arguments may have compiler options."""
    return bool(compiler_options()) and is_alone(leaves)


def types_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the shapes and dtypes of arguments, traced or not."""
    return tuple([(getattr(x, "shape", ()), getattr(x, "dtype", type(x))) for x in leaves])


def is_alone(leaves: Sequence[Any]) -> bool:
    """Checks if a ``jit`` function called with these arguments is the outermost one."""
    disabled = jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
    return _jax.is_outermost(leaves) and collection_now() is None and not disabled


def decided(make: Make[T], leaves: Sequence[Any], *, rewritten: bool = False) -> T:
    """Makes something from a program without options, or with them if they gain.

    Args:
        make: takes whether the program has options, and paints it for this case; ``None`` inside of
            another trace, which leaves nothing to decide. Returns the result, and a function that
            traces the program.
        leaves: the arguments of the program, flat.
        rewritten: whether the program is a rewritten one, not one that may contain some.

    Returns:
        The result of ``make`` for the better program.
    """
    if not may_have_options(leaves):
        return make(None)[0]
    with _deciding():
        found, plain, lines = _made(make, False)
        if (rewritten or holds_rewritten(plain)) and _convolves_in_full(plain):
            other, with_options, others = _made(make, True)
            if half_work(with_options) > _WORTH_OPTIONS * half_work(plain):
                found, lines = other, others
    for log in lines:
        log()
    return found


def _made(make: Make[T], options: bool) -> tuple[T, _jax.ClosedJaxpr, list[Callable[[], None]]]:
    _decision.lines = lines = []
    made, traced = make(options)
    return made, traced(), lines


class _Decision(threading.local):
    """The decision of this thread; its attributes are ``None`` where none is under way.

    Attributes:
        lines: log lines of the program that is traced now.
        programs: traced functions, which both programs rewrite.
    """

    lines: list[Callable[[], None]] | None = None
    programs: dict[Any, Traced] | None = None


_decision = _Decision()


@contextlib.contextmanager
def _deciding() -> Iterator[None]:
    before = _decision.lines, _decision.programs
    _decision.programs = {}
    try:
        yield
    finally:
        _decision.lines, _decision.programs = before


def when_decided(log: Callable[[], None]) -> None:
    """Logs a line about a painting, unless the program is made from another painting.

    The line is logged now if no decision about compiler options is under way.
    """
    if _decision.lines is None:
        log()
    else:
        _decision.lines.append(log)


def traced_once(owner: Any, leaves: Sequence[Any], make: Callable[[], Traced]) -> Traced:
    """Traces a function, only once for both programs of a decision."""
    programs = _decision.programs
    if programs is None:
        return make()
    with painting_for(False):  # the context is otherwise that of the call
        key = owner, _jax.trace_context(), *map(jax.typeof, leaves)
    traced = programs.get(key)
    if traced is None:
        traced = make()
        captured = any(isinstance(const, Tracer) for const in _jax.consts_of(traced.jaxpr))
        if not captured and not holds_rewritten(traced.jaxpr):  # which differ in their programs
            programs[key] = traced
    return traced


def half_work(jaxpr: Any) -> float:
    """Returns the floating point operations of the dots and convolutions with half operands."""
    total = 0.0
    for eqn in _jax.open_jaxpr(jaxpr).eqns:
        if eqn.invars and dtype_name(eqn.invars[0].aval) in HALF_TYPES:
            total += product_flops(eqn)
        runs = eqn.params.get("length", 1) or 1
        total += runs * sum(map(half_work, programs_in(eqn)))
    return total


def _convolves_in_full(jaxpr: Any) -> bool:
    """Checks if a program contains a float32 convolution, at any depth."""
    return any(
        (
            eqn.primitive.name == "conv_general_dilated"
            and dtype_name(eqn.invars[0].aval) not in HALF_TYPES
        )
        or any(map(_convolves_in_full, programs_in(eqn)))
        for eqn in _jax.open_jaxpr(jaxpr).eqns
    )
