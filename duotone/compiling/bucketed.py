"""``duotone.bucketed``: many shapes compiled as few.

``jit`` compiles a program for each shape. Here an axis is padded to the next of a few sizes, and
what comes back is cut to what the true length would have given::

    the true length n of the declared axes; the bucket: the smallest size that holds it
    pad with the neutral number; the program of the bucket, compiled if it is new
    the first call that pads: also without padding, and both results compared
    cut each axis of the results that follows n

Who calls this: users. What goes wrong: a function in whose results padding shows, which the first
call says by name (:class:`~duotone.errors.ArgumentError`).
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import difflib
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer

from duotone import _jax
from duotone._arguments import check_callable
from duotone.compiling.bucket_program import BucketProgram, of_arrays
from duotone.compiling.padding import checked_sizes, cut, difference, resized
from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.jaxpr.reading.signature import describe_callable, flatten_call

Argument = int | str


@dataclasses.dataclass(frozen=True, slots=True)
class BucketCounts:
    """How often a bucketed function was compiled.

    Attributes:
        calls: calls outside of traces.
        compiles: programs compiled.
        hits: calls that found their program.
        evictions: programs dropped because there were too many.
        programs: programs kept now.
    """

    calls: int
    compiles: int
    hits: int
    evictions: int
    programs: int


class Bucketed:
    """A function that pads one length of its arguments; made by :func:`bucketed`.

    Attributes:
        counts: compiles and hits until now.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        axis: Mapping[Argument, int],
        sizes: tuple[int, ...] | None,
        neutral: Mapping[Argument, Any] | Any,
        mask: str | None,
        verify: bool,
        most: int,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._name = fn, describe_callable(fn)
        self._axes, self._sizes, self._mask = axis, sizes, mask
        self._neutral, self._verify, self._most = neutral, verify, most
        self._parameters = _parameters(fn)
        self._lock = threading.Lock()
        self._programs: collections.OrderedDict[Any, BucketProgram] = collections.OrderedDict()
        self._verified: set[Any] = set()
        self._calls = self._compiles = self._evictions = 0

    @property
    def counts(self) -> BucketCounts:
        """Compiles and hits until now."""
        with self._lock:
            return BucketCounts(
                self._calls,
                self._compiles,
                self._calls - self._compiles,
                self._evictions,
                len(self._programs),
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function with padded arguments; returns what it would return without."""
        length = self._length(args, kwargs)
        size = self._bucket(length)
        padded_args, padded_kwargs = self._padded(args, kwargs, size)
        if self._mask is not None:
            padded_kwargs[self._mask] = np.arange(size) < length
        arrays, signature = flatten_call(self._name, padded_args, padded_kwargs)
        if any(isinstance(array, Tracer) for array in arrays):
            out = self._fn(*padded_args, **padded_kwargs)
            return cut(out, self._shapes(args, kwargs, length))
        types = tuple([jax.typeof(array) for array in arrays])
        key = (signature.tree, signature.statics, types, _jax.trace_context())
        program = self._program(key, padded_args, padded_kwargs, size)
        out = program(padded_args, padded_kwargs)
        shapes = program.shapes_at(length, lambda n: self._shapes(args, kwargs, n))
        result = cut(out, shapes)
        if self._verify and length < size and key not in self._verified:
            self._check(args, kwargs, length, result)
            self._verified.add(key)
        return result

    def _check(self, args: Any, kwargs: Any, length: int, result: Any) -> None:
        """Raises unless the function gives the same without padding."""
        args, kwargs = self._own_mask(args, kwargs, length)
        arrays, signature = flatten_call(self._name, args, kwargs)
        expected = jax.jit(of_arrays(self._fn, signature))(arrays)
        axes = ", ".join(f"axis {axis} of {self._called(arg)}" for arg, axis in self._axes.items())
        for (path, mine), theirs in zip(
            jax.tree_util.tree_leaves_with_path(result), jax.tree.leaves(expected), strict=True
        ):
            differs = difference(np.asarray(mine), np.asarray(theirs))
            if differs:
                remedy = (
                    "use the mask, it is an argument of the function already"
                    if self._mask
                    else "pass neutral=, the number that leaves it as it is, or mask='name' and "
                    "multiply by the argument of that name"
                )
                raise ArgumentError(
                    f"bucketed: padding {axes} from {length} changes result{_place(path)} "
                    f"{differs}; {remedy}"
                )

    def _called(self, argument: Argument) -> str:
        return repr(argument) if isinstance(argument, str) else f"argument {argument}"

    def _program(self, key: Any, args: Any, kwargs: Any, size: int) -> BucketProgram:
        with self._lock:
            self._calls += 1
            program = self._programs.get(key)
            if program is None:
                self._compiles += 1
                program = self._programs[key] = BucketProgram(self._fn, size)
                if len(self._programs) > self._most:
                    self._programs.popitem(last=False)
                    self._evictions += 1
            self._programs.move_to_end(key)
        program.prepare(lambda n: self._shapes(args, kwargs, n))
        return program

    def _declared(self, args: Any, kwargs: Any) -> list[tuple[Argument, int, Any]]:
        found = []
        for argument, axis in self._axes.items():
            place = self._place(argument, args)
            if place is not None:
                found.append((argument, axis, args[place]))
            elif isinstance(argument, str) and argument in kwargs:
                found.append((argument, axis, kwargs[argument]))
            else:
                raise ArgumentError(
                    f"bucketed: {self._name} was called without {self._called(argument)}, of which "
                    f"axis {axis} is to be padded"
                )
        return found

    def _place(self, argument: Argument, args: Any) -> int | None:
        if isinstance(argument, str):
            place = self._parameters.index(argument) if argument in self._parameters else len(args)
        else:
            place = argument
        return place if place < len(args) else None

    def _length(self, args: Any, kwargs: Any) -> int:
        lengths: dict[str, int] = {}
        for argument, axis, value in self._declared(args, kwargs):
            for path, leaf in jax.tree_util.tree_leaves_with_path(value):
                name = f"{self._called(argument)}{_place(path)}"
                shape = np.shape(leaf)
                if not -len(shape) <= axis < len(shape):
                    raise ArgumentError(f"bucketed: {name} is {shown(leaf)}: it has no axis {axis}")
                lengths[name] = shape[axis]
        if not lengths:
            raise ArgumentError(f"bucketed: {self._name} was called with no array to pad")
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ArgumentError(
                f"bucketed: the axes that are padded together differ in length ({said}); for two "
                "lengths write bucketed(bucketed(fn, axis=...), axis=...)"
            )
        return next(iter(lengths.values()))

    def _bucket(self, length: int) -> int:
        if self._sizes is None:
            return 1 << max(length - 1, 0).bit_length()
        place = bisect.bisect_left(self._sizes, length)
        if place == len(self._sizes):
            raise ArgumentError(
                f"bucketed: a length of {length} is beyond the largest of sizes, "
                f"{self._sizes[-1]}; add a larger one"
            )
        return self._sizes[place]

    def _padded(self, args: Any, kwargs: Any, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with their declared axes at another length: padded, or cut."""
        new_args, new_kwargs = list(args), dict(kwargs)
        for argument, axis, value in self._declared(args, kwargs):
            neutral = self._neutral
            if isinstance(neutral, Mapping):
                neutral = neutral.get(argument, 0)
            new = jax.tree.map(lambda x, a=axis, n=neutral: resized(x, a, size, n), value)
            place = self._place(argument, args)
            if place is None:
                new_kwargs[str(argument)] = new
            else:
                new_args[place] = new
        return tuple(new_args), new_kwargs

    def _own_mask(self, args: Any, kwargs: Any, length: int) -> tuple[Any, dict[str, Any]]:
        return (
            args,
            kwargs if self._mask is None else {**kwargs, self._mask: np.ones(length, bool)},
        )

    def _shapes(self, args: Any, kwargs: Any, length: int) -> list[tuple[int, ...]]:
        """The shapes of the results at a length."""
        kwargs = {name: value for name, value in kwargs.items() if name != self._mask}
        like = _Abstract(length)
        args, kwargs = like.arguments(self._declared(args, kwargs), args, kwargs, self._place)
        args, kwargs = self._own_mask(args, kwargs, length)
        arrays, signature = flatten_call(self._name, args, kwargs)

        def call(*leaves: Any) -> Any:
            args, kwargs = signature.restore(leaves)
            return self._fn(*args, **kwargs)

        return [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(call, *arrays))]


