"""``duotone.bucketed``: compiles few programs for many shapes.

``jit`` compiles a program for each shape. This pads an axis to the next of a few sizes, and slices
the results to the shapes for the true length::

    n = the true length of the declared axes; bucket = the smallest size that is at least n
    pad with the neutral number; run the program of the bucket, compiled if it is new
    the first call that pads also runs without padding, and compares the results
    background=True: run a larger compiled bucket while the bucket is compiled and compared
    slice each axis of the results that depends on n
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer

from duotone import _jax
from duotone._checks import check_string, check_switch, check_whole
from duotone.compiling.bucket_arguments import (
    Argument,
    check_names,
    check_neutral,
    checked_axes,
    parameters_of,
)
from duotone.compiling.bucket_program import ArraysOnly, BucketCounts, BucketProgram, Programs
from duotone.compiling.defaults import DEFAULTS, jit_is_disabled
from duotone.compiling.padding import (
    check_same,
    checked_sizes,
    cut,
    is_deleted,
    of_length,
    on_host,
    placement,
    resized,
)
from duotone.errors import ArgumentError, shown
from duotone.jaxpr.reading.signature import (
    Results,
    Signature,
    describe_callable,
    flatten_call,
    flatten_results,
    for_another_run,
)
from duotone.policy.arguments import check_callable


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A call: its true length, and its arguments with the mask at the length of a bucket."""

    size: int
    length: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arrays: list[Any]
    signature: Signature
    key: Any


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
        background: bool,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._name = fn, describe_callable(fn, "bucketed")
        self._arrays_only = ArraysOnly(fn, self._name)
        self._axes, self._sizes, self._mask = axis, sizes, mask
        self._neutral, self._verify, self._background = neutral, verify, background
        self._parameters, self._optional = parameters_of(fn)
        self._programs = Programs(self._name, most)
        self._verified: set[Any] = set()

    @property
    def counts(self) -> BucketCounts:
        """Compiles and hits until now."""
        return self._programs.counts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function with padded arguments; returns its results without padding.

        Args:
            *args: the positional arguments of the function.
            **kwargs: its keyword arguments, without the mask.
        """
        length = self._length(args, kwargs)
        if self._mask in kwargs:
            raise ArgumentError(
                f"{self._name} was called with {self._mask!r}, the mask that bucketed makes; omit "
                "it, or pass mask=None to bucketed and pad it like another argument"
            )
        if jit_is_disabled():
            args, kwargs = self._own_mask(args, kwargs, length)
            return self._fn(*args, **kwargs)
        wanted = call = self._at(args, kwargs, length, self._bucket(length))
        if any(isinstance(array, Tracer) for array in call.arrays):
            out, results = flatten_results(self._name, self._fn(*call.args, **call.kwargs))
            return results.restore(cut(out, self._shapes(args, kwargs, length)))
        if self._background:
            call = self._ready(args, kwargs, wanted)
        program = self._compiled(args, kwargs, call, larger=call is not wanted)
        shapes = program.shapes_at(length, lambda n: self._shapes(args, kwargs, n))
        out, results = program(call.arrays)
        out = cut(out, shapes)
        if self._to_verify(call):
            self._comparison(args, kwargs, length)(out, results)
            self._verified.add(call.key)
        return results.restore(out)

    def _at(self, args: Any, kwargs: Any, length: int, size: int) -> _Call:
        args, kwargs = self._padded(args, kwargs, size)
        if self._mask is not None:
            kwargs[self._mask] = np.arange(size) < length
        arrays, signature = flatten_call(self._name, args, kwargs)
        types = tuple([(jax.typeof(array), placement(array)) for array in arrays])
        key = (signature.tree, signature.statics, types, _jax.trace_context())
        return _Call(size, length, args, kwargs, arrays, signature, key)

    def _compiled(self, args: Any, kwargs: Any, call: _Call, *, larger: bool) -> BucketProgram:
        program = self._programs.of(call.key, call.size, larger=larger)
        try:
            program.compile(
                lambda: self._arrays_only.lower(call.signature, call.arrays),
                lambda n: self._shapes(args, kwargs, n),
            )
        except BaseException:
            self._programs.drop(call.key)
            raise
        return program

    def _ready(self, args: Any, kwargs: Any, wanted: _Call) -> _Call:
        """Returns the call in a larger compiled bucket while the wanted one is being compiled.

        Returns the wanted call if it is compiled, or if no larger bucket is.
        """
        self._programs.take_over()
        if self._programs.is_ready(wanted.key):
            return wanted
        for size in self._programs.larger(wanted.size):
            call = self._at(args, kwargs, wanted.length, size)
            if self._programs.is_ready(call.key):
                compile = functools.partial(self._in_background, args, kwargs, wanted)
                self._programs.begin(wanted.key, wanted.size, compile)
                return call
        return wanted

    def _in_background(self, args: Any, kwargs: Any, call: _Call) -> Callable[[], BucketProgram]:
        """Traces a program now; returns the function that compiles and compares it."""
        program = BucketProgram(call.size)
        program.prepare(lambda n: self._shapes(args, kwargs, n))
        lowered = self._arrays_only.lower(call.signature, call.arrays)
        compare = self._comparison(args, kwargs, call.length) if self._to_verify(call) else None
        shapes = program.shapes_at(call.length, lambda n: self._shapes(args, kwargs, n))
        arrays = for_another_run(call.arrays)

        def compile() -> BucketProgram:
            program.finish(lowered.compile())
            if compare is not None:  # on the host, independent of this thread's settings
                try:
                    out, results = program(arrays)
                    compare(cut(jax.tree.map(on_host, out), shapes), results)
                    self._verified.add(call.key)
                except RuntimeError:  # if an argument was donated, the next padded call compares
                    if not is_deleted((args, kwargs)):
                        raise
            return program

        return compile

    def _to_verify(self, call: _Call) -> bool:
        return self._verify and call.length < call.size and call.key not in self._verified

    def _comparison(
        self, args: Any, kwargs: Any, length: int
    ) -> Callable[[list[Any], Results], None]:
        """Traces the function without padding; returns a check that results are the same."""
        args, kwargs = self._own_mask(args, kwargs, length)
        arrays, signature = flatten_call(self._name, args, kwargs)
        lowered = self._arrays_only.lower(signature, arrays)
        arrays = for_another_run(arrays)
        axes = ", ".join(f"axis {axis} of {self._called(arg)}" for arg, axis in self._axes.items())
        remedy = (
            "use the mask, which is an argument of the function already"
            if self._mask
            else "pass neutral=, a number that does not change the result, or mask='name' and "
            "multiply by the argument of that name"
        )

        def compare(out: list[Any], results: Results) -> None:
            expected, others = lowered.compile()(arrays)
            padding = f"padding {axes} from {length}"
            check_same(results.restore(out), others.restore(expected), padding, remedy)

        return compare

    def _called(self, argument: Argument) -> str:
        return repr(argument) if isinstance(argument, str) else f"argument {argument}"

    def _declared(self, args: Any, kwargs: Any) -> list[tuple[Argument, int, Any]]:
        found = []
        for argument, axis in self._axes.items():
            position = self._position(argument, args)
            if position is not None:
                found.append((argument, axis, args[position]))
            elif isinstance(argument, str) and argument in kwargs:
                found.append((argument, axis, kwargs[argument]))
            elif argument not in self._optional:
                raise ArgumentError(
                    f"{self._name} was called without {self._called(argument)}, whose "
                    f"axis {axis} is padded"
                )
        return found

    def _position(self, argument: Argument, args: Any) -> int | None:
        names = self._parameters
        if isinstance(argument, str):
            position = names.index(argument) if argument in names else len(args)
        else:
            position = argument
        return position if position < len(args) else None

    def _length(self, args: Any, kwargs: Any) -> int:
        lengths: dict[str, int] = {}
        for argument, axis, value in self._declared(args, kwargs):
            for path, leaf in jax.tree_util.tree_leaves_with_path(value):
                name = f"{self._called(argument)}{jax.tree_util.keystr(path)}"
                shape = np.shape(leaf)
                if not -len(shape) <= axis < len(shape):
                    raise ArgumentError(
                        f"bucketed: {name} is {shown(leaf)}: it has no axis {axis}; pass an array"
                    )
                lengths[name] = shape[axis]
        if not lengths:
            raise ArgumentError(f"bucketed: {self._name} was called with no array to pad")
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ArgumentError(
                f"bucketed: the axes that are padded together differ in length ({listed}); for two "
                "lengths write bucketed(bucketed(fn, axis=...), axis=...)"
            )
        return next(iter(lengths.values()))

    def _bucket(self, length: int) -> int:
        if self._sizes is None:
            return 1 << max(length - 1, 0).bit_length()
        index = bisect.bisect_left(self._sizes, length)
        if index == len(self._sizes):
            raise ArgumentError(
                f"bucketed: a length of {length} is beyond the largest of sizes, "
                f"{self._sizes[-1]}; add a larger one"
            )
        return self._sizes[index]

    def _changed(
        self, args: Any, kwargs: Any, change: Callable[[Any, int, Argument], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments; ``change(array, axis, argument)`` replaces each declared array."""
        new_args, new_kwargs = list(args), dict(kwargs)
        for argument, axis, value in self._declared(args, kwargs):
            new = jax.tree.map(lambda x, a=axis, of=argument: change(x, a, of), value)
            position = self._position(argument, args)
            if position is None:
                new_kwargs[str(argument)] = new
            else:
                new_args[position] = new
        return tuple(new_args), new_kwargs

    def _padded(self, args: Any, kwargs: Any, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with their declared axes at another length: padded, or cut."""

        def change(array: Any, axis: int, argument: Argument) -> Any:
            neutral = self._neutral
            if isinstance(neutral, Mapping):
                neutral = neutral.get(argument, 0)
            return resized(array, axis, size, neutral)

        return self._changed(args, kwargs, change)

    def _own_mask(self, args: Any, kwargs: Any, length: int) -> tuple[Any, dict[str, Any]]:
        return (
            args,
            kwargs if self._mask is None else {**kwargs, self._mask: np.ones(length, bool)},
        )

    def _shapes(self, args: Any, kwargs: Any, length: int) -> list[tuple[int, ...]]:
        """Returns the shapes of the results at a length."""
        kwargs = {name: value for name, value in kwargs.items() if name != self._mask}
        args, kwargs = self._changed(args, kwargs, lambda x, axis, _: of_length(x, axis, length))
        args, kwargs = self._own_mask(args, kwargs, length)
        arrays, signature = flatten_call(self._name, args, kwargs)

        try:
            return self._arrays_only.shapes(signature, arrays)
        except Exception as error:
            error.add_note(f"while tracing {self._name} at a length of {length}, for its shapes")
            raise


def bucketed(
    fn: Callable[..., Any],
    axis: int | Mapping[Argument, int],
    *,
    sizes: Literal["pow2"] | Sequence[int] = "pow2",
    neutral: Any = 0,
    mask: str | None = None,
    verify: bool = True,
    programs: int = 64,
    background: bool | None = None,
) -> Bucketed:
    """Compiles a function for a few lengths instead of every length.

    It pads the arguments to one of these lengths, and slices the results to the true length. The
    first padded call with each bucket and signature also runs without padding and compares the
    results. If padding changes a result, that is an error.

    Args:
        fn: a function of arrays (or pytrees of them) that JAX can trace.
        axis: the axis of the first argument to pad, or of each named argument:
            ``{"tokens": 1, "labels": 1}`` or ``{0: 1, 1: 1}``; all have the same length.
        sizes: the lengths to pad to: the powers of two, or increasing numbers.
        neutral: the number to pad with, or a dictionary with one for each argument.
        mask: the name of a keyword argument of ``fn`` that takes bool[size], True for indices that
            are not padding.
        verify: ``False`` omits the comparison.
        programs: the number of compiled programs in the cache; the least recently used is dropped
            first.
        background: if the bucket of a call is not compiled, run the call in a larger compiled
            bucket, if there is one, while one thread compiles and compares its own; later calls use
            it.

    Under ``duotone run``, flags in ``TF_XLA_FLAGS`` set the default of ``background``.

    Returns:
        A function of the same arguments (without the mask) and results. Its ``counts`` attribute
        has the number of compilations. Threads may share it. Inside a trace it pads and slices, and
        compares and counts nothing.

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
    axes = checked_axes(fn, axis)
    check_neutral(neutral, axes)
    check_names(fn, [name for name in (*axes, mask) if isinstance(name, str)])
    check_whole("bucketed", "programs", programs, 1)
    check_switch("bucketed", "verify", verify)
    if mask is not None:
        check_string("bucketed", "mask", mask)
    if background is None:
        background = DEFAULTS.background
    check_switch("bucketed", "background", background)
    lengths = checked_sizes(sizes)
    return Bucketed(fn, axes, lengths, neutral, mask, verify, programs, background)
