"""Run: calls the rewritten program, compiled, traced once for each signature.

``jax.jit`` keeps the compiled programs, and the rewrite happens in its trace. So a second call
costs as much as a ``jit`` call. A call inside another transformation becomes a ``jit`` equation,
which every transformation supports. The name of that equation is
:data:`~duotone.jaxpr.reading.scopes.MARKER`, so an outer ``autocast`` does not rewrite it again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer

from duotone import _jax
from duotone.errors import LeakedTracerError
from duotone.graph.collector import collector_paused
from duotone.jaxpr.reading.scopes import MARKER
from duotone.jaxpr.reading.signature import Results, Signature, describe_callable, flatten_call
from duotone.jaxpr.reading.trace import Traced, is_leak, leak_inside, trace
from duotone.jaxpr.running.inside import collection_now
from duotone.jaxpr.running.interpreter import with_long_stack
from duotone.jaxpr.running.own_jit import is_alone, own_jit, traced_once, types_of

logger = logging.getLogger("duotone")

_MANY_SIGNATURES = 16


class Runner:
    """A function and the rewritten programs of its signatures."""

    def __init__(
        self,
        function: Callable[..., Any],
        rewrite: Callable[[Traced], Callable[..., list[Any]]],
        by: str = "autocast",
    ) -> None:
        """Makes a runner; messages name the function of duotone that the user called, ``by``."""
        self._function = function
        self._rewrite = rewrite
        self._name = describe_callable(function, by)
        self._compiled: dict[Any, Callable[..., tuple[list[Any], Results]]] = {}
        self._structures: dict[Any, int] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the rewritten function."""
        arrays, signature = flatten_call(self._name, args, kwargs)
        key = self._key(signature, arrays)
        collection = collection_now()
        compiled = self._compiled.get(key) if collection is None else None
        try:
            if collection is not None:
                # The program of a call inside `duotone.explain` has a name of its own.
                key = key, tuple([jax.typeof(array) for array in arrays])
                compiled = collection.once(self, key, lambda: self._compile(signature, arrays))
                out, results = compiled(*arrays)
            elif compiled is None:
                with collector_paused():
                    out, results = with_long_stack(lambda: self._first(key, signature, arrays))
            else:
                out, results = compiled(*arrays)
        except jax.errors.UnexpectedTracerError as error:
            if not is_leak(error):
                raise
            if not any(isinstance(array, Tracer) for array in arrays):
                raise LeakedTracerError(leak_inside(self._name)) from error
            raise LeakedTracerError(
                f"{self._name}: an argument is a traced value that its trace left behind; return "
                "it from the function that computed it instead of storing it"
            ) from error
        return results.restore(out)

    def _first(
        self, key: Any, signature: Signature, arrays: Sequence[Any]
    ) -> tuple[list[Any], Results]:
        """Makes the first call with a signature, which traces, paints and rewrites."""
        compiled = self._compiled[key] = self._compile(signature, arrays)
        return compiled(*arrays)

    def _key(self, signature: Signature, arrays: Sequence[Any]) -> Any:
        """Returns the key of the ``jit`` function for a call."""
        del arrays  # the cache of `jit` has them in its key
        return signature.tree, signature.statics

    def _compile(self, signature: Signature, arrays: Sequence[Any]) -> Callable[..., Any]:
        self._warn_of_many(signature)
        name = marker()
        inside: dict[Any, tuple[int, ...]] = {}

        def program(*leaves: Any) -> tuple[list[Any], Results]:
            make = functools.partial(trace, self._function, signature, leaves)
            traced = traced_once((self, signature.tree, signature.statics), leaves, make)
            inside[types_of(leaves)] = _jax.donated_arguments(traced.jaxpr)
            return put_down(name, self._rewrite(traced), leaves), traced.results

        donated = self._donated(signature, arrays)
        named = _jax.named(program, name)
        compiled = own_jit(named, rewritten=True, donate_argnums=donated)
        if not donated and is_alone(arrays):
            compiled.trace(*arrays)  # the first call uses this trace
            if any(inside.values()):
                return _donating(named, compiled, inside)
        return compiled

    def _donated(self, signature: Signature, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Returns the positions of the arrays that a function donates, if ``jit`` returned it.

        JAX honors donation only on the outermost ``jit``, which is now duotone's.
        """
        if not _jax.is_jitted(self._function):
            return ()
        return _jax.donated_arguments(trace(self._function, signature, arrays).jaxpr)

    def _warn_of_many(self, signature: Signature) -> None:
        """Warns once if a Python number that changes at every call compiles many programs."""
        if collection_now() is not None:
            return
        count = self._structures.get(signature.tree, 0) + 1
        self._structures[signature.tree] = count
        if count == _MANY_SIGNATURES:
            logger.warning(
                "%s was traced for %d different values of its non-array arguments; if one of them "
                "is a number that changes, pass it as an array: jnp.asarray(x).",
                self._name,
                count,
            )


def _donating(program: Any, compiled: Any, inside: dict[Any, tuple[int, ...]]) -> Any:
    """Returns a function that donates what the program for its arguments' types donates.

    Args:
        program: the function to compile, which adds to ``inside`` when it is traced.
        compiled: the ``jit`` function of it that donates nothing.
        inside: the positions of the donated arguments, by the types of all arguments.
    """
    made: dict[tuple[int, ...], Any] = {(): compiled}

    def run(*leaves: Any) -> Any:
        if not is_alone(leaves):
            return compiled(*leaves)
        types = types_of(leaves)
        if types not in inside:
            compiled.trace(*leaves)
        donated = inside.get(types, ())
        if donated not in made:
            made[donated] = own_jit(program, rewritten=True, donate_argnums=donated)
        return made[donated](*leaves)

    return run


def marker() -> str:
    """Returns the name of the ``jit`` function around a rewritten program."""
    collection = collection_now()
    return MARKER if collection is None else collection.new_name()


def put_down(name: str, run: Callable[..., list[Any]], leaves: Sequence[Any]) -> list[Any]:
    """Runs a rewritten program; stores its painting in the current collection, if there is one."""
    collection = collection_now()
    if collection is None:
        return run(*leaves)
    jaxpr = jax.make_jaxpr(run)(*leaves)
    collection.put(name, jaxpr)
    return _jax.jaxpr_as_fun(jaxpr)(*leaves)
