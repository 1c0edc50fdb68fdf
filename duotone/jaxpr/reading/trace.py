"""Trace: from a user's function and the arrays of one call to a jaxpr."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from duotone import _jax
from duotone.errors import DuotoneError, LeakedTracerError
from duotone.jaxpr.modules import named_modules
from duotone.jaxpr.reading.foreign import refuse_nnx_objects, traced_cleanly
from duotone.jaxpr.reading.signature import (
    Results,
    Signature,
    argument_names,
    describe_callable,
    flatten_results,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """A traced function.

    Attributes:
        jaxpr: takes and returns arrays only.
        results: the structure of the function's results, and the results that are not arrays.
        function: the user's function.
        signature: the signature of the call.
    """

    jaxpr: _jax.ClosedJaxpr
    results: Results
    function: Callable[..., Any]
    signature: Signature

    def arguments(self) -> tuple[str, ...]:
        """Returns the name of each argument of :attr:`jaxpr`."""
        return argument_names(self.function, self.signature)


_LEAK = "Encountered an unexpected tracer"
"""How JAX begins the message about a traced value that outlived its trace."""


def is_leak(error: jax.errors.UnexpectedTracerError) -> bool:
    """Returns True if an error is about a traced value that outlived its trace.

    JAX raises this class for other mistakes too, such as a traced value in
    ``nondiff_argnums``. Those messages name their own remedies.
    """
    return not isinstance(error, DuotoneError) and str(error).startswith(_LEAK)


def leak_inside(name: str) -> str:
    """Returns the error message for a function that uses a traced value of another call."""
    return (
        f"{name} uses a traced value that an earlier trace left behind (in a global, an attribute "
        "or a closure); pass it as an argument and return it as a result instead"
    )


def trace(
    function: Callable[..., Any],
    signature: Signature,
    arrays: Sequence[Any],
    name: str | None = None,
) -> Traced:
    """Traces ``function`` on one signature.

    Args:
        function: the user's function.
        signature: the signature of the call.
        arrays: arrays, tracers or ``jax.ShapeDtypeStruct``.
        name: the name of the function in messages.

    Returns:
        The traced function. Errors inside it pass through with the user's own traceback.

    Raises:
        LeakedTracerError: the function uses a traced value of another call, or stores one in the
            outer Linen or Haiku model.
        ArgumentTypeError: an argument is a Flax NNX object.
    """
    name = name or describe_callable(function)
    flat, found = flattened(function, signature, name)
    try:
        jaxpr = jax.make_jaxpr(flat)(*arrays)
    except jax.errors.UnexpectedTracerError as error:
        if not is_leak(error):
            raise
        raise LeakedTracerError(leak_inside(name)) from error
    return Traced(jaxpr, found[-1], function, signature)


def flattened(
    function: Callable[..., Any], signature: Signature, name: str
) -> tuple[Callable[..., list[Any]], list[Results]]:
    """Returns ``function`` as a function of arrays.

    Returns:
        A function of arrays to arrays; and a list to which each of its calls appends the rest of
        the results.
    """
    found: list[Results] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = signature.restore(leaves)
        refuse_nnx_objects(name, function, (args, kwargs))
        owner = getattr(function, "__self__", function)
        with traced_cleanly(name), named_modules(owner, args, kwargs):
            out, results = flatten_results(name, function(*args, **kwargs))
        found.append(results)
        return out

    vars(flat)["__wrapped__"] = function  # JAX's own errors then name the user's function and line
    return flat, found
