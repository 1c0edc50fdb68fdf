"""Runs a function whose first argument, the weights, is the same at every call.

::

    flatten the weights once and copy NumPy arrays
    at the first call of a signature
        trace the function with the weights in float32 (types only) and paint it as always
        cast the weights that the painting gives to every reader in half, unless cast before
    at each call: run the compiled program on the cast weights and the call's arrays

The trace sees float32 weights, so promotion in the function does not change. Weights cast before
the trace would make everything computed from them half.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from duotone import _jax
from duotone.devices.options import compiler_options, painting_for
from duotone.errors import ArgumentError, ArgumentTypeError, DuotoneError, way_out
from duotone.graph.graph import FULL_DTYPE, Paint
from duotone.jaxpr.reading.signature import Results, Signature, describe_callable, flatten_call
from duotone.jaxpr.reading.trace import Traced, trace
from duotone.jaxpr.running.own_jit import decided
from duotone.jaxpr.running.run import Runner, marker, put_down
from duotone.policy.policy import Policy


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params"],
    meta_fields=["cast", "dtype", "chosen", "policy"],
)
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class CastParams:
    """Weights, cast to half where a function reads them in half only.

    :func:`duotone.cast_params` returns it and ``autocast(fn, weights=...)`` takes it. It is a
    pytree, so it works with ``jax.device_put``, checkpoint libraries and ``jax.jit``.

    Attributes:
        params: the user's pytree, some leaves in half.
        cast: names of these leaves, as ``jax.tree_util.keystr`` writes them.
        dtype: the half type, or ``None`` if the function stays unchanged.
        chosen: whether duotone chose the half type.
        policy: the policy of the rewrite, or ``None`` for the default.
    """

    params: Any
    cast: frozenset[str]
    dtype: str | None
    chosen: bool = False
    policy: Policy | None = None

    @property
    def bytes_after(self) -> int:
        """Bytes of all arrays."""
        return sum(size for _, size in self._arrays())

    @property
    def bytes_before(self) -> int:
        """Bytes of all arrays before :attr:`cast` was applied."""
        return sum(size * (1 + (name in self.cast)) for name, size in self._arrays())

    def _arrays(self) -> list[tuple[str, int]]:
        """Returns the name and bytes of each array."""
        return [
            (jax.tree_util.keystr(path), leaf.size * leaf.dtype.itemsize)
            for path, leaf in jax.tree_util.tree_flatten_with_path(self.params)[0]
            if hasattr(leaf, "dtype")
        ]

    def __repr__(self) -> str:
        arrays = len(self._arrays())
        return (
            f"CastParams({len(self.cast)} of {arrays} arrays in {self.dtype or 'half'}, "
            f"{self.bytes_before:,} bytes before, {self.bytes_after:,} after)"
        )


class Weights:
    """Weights as a list of arrays, and their casts so far.

    Attributes:
        arrays: all arrays among the leaves, in order; NumPy arrays are copied.
        types: the type of each array in the trace: float32 if the array was cast.
        stand_in: the pytree with a ``jax.ShapeDtypeStruct`` of these types for each array.
    """

    def __init__(self, name: str, weights: Any) -> None:
        """Flattens the weights.

        Args:
            name: the name of the function, for errors.
            weights: the weights, or a :class:`CastParams`.

        Raises:
            ArgumentTypeError: a leaf is a shape, or would become an array only by conversion.
            ArgumentError: there is no array.
        """
        self.record = weights if isinstance(weights, CastParams) else None
        self._name = name
        params = weights if self.record is None else self.record.params
        arrays, self._signature = flatten_call(name, (params,), {})
        # The user may change a NumPy array later, which compiled programs would not notice.
        self.arrays = [np.array(a) if isinstance(a, np.ndarray) else a for a in arrays]
        if not self.arrays:
            raise ArgumentError(
                f"{name}: `weights` holds no array; pass what it takes as its first argument"
            )
        fixed = {position for position, _ in self._signature.statics}
        paths = jax.tree_util.tree_flatten_with_path(params)[0]
        self.names = [jax.tree_util.keystr(p) for i, (p, _) in enumerate(paths) if i not in fixed]
        for leaf, array in zip(self.names, self.arrays, strict=True):
            if isinstance(array, jax.ShapeDtypeStruct):
                raise ArgumentTypeError(
                    f"{name}: weights{leaf} is a ShapeDtypeStruct, which has no data to cast; "
                    "pass arrays (to try it out, jax.tree.map(lambda s: jnp.zeros(s.shape, "
                    "s.dtype), ...))"
                )
        record = self.record
        self._cast = [
            record is not None and leaf in record.cast and array.dtype == record.dtype
            for leaf, array in zip(self.names, self.arrays, strict=True)
        ]
        self.types = [
            jax.typeof(array).update(dtype=np.dtype(FULL_DTYPE)) if cast else jax.typeof(array)
            for array, cast in zip(self.arrays, self._cast, strict=True)
        ]
        shapes = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in self.types]
        self.stand_in = self._signature.restore(shapes)[0][0]
        self._halves: dict[tuple[int, str], Any] = {}

    def __reduce__(self) -> Any:
        params = self._signature.restore(self.arrays)[0][0]
        given = params if self.record is None else dataclasses.replace(self.record, params=params)
        return Weights, (self._name, given)

    @property
    def traced(self) -> bool:
        """True if the weights are tracers, which must not outlive their trace."""
        return any(isinstance(array, Tracer) for array in self.arrays)

    def take(self, given: Sequence[Paint], half: str | None) -> list[Any]:
        """Returns the arrays in the precisions that a program reads.

        Raises:
            ArgumentError: the program reads an array in full, and only its half cast exists.
        """
        return [self._take(i, paint, half) for i, paint in enumerate(given)]

    def _take(self, position: int, paint: Paint, half: str | None) -> Any:
        array = self.arrays[position]
        if self._cast[position]:
            if paint is Paint.HALF and array.dtype == half:
                return array
            raise ArgumentError(
                f"{self._name}: weights{self.names[position]} was cast to {array.dtype} by "
                f"cast_params, and this call needs it in "
                f"{'float32' if paint is Paint.FULL else half}; pass the float32 weights as "
                "`weights`, or call cast_params with arguments like these"
            )
        if paint is Paint.FULL:
            return array
        assert half is not None, "nothing is given in half where there is no half type"
        if isinstance(array, Tracer):
            return _jax.convert(array, half)
        made = self._halves.get((position, half))
        if made is None:
            made = self._halves[position, half] = _cast(array, half)
        return made

    def types_in(self, given: Sequence[Paint], half: str | None) -> list[jax.ShapeDtypeStruct]:
        """Returns the types of the arrays in the precisions that a program reads."""
        return [
            jax.ShapeDtypeStruct(kind.shape, half if paint is Paint.HALF else kind.dtype)
            for kind, paint in zip(self.types, given, strict=True)
        ]

    def full(self) -> Any:
        """Returns the pytree with every array in full.

        Raises:
            ArgumentError: an array exists only as its half cast.
        """
        arrays = self.take([Paint.FULL] * len(self.arrays), None)
        return self._signature.restore(arrays)[0][0]

    def recorded(self, given: Sequence[Paint], half: str | None) -> tuple[Any, frozenset[str]]:
        """Returns the pytree as a program reads it, and the names of its half leaves."""
        arrays = self.take(given, half)
        names = [n for n, paint in zip(self.names, given, strict=True) if paint is Paint.HALF]
        return self._signature.restore(arrays)[0][0], frozenset(names)


def _cast(array: Any, half: str) -> jax.Array:
    """Casts an array to half with its sharding, outside of any current trace."""
    with _jax.outside_of_traces():
        full = jax.numpy.asarray(array)
        made = _jax.convert(full, half)
        return made if made.sharding == full.sharding else jax.device_put(made, full.sharding)


@dataclasses.dataclass(frozen=True, slots=True)
class WeightPlan:
    """The program of one signature.

    Attributes:
        traced: the function, traced with its weights.
        given: the precision in which the program reads each array of the weights.
        run: the rewritten program, a function of the weights and the call's arrays.
    """

    traced: Traced
    given: tuple[Paint, ...]
    run: Callable[..., list[Any]]


Paints = Callable[[Traced, int], tuple[Sequence[Paint], Callable[..., list[Any]]]]
"""Takes a traced function and the number of its weights; returns the precision of each argument
and the rewritten program."""


class WeightsRunner(Runner):
    """A function, its weights, and one rewritten program for each signature of the call."""

    def __init__(
        self, function: Callable[..., Any], weights: Weights, paint: Paints, half: str | None
    ) -> None:
        """Takes the half type by name, or ``None`` if nothing becomes half."""
        super().__init__(function, lambda traced: paint(traced, 0)[1])
        self._weights = weights
        self._paint = paint
        self.half = half
        self._warned: set[Any] = set()

    def _key(self, signature: Signature, arrays: Sequence[Any]) -> Any:
        """Returns a key with the types, which decide which weights the program reads in half."""
        types = tuple([jax.typeof(array) for array in arrays])
        return *super()._key(signature, arrays), types, _jax.trace_context()

    def _compile(self, signature: Signature, arrays: Sequence[Any]) -> Callable[..., Any]:
        known = signature.tree, signature.statics
        if known not in self._warned:
            self._warned.add(known)
            self._warn_of_many(signature)
        compiled, plan = self._compiled_plan(signature, arrays)
        if self._weights.traced:
            return lambda *rest: compiled(*self._weights.take(plan.given, self.half), *rest)
        return functools.partial(compiled, *self._weights.take(plan.given, self.half))

    def _compiled_plan(
        self, signature: Signature, arrays: Sequence[Any]
    ) -> tuple[Callable[..., tuple[list[Any], Results]], WeightPlan]:
        """Returns the ``jit`` function of a signature and its plan, with options if they gain."""

        def make(options: bool | None) -> tuple[Any, Callable[[], _jax.ClosedJaxpr]]:
            with painting_for(options):
                plan = self.plan(*signature.restore(arrays))
            compiled = self._jitted(plan, options)
            given = self._weights.types_in(plan.given, self.half)
            return (compiled, plan), lambda: compiled.trace(*given, *arrays).jaxpr

        return decided(make, [*self._weights.arrays, *arrays], rewritten=True)

    def _jitted(self, plan: WeightPlan, options: bool | None = False) -> Any:
        """Returns the ``jit`` function of a plan, with the device's compiler options or without."""
        count, name = len(plan.given), marker()

        def program(*leaves: Any) -> tuple[list[Any], Results]:
            return put_down(name, plan.run, leaves), plan.traced.results

        # The next call needs the weights, so they are never donated.
        given = _jax.donated_arguments(plan.traced.jaxpr)
        donated = tuple(position for position in given if position >= count)
        return jax.jit(
            _jax.named(program, name),
            donate_argnums=donated,
            compiler_options=compiler_options() if options else None,
        )

    def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WeightPlan:
        """Traces and paints the function for a call; casts and compiles nothing.

        The arguments are those after the weights: arrays, tracers, ``jax.ShapeDtypeStruct``.

        Raises:
            ArgumentTypeError: the function does not take these arguments after the weights.
        """
        weights = self._weights
        check_fits(self._name, self._function, (weights.stand_in, *args), kwargs)
        arrays, signature = flatten_call(self._name, (weights.stand_in, *args), kwargs)
        count = len(weights.types)
        try:
            traced = trace(self._function, signature, [*weights.types, *arrays[count:]])
        except DuotoneError:
            raise
        except Exception as error:
            error.add_note(
                f"{self._name}: duotone passed `weights` as its first argument, before those of "
                "the call; it must be the weights that the function takes there"
            )
            raise
        given, run = self._paint(traced, count)
        return WeightPlan(traced, tuple(given[:count]), run)

    def record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, frozenset[str]]:
        """Returns the weights as a call reads them, and the names of the half leaves."""
        arrays, signature = flatten_call(self._name, args, kwargs)
        _, plan = self._compiled_plan(signature, arrays)
        return self._weights.recorded(plan.given, self.half)

    def program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Returns the ``jit`` function of a call and its arguments, the weights first."""
        arrays, signature = flatten_call(self._name, args, kwargs)
        compiled, plan = self._compiled_plan(signature, arrays)
        return compiled, [*self._weights.take(plan.given, self.half), *arrays]


def without_first(function: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the signature of a function without its first argument; ``None`` if it has none.

    Raises:
        ArgumentTypeError: the function takes no argument by position.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    kind = parameters[0].kind if parameters else None
    if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        return signature.replace(parameters=parameters[1:])
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return signature
    raise ArgumentTypeError(
        f"{describe_callable(function)}: `weights` is for a function that takes the weights as its "
        f"first argument by position; this one takes {signature}"
    )


def check_fits(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuses a call, the weights first, whose arguments do not fit the signature of a function.

    Raises:
        ArgumentTypeError: the arguments do not fit.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentTypeError(
            f"{name}: {error}; its first argument is `weights` already: pass the others only "
            f"({way_out('weights')})"
        ) from None
