"""Runs a step together with its float32 reference and names the operation that is not finite.

::

    rewrite the function unless it contains a rewritten program; mark every node in its scopes
    run the rewritten program and its reference as one compiled program, note a row for each value
    find in the rows the operation that overflows first, and why
    if every value is finite
        run the step without duotone if it may be not finite (see _in_float32)
        run both again in a second program that notes the errors; rank the operations
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer

from duotone.blaming.blame_view import BlameView
from duotone.blaming.findings import BlameRecord, Verdict
from duotone.blaming.reference_loops import HANDLERS
from duotone.blaming.reference_run import References, reference_of
from duotone.blaming.reference_statistics import ERRORS, FULL_TICK, LOOK, SIZE, WIDTH, RowKind
from duotone.blaming.suspects import StepRun, blamed
from duotone.comparing.variants import without_duotone
from duotone.devices.assumed import assumed
from duotone.errors import ArgumentError, ArgumentTypeError, kind_of
from duotone.jaxpr.reading.signature import (
    Signature,
    describe_callable,
    flatten_call,
    for_another_run,
)
from duotone.jaxpr.reading.trace import Traced, trace
from duotone.jaxpr.running.inside import Collection, collecting, holds_rewritten
from duotone.policy.arguments import check_callable, half_named, is_off, without_heal
from duotone.policy.policy import Policy
from duotone.text.lines import Viewed
from duotone.transforms.autocast import autocast, check_settings, function_inside
from duotone.transforms.mixed_function import settings_of

logger = logging.getLogger("duotone")

_MOST_KEPT = 4
"""How many compiled programs the cache keeps; users often repeat a step with other arguments."""


class Blame(Viewed, BlameRecord):
    """The result of ``duotone.blame``: the first operation that only half breaks; ``print`` it.

    See :class:`duotone.blaming.findings.BlameRecord` for its attributes.
    """

    def __rich__(self) -> BlameView:
        return BlameView(self)


def blame(
    step: Callable[..., Any],
    *args: Any,
    dtype: Any = None,
    policy: Policy | None = None,
    **kwargs: Any,
) -> Blame:
    """Names the first operation whose half result is not finite while float32's is.

    The compiled step runs once and computes each value twice: as it is painted and in float32. Its
    results are discarded. If every value is finite, the record ranks operations by the numbers that
    become 0 and by their error, for which the step runs again. If the step returns one number, a
    loss, blame also checks its float32 gradient.

    Args:
        step: a function; one that :func:`duotone.autocast` returned; or one that contains rewritten
            programs (a step through a wrapped optimizer, :func:`duotone.grad`), also under
            ``jax.jit``, ``jax.grad`` and ``lax.scan``. Any other function is rewritten as
            :func:`duotone.autocast` does, in bfloat16 if ``dtype`` is ``None`` and no half type is
            faster here.
        *args: its arguments: arrays with data.
        dtype: as for :func:`duotone.autocast`; by default that of ``step``.
        policy: as for :func:`duotone.autocast`; by default that of ``step``.
        **kwargs: its keyword arguments. For a function that has an argument ``dtype`` or ``policy``
            itself, pass ``functools.partial(fn, policy=...)``.

    Returns:
        A record; print it. ``blame.verdict`` is the kind of answer in one word.

    Raises:
        ArgumentTypeError: ``step`` is not callable, ``dtype`` not a dtype, ``policy`` no policy, or
            an argument has no data.
        ArgumentError: ``dtype`` is not a half type. Float32 is refused too, since nothing would be
            half.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> x = jnp.full((8, 8), 9.0)
        >>> found = duotone.blame(lambda x, w: (x @ w * 200.0) @ w, x, x, dtype="float16")
        >>> found.verdict.value, found.first.operation, found.first.high, found.pins
        ('overflow', 'mul', 129600.0, ('mul', 'dot_general'))
    """
    return look(step, args, kwargs, dtype, policy, functools.partial(logger.info, "blame: %s"))


def look(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: Any,
    policy: Policy | None,
    report: Callable[[str], object],
) -> Blame:
    """Runs :func:`blame` and reports each stage before it starts, as most compile a program."""
    check_callable("blame", step)
    check_settings("blame", dtype, policy)
    arrays, signature = flatten_call(describe_callable(step), args, kwargs)
    types = tuple([jax.typeof(array) for array in arrays])
    key = (step, signature.tree, signature.statics, types, dtype, policy, assumed())
    program = _kept(key)
    if program is None:
        report("tracing")
        _check_on(step, dtype)
        function = _rewritten(step, dtype, policy, signature, arrays)
        program = instrumented(function, signature, arrays)
    _check_data(describe_callable(step), program.arguments, arrays)
    _keep(key, program)
    report("the step next to float32")
    rows = program.rows(arrays)
    record = program.blamed(rows)
    if record.verdict is Verdict.FINITE:
        if program.saturates or program.is_loss:
            report("the step without duotone")
            reference = _in_float32(program, step, signature, arrays)
            record = record if reference is None else reference
        if record.verdict is Verdict.FINITE:
            report("errors against float32")
            record = program.blamed(rows, program.errors(arrays))
    return Blame(**{f.name: getattr(record, f.name) for f in dataclasses.fields(record)})


def instrumented(function: Callable[..., Any], signature: Signature, arrays: Any) -> Instrumented:
    """Traces a function that contains rewritten programs, to run it with its reference."""
    with collecting(marks=True) as collection:
        traced = trace(function, signature, arrays)
    return Instrumented(traced, collection, _half_of(function, collection))


def _half_of(function: Callable[..., Any], collection: Collection) -> str:
    """Returns the half type of a function: its programs', else its settings', else bfloat16."""
    if collection.marked:
        return collection.marked[0].half.name
    settings = settings_of(function)
    asked = settings and settings.dtype is not None and half_named("blame", settings.dtype)
    return asked.name if asked else "bfloat16"


def _check_on(step: Callable[..., Any], dtype: Any) -> None:
    settings = settings_of(step)
    if is_off("blame", dtype) or (dtype is None and settings is not None and settings.off):
        raise ArgumentError(
            "blame: dtype is float32, which switches mixed precision off, so nothing is half; pass "
            "float16, bfloat16 or None (asks the device)"
        )


def _check_data(name: str, names: Sequence[str], arrays: Sequence[Any]) -> None:
    for where, array in zip(names, arrays, strict=True):
        if isinstance(array, (jax.ShapeDtypeStruct, Tracer)):
            raise ArgumentTypeError(
                f"blame({name}): {where} is {kind_of(array)}, which has no data; call "
                "blame on real arrays, outside of jax.jit and other transformations"
            )


def _rewritten(
    step: Callable[..., Any], dtype: Any, policy: Policy | None, signature: Any, arrays: Any
) -> Callable[..., Any]:
    """Returns the function to run, which is rewritten or contains rewritten programs."""
    settings = settings_of(step)
    if settings is not None:
        dtype = settings.dtype if dtype is None else dtype
        policy = settings.policy if policy is None else policy
        if settings.weights is not None:
            return step
    elif dtype is None and policy is None and _holds(step, signature, arrays):
        return step
    if dtype is None:  # if no half type is fast here, use bfloat16
        policy = (policy or Policy()).replace(ignore_performance=True)
    return autocast(function_inside(step), dtype=dtype, policy=without_heal(policy))


def _holds(step: Callable[..., Any], signature: Any, arrays: Sequence[Any]) -> bool:
    return holds_rewritten(trace(step, signature, arrays).jaxpr)


def _in_float32(
    program: Instrumented, step: Callable[..., Any], signature: Signature, arrays: Sequence[Any]
) -> BlameRecord | None:
    """Runs the step in float32, which may be not finite although the rewritten step is.

    The rewrite saturates a constant that half cannot represent, and the next operation may make it
    infinite in float32. A loss may be finite although its gradient is not.

    Returns:
        The record, or ``None`` if float32 is finite too.
    """
    if program.reference is None:
        function = without_duotone(function_inside(step))
        try:
            whole = _with_gradient(function) if program.is_loss else function
            program.reference = instrumented(whole, signature, arrays)
        except Exception:  # JAX has no gradient of it
            program.reference = instrumented(function, signature, arrays)
        program.reference.half = program.half
    rows = program.reference.rows(arrays)
    record = program.reference.blamed(rows)
    if record.verdict is not Verdict.FLOAT32:
        return None
    differentiated = program.is_loss and not program.reference.is_loss
    of_gradient = differentiated and program.reference.is_loss_finite(rows)
    return dataclasses.replace(record, of_gradient=of_gradient)


def _with_gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a loss and its gradient by all floating-point arrays among its arguments."""

    @functools.wraps(loss)
    def both(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        floats = {
            k: leaf
            for k, leaf in enumerate(leaves)
            if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)
        }

        def loss_of_floats(floats: dict[int, Any]) -> Any:
            filled = [floats.get(k, leaf) for k, leaf in enumerate(leaves)]
            args, kwargs = jax.tree.unflatten(tree, filled)
            return loss(*args, **kwargs)

        return jax.value_and_grad(loss_of_floats)(floats)

    return both