class _Abstract:
    """Arguments at another length, without elements."""

    def __init__(self, length: int) -> None:
        self.length = length

    def arguments(
        self, declared: Any, args: Any, kwargs: Any, place_of: Callable[..., int | None]
    ) -> tuple[Any, dict[str, Any]]:
        args, kwargs = list(args), dict(kwargs)
        for argument, axis, value in declared:
            new = jax.tree.map(lambda x, a=axis: self._leaf(x, a), value)
            place = place_of(argument, args)
            if place is None:
                kwargs[str(argument)] = new
            else:
                args[place] = new
        return tuple(args), kwargs

    def _leaf(self, array: Any, axis: int) -> Any:
        shape = list(np.shape(array))
        shape[axis] = self.length
        return jax.ShapeDtypeStruct(shape, jax.typeof(array).dtype)


def _place(path: Any) -> str:
    return jax.tree_util.keystr(path)


def _parameters(fn: Callable[..., Any]) -> list[str]:
    try:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [p.name for p in inspect.signature(fn).parameters.values() if p.kind in kinds]
    except (TypeError, ValueError):
        return []


def bucketed(
    fn: Callable[..., Any],
    axis: int | Mapping[Argument, int],
    *,
    sizes: Literal["pow2"] | Sequence[int] = "pow2",
    neutral: Any = 0,
    mask: str | None = None,
    verify: bool = True,
    programs: int = 64,
) -> Bucketed:
    """A function compiled for a few lengths instead of each: the length is padded, results are cut.

    The first call that pads, with each bucket and signature, is also made without padding, and the
    results are compared; a function in whose results padding shows is an error then. Axes of the
    results that follow the length are cut to what it would have given.

    Args:
        fn: a function of arrays (or pytrees of them) that JAX can trace.
        axis: which axes have that length: the axis of the first argument, or of each argument
            named, ``{"tokens": 1, "labels": 1}`` or ``{0: 1, 1: 1}``.
        sizes: the lengths to pad to: the powers of two, or increasing numbers.
        neutral: what is padded, one number or one for each argument in a dictionary.
        mask: the name of a keyword argument of ``fn`` that takes bool[size], true where an index is
            no padding.
        verify: ``False`` leaves the comparison out.
        programs: how many compiled programs are kept; the one used longest ago goes first.

    Returns:
        A function of the same arguments (without the mask) and results. Its ``counts`` say how
        often it was compiled. Threads may share it. Inside of a trace it pads and cuts; nothing is
        compared or counted there.

    Raises:
        ArgumentTypeError: ``fn`` is not callable, or an argument has the wrong type.
        ArgumentError: sizes contradict each other, no such argument, lengths differ, a length is
            beyond the largest size, or padding changes a result (which one is named).

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> double = duotone.bucketed(lambda x: 2 * x, axis=0)
        >>> [double(jnp.ones(n)).shape[0] for n in (5, 6, 7, 8)], double.counts.compiles
        ([5, 6, 7, 8], 1)
    """
    check_callable("bucketed", fn)
    axes: Mapping[Argument, int] = axis if isinstance(axis, Mapping) else {0: axis}
    for argument, place in axes.items():
        if isinstance(place, bool) or not isinstance(place, int):
            raise ArgumentTypeError(
                f"bucketed: axis is {shown(place)}; pass a number: axis={{{argument!r}: 1}}"
            )
        if isinstance(argument, bool) or not isinstance(argument, int | str):
            raise ArgumentTypeError(
                f"bucketed: axis names {shown(argument)}; pass names or positions"
            )
    if not axes:
        raise ArgumentError("bucketed: axis names no argument; nothing would be padded")
    _check_names(fn, [name for name in (*axes, mask) if isinstance(name, str)])
    if isinstance(programs, bool) or not isinstance(programs, int) or programs < 1:
        raise ArgumentError(f"bucketed: programs is {shown(programs)}; keep at least 1")
    return Bucketed(fn, axes, checked_sizes(sizes), neutral, mask, verify, programs)


def _check_names(fn: Callable[..., Any], names: Sequence[str]) -> None:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in names:
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(parameters)}"
            raise ArgumentError(
                f"bucketed: {describe_callable(fn)} has no argument {name!r}; {meant}"
            )
