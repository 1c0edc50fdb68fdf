"""Signatures: which arguments of a call are traced, and which are part of the program.

duotone traces arrays and the other operands that JAX traces: mutable arrays (``jax.Ref``), tokens,
and values of types that are registered with JAX. User code may branch on any other argument (Python
numbers, strings, functions, objects that JAX does not flatten). These are part of the cache key of
the rewritten program. The same division applies to results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from duotone import _jax
from duotone.errors import ArgumentTypeError, LeakedTracerError, OutputError, kind_of

_NUMERIC_KINDS = "biufcV"


class Static:
    """A leaf that is not traced; two are equal if they give the same program."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        kind = type(value)
        if isinstance(value, float):
            self._key: Any = (kind, value.hex())  # tells 0.0 from -0.0, and nan equals itself
        elif isinstance(value, complex):
            self._key = (kind, value.real.hex(), value.imag.hex())
        else:
            try:
                hash(value)
                self._key = (kind, value)
            except TypeError:
                self._key = (kind, id(value))  # ``value`` stays alive, so its id is not reused

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


class _NoDerivative:
    """The shape of a float0 array, which has no data and which no compiled program accepts."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __hash__(self) -> int:
        return hash(self.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NoDerivative) and self.shape == other.shape

    def array(self) -> np.ndarray:
        """Returns a float0 array of this shape."""
        return np.zeros(self.shape, jax.dtypes.float0)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """The part of a call, or of a function's results, that is not traced.

    Attributes:
        tree: structure of ``(args, kwargs)``, or of the results.
        statics: position and value of each leaf that is not traced.
    """

    tree: Any
    statics: tuple[tuple[int, Static], ...]

    def restore(self, leaves: Any) -> Any:
        """Returns ``(args, kwargs)``, or the results, with ``leaves`` instead of the arrays."""
        return jax.tree.unflatten(self.tree, merge(self.statics, leaves))


Results = Signature


def merge(statics: tuple[tuple[int, Static], ...], arrays: Any) -> list[Any]:
    """Returns all leaves in order."""
    if not statics:
        return list(arrays)
    fixed = {
        position: leaf.value.array() if isinstance(leaf.value, _NoDerivative) else leaf.value
        for position, leaf in statics
    }
    rest = iter(arrays)
    return [fixed[i] if i in fixed else next(rest) for i in range(len(fixed) + len(arrays))]


def split(leaves: list[Any]) -> tuple[list[Any], tuple[tuple[int, Static], ...], int]:
    """Divides leaves into arrays and statics.

    Returns:
        The arrays, the statics with their positions, and the position of the first leaf that is
        neither (-1 if there is none).
    """
    if {_jax.ArrayType}.issuperset(map(type, leaves)):
        return leaves, (), -1  # the usual case; no loop in Python
    arrays: list[Any] = []
    statics: list[tuple[int, Static]] = []
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, jax.Array):
            arrays.append(leaf)
        elif isinstance(leaf, (np.ndarray, np.generic)):
            if leaf.dtype == jax.dtypes.float0:
                statics.append((position, Static(_NoDerivative(leaf.shape))))
            elif leaf.dtype.kind in _NUMERIC_KINDS:
                arrays.append(leaf)
            else:
                statics.append((position, Static(leaf)))
        elif isinstance(leaf, jax.ShapeDtypeStruct) or _jax.is_operand(leaf):
            arrays.append(leaf)
        elif hasattr(leaf, "__jax_array__"):
            return arrays, tuple(statics), position
        else:
            statics.append((position, Static(leaf)))
    return arrays, tuple(statics), -1


def flatten_call(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], Signature]:
    """Returns the arrays of a call, and its signature.

    Raises:
        ArgumentTypeError: an argument contains an object that only converts to an array.
    """
    leaves, tree = _jax.argument_registry.flatten((args, kwargs))
    arrays, statics, bad = split(leaves)
    if bad >= 0:
        path = _jax.argument_registry.flatten_with_path((args, kwargs))[0][bad][0]
        raise ArgumentTypeError(
            f"{name}: {describe_argument(path)} is {kind_of(leaves[bad])}, which is not "
            "an array but converts to one, so it would be frozen into the program; pass its array "
            "instead (for a Keras or Flax variable, its `.value`)"
        )
    return arrays, Signature(tree, statics)


def for_another_run(operands: Sequence[Any]) -> list[Any]:
    """Copies the operands of a call for another run with the same contents.

    Only mutable operands (a Ref, a NumPy array) are copied, so that the run does not change the
    caller's.
    """
    copies = list(operands)
    for position, operand in enumerate(operands):
        if isinstance(operand, jax.Ref):
            copies[position] = jax.new_ref(operand[...])
        elif isinstance(operand, (np.ndarray, np.generic)):
            copies[position] = jax.numpy.array(operand)
    return copies


def describe_argument(path: Any) -> str:
    """Returns ``argument 0['weights']`` or ``argument params['weights']`` for a path."""
    return f"argument {_argument_at(path)}{jax.tree_util.keystr(path[2:])}"


def _argument_at(path: Any) -> Any:
    """Returns the number or the name of the argument that a path in (args, kwargs) leads into."""
    number = getattr(path[1], "idx", None)
    return getattr(path[1], "key", path[1]) if number is None else number


def argument_names(function: Callable[..., Any], signature: Signature) -> tuple[str, ...]:
    """Returns the name of each traced leaf of a call: ``x``, ``params/dense/kernel``.

    Args:
        function: the user's function, whose parameters name its arguments. If its signature is
            unknown, the name of a positional argument is its number.
        signature: the signature of the call.
    """
    count = signature.tree.num_leaves
    untraced = {position for position, _ in signature.statics}
    counted = jax.tree.unflatten(signature.tree, range(count))
    paths = _jax.argument_registry.flatten_with_path(counted)[0]
    parameters = _parameter_names(function)
    return tuple(
        _leaf_name(path, parameters) for i, (path, _) in enumerate(paths) if i not in untraced
    )


def _leaf_name(path: Any, parameters: list[str]) -> str:
    """Returns the name of the leaf at ``path`` in ``(args, kwargs)``."""
    first = _argument_at(path)
    if isinstance(first, int) and first < len(parameters):
        first = parameters[first]
    inner = jax.tree_util.keystr(path[2:], simple=True, separator="/")
    return f"{first}/{inner}" if inner else str(first)


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the positional parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def flatten_results(name: str, results: Any) -> tuple[list[Any], Results]:
    """Returns the arrays among a function's results, and the rest.

    Raises:
        OutputError: a result runs only after the function has returned (a generator, a coroutine),
            or only converts to an array.
        LeakedTracerError: an object that JAX does not flatten contains a traced value.
    """
    leaves, tree = jax.tree.flatten(results, is_leaf=_runs_later)
    arrays, statics, bad = split(leaves)
    for leaf in [leaves[bad]] if bad >= 0 else [static.value for _, static in statics]:
        _check_result(name, leaf)
    return arrays, Results(tree, statics)


def _check_result(name: str, leaf: Any) -> None:
    kind = type(leaf).__name__
    if _runs_later(leaf):
        if hasattr(leaf, "close"):
            leaf.close()  # a coroutine that nobody awaits would warn of it
        raise OutputError(
            f"{name} returned a {kind}, whose code runs after tracing has ended; return arrays "
            "(for a generator, collect them in a list or tuple first)"
        )
    if hasattr(leaf, "__jax_array__"):
        raise OutputError(
            f"{name} returned a {kind}, which is not an array but converts to one; return its "
            "array (for a Keras or Flax variable, its `.value`)"
        )
    if any(isinstance(x, Tracer) for x in _inside(leaf)):
        raise LeakedTracerError(
            f"{name} returned a {kind} that contains a traced value and that JAX does not flatten; "
            f"return the arrays, or register {kind} with jax.tree_util.register_dataclass"
        )


def _runs_later(leaf: Any) -> bool:
    """Returns True if the code of a result runs after tracing has ended."""
    return isinstance(leaf, (Iterator, Awaitable))


def _inside(leaf: Any) -> Iterator[Any]:
    """Yields the objects inside an object that is not a pytree, one level deep."""
    if isinstance(leaf, (set, frozenset)):
        yield from leaf
    yield from getattr(leaf, "__dict__", {}).values()
    for kind in type(leaf).__mro__:
        for slot in getattr(kind, "__slots__", ()):
            yield getattr(leaf, slot, None)
    for cell in getattr(leaf, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield cell.cell_contents
    if isinstance(leaf, functools.partial):
        yield from leaf.args
        yield from leaf.keywords.values()
    if isinstance(leaf, types.MethodType):
        yield from getattr(leaf.__self__, "__dict__", {}).values()


def name_of(function: Callable[..., Any]) -> str:
    """Returns the qualified name of a function, or the class of another callable."""
    return getattr(function, "__qualname__", None) or type(function).__name__


def describe_callable(function: Callable[..., Any], by: str = "autocast") -> str:
    """Returns a name for error messages: ``autocast(loss)``, or ``by`` in place of it."""
    return f"{by}({name_of(function)})"