class Instrumented:
    """A traced step with its reference. One program notes overflows, another one errors.

    Attributes:
        arguments: names of the arguments.
        half: the half type.
        saturates: whether it contains a constant that is too large for half.
        is_loss: whether it returns one floating-point number.
        reference: the step without duotone, after it was traced.
    """

    def __init__(self, traced: Traced, collection: Collection, half: str) -> None:
        self.arguments = traced.arguments()
        self._jaxpr, self._collection = traced.jaxpr, collection
        self.half = half
        self.saturates = any(map(_saturates, collection.marked))
        outs = [aval for aval in traced.jaxpr.out_avals if isinstance(aval, ShapedArray)]
        shapes = [out.shape for out in outs if jnp.issubdtype(out.dtype, jnp.floating)]
        self.is_loss = shapes == [()]
        self.reference: Instrumented | None = None
        self._references, self._results = References(LOOK, HANDLERS), list[int]()
        self._look = jax.jit(functools.partial(self._noted, LOOK))
        self._errors = jax.jit(functools.partial(self._noted, ERRORS))

    def rows(self, arrays: Sequence[Any]) -> jax.Array:
        """Runs the step and returns the rows of all sites."""
        return self._look(for_another_run(arrays))

    def errors(self, arrays: Sequence[Any]) -> jax.Array:
        """Runs the step again and returns the errors at all sites."""
        return self._errors(for_another_run(arrays))

    def blamed(self, rows: Any, errors: Any = None) -> BlameRecord:
        """Finds the operation to blame.

        Args:
            rows: the result of :meth:`rows`; waits for it.
            errors: the result of :meth:`errors`, or ``None`` to rank no errors.
        """
        read = np.zeros((len(rows), SIZE + 1))
        read[:, :WIDTH] = jax.device_get(rows)
        if errors is not None:
            read[:, WIDTH:] = jax.device_get(errors)
        sites, readers = self._references.sites, self._references.readers
        marked = self._collection.marked
        return blamed(
            StepRun(sites, read, readers, marked, self.arguments, self._results), self.half
        )

    def is_loss_finite(self, rows: Any) -> bool:
        """Returns True if the first result is finite in float32."""
        site = self._results[0]
        return site < 0 or math.isinf(rows[site, FULL_TICK])

    def _noted(self, kind: RowKind, arrays: list[Any]) -> Any:
        """Returns the rows of all sites; traced once for each kind, which gives the same sites."""
        references = self._references = References(kind, HANDLERS)
        operands = [
            references.note(("argument", k), None, ((name, False),), reference_of(array), ())
            for k, (name, array) in enumerate(zip(self.arguments, arrays, strict=True))
        ]
        self._results = references.note_results(self._jaxpr, references.run(self._jaxpr, operands))
        sites, rows = references.rows()
        return rows[np.argsort(sites)]


def _saturates(painted: Any) -> bool:
    """Returns True if a painted program contains a constant that is too large for its half type."""
    largest = painted.half.largest
    constants = (value.constant for value in painted.built.graph.values)
    return any(constant is not None and constant.largest > largest for constant in constants)


_KEPT: OrderedDict[Any, Instrumented] = OrderedDict()


def _kept(key: Any) -> Instrumented | None:
    try:
        return _KEPT.get(key)
    except TypeError:  # an argument without a hash
        return None


def _keep(key: Any, program: Instrumented) -> None:
    try:
        _KEPT[key] = program
    except TypeError:
        return
    while len(_KEPT) > _MOST_KEPT:
        _KEPT.popitem(last=False)
