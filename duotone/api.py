"""The functions users call: ``autocast`` and ``explain``.

The stages that they take a function through stand in :mod:`duotone.road`, in order.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

import jax

from duotone._arguments import check_calibration, check_callable, check_policy, half_named
from duotone.calibration import Calibration
from duotone.errors import ArgumentError
from duotone.graph.graph import HALF_TYPES, HalfType, Paint
from duotone.graph.record import Record, make_record
from duotone.jaxpr.run import Runner
from duotone.jaxpr.signature import describe_callable, flatten_call
from duotone.jaxpr.trace import Traced, trace
from duotone.policy import Policy
from duotone.road import carry_out, paint_for_device
from duotone.static import CastParams, StaticRunner, Weights, without_first
from duotone.targets import assumed, current_choice
from duotone.views import text

logger = logging.getLogger("duotone")

_SETTINGS = "__duotone_settings__"
"""Attribute of an autocast function: the :class:`Settings` it was made from."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What an autocast function was made from; ``run`` gives its runner for a device."""

    function: Callable[..., Any]
    dtype: Any
    chosen: bool
    policy: Policy | None
    weights: Weights | None
    run: Callable[[Any], Any]


@overload
def autocast(
    fn: Callable[P, R],
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
) -> Callable[P, R]: ...
@overload
def autocast(
    fn: None = None,
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def autocast(
    fn: Callable[Concatenate[Any, P], R],
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    static: Any,
) -> Callable[P, R]: ...
def autocast(
    fn: Callable[..., Any] | None = None,
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    static: Any = None,
) -> Any:
    """Makes a function run in mixed precision.

    The function is traced when it is called, painted, and rewritten; what it takes and returns
    stays as it was: pytrees, shapes, dtypes, weak types. Each signature is traced once; outside
    ``jax.jit`` the rewritten program runs compiled. It may be called inside and around every JAX
    transformation.

    Args:
        fn: the function; if omitted, a decorator is returned.
        dtype: ``float16`` or ``bfloat16`` (anything ``jax.numpy.dtype`` takes). ``None`` asks the
            default device for the one that is fast there; where none is, ``fn`` runs as it is and
            one line is logged (see :class:`~duotone.Policy`, ``ignore_performance``).
        policy: what may be painted; the default policy if omitted. Environment variables are
            merged in (``docs/environment.md``).
        calibration: what :func:`duotone.calibrate` measured for ``fn``: short for
            ``Policy(calibration=...)``.
        static: for inference: the first argument of ``fn``, the weights, which are the same at
            every call; a pytree, or what :func:`cast_params` returned, whose dtype and policy then
            hold unless others are given. Weights that ``fn`` reads in half only are cast
            once, at the first call. They are constants: there is no derivative with respect to
            them, and a change made to them afterwards is not seen.

    Returns:
        A function with the signature of ``fn``; with ``static``, without its first argument.

    Raises:
        ArgumentTypeError: ``fn`` is not callable or does not take the weights first, ``dtype`` is
            no dtype, ``policy`` is no policy, ``calibration`` no calibration, ``static`` holds
            shapes in place of arrays.
        ArgumentError: ``dtype`` is not a half type, or not that of the cast weights; ``static``
            holds no array.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> def predict(weights, images):
        ...     return jax.nn.relu(images @ weights)
        >>> fast = duotone.autocast(predict, dtype=jnp.bfloat16)
        >>> fast(jnp.ones((8, 4)), jnp.ones((2, 8))).dtype
        dtype('float32')

    References:
        TensorFlow, ``tf.train.experimental.enable_mixed_precision_graph_rewrite``.
    """
    if fn is None:
        return functools.partial(
            autocast, dtype=dtype, policy=policy, calibration=calibration, static=static
        )
    check_callable("autocast", fn)
    check_policy("autocast", policy)
    check_calibration("autocast", calibration)
    chosen = dtype is None
    weights = None
    if static is not None:
        fn, dtype, policy = _unwrapped(fn, dtype, policy)
        weights = Weights(describe_callable(fn), static)
        dtype, chosen, policy = _recorded_settings(weights.record, dtype, policy)
    if calibration is not None:
        policy = (policy or Policy()).replace(calibration=calibration)
    named = None if dtype is None else half_named("autocast", dtype)

    @functools.cache
    def run(device: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        # At the first call, not before: asking the device starts JAX's backends. Once for each
        # device that is painted for: `current_choice` asks for the one assumed now.
        merged = (policy or Policy()).merged_with_environment()
        half = named or half_of_device(merged, describe_callable(fn))
        if half is None and merged.float32_math is None and merged.convolution_math is None:
            first = () if weights is None else (weights.full(),)
            return lambda args, kwargs: fn(*first, *args, **kwargs)

        def paint(traced: Traced, count: int) -> tuple[Sequence[Paint], Callable[..., list[Any]]]:
            painted = paint_for_device(
                traced.jaxpr,
                merged,
                half,
                chosen=chosen,
                arguments=_arguments(traced, merged),
                static=count,
            )
            return painted.given, carry_out(traced.jaxpr, painted, merged)

        if weights is not None:
            return StaticRunner(fn, weights, paint, half.name if half else None)
        return Runner(fn, lambda traced: paint(traced, 0)[1])

    @functools.wraps(fn, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return run(assumed())(args, kwargs)

    # The function that was written, not a wrapper around it: Equinox looks for arrays on the way.
    vars(wrapped)["__wrapped__"] = inspect.unwrap(fn, stop=lambda f: hasattr(f, "__signature__"))
    if weights is not None and (signature := without_first(fn)) is not None:
        vars(wrapped)["__signature__"] = signature
    setattr(wrapped, _SETTINGS, Settings(fn, dtype, chosen, policy, weights, run))
    return wrapped


def _unwrapped(
    fn: Callable[..., Any], dtype: Any, policy: Policy | None
) -> tuple[Callable[..., Any], Any, Policy | None]:
    """Of a function that :func:`autocast` returned, the one inside; what is given wins."""
    found = settings_of(fn)
    if found is None or found.weights is not None:
        return fn, dtype, policy
    return (
        found.function,
        found.dtype if dtype is None else dtype,
        found.policy if policy is None else policy,
    )


def _recorded_settings(
    record: CastParams | None, dtype: Any, policy: Policy | None
) -> tuple[Any, bool, Policy | None]:
    """Dtype, whether duotone chose it, and policy; those of cast weights unless others are given.

    Raises:
        ArgumentError: the weights were cast to another half type.
    """
    if record is None:
        return dtype, dtype is None, policy
    policy = record.policy if policy is None else policy
    if dtype is None:
        return record.dtype, record.chosen, policy
    if record.cast and half_named("autocast", dtype).name != record.dtype:
        raise ArgumentError(
            f"autocast: dtype is {jax.numpy.dtype(dtype).name} and static was cast to "
            f"{record.dtype}; leave dtype out, or cast the float32 weights anew"
        )
    return dtype, False, policy


class Explanation(Record):
    """What a painting does to a function, and why; see :class:`duotone.graph.record.Record`.

    ``print`` shows a table; :meth:`to_json` gives data, :meth:`to_tensorboard` a coloured graph.
    """

    def __str__(self) -> str:
        return text.render(self)

    def __rich__(self) -> Any:
        return text.table(self)

    def to_tensorboard(self, logdir: str) -> None:
        """Writes the graph for TensorBoard: Graphs, Color by Device (docs/tensorflow.md)."""
        from duotone.views import tensorboard  # of an extra

        tensorboard.write_record(logdir, self)


def explain(
    fn: Callable[..., Any],
    *args: Any,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    static: Any = None,
    **kwargs: Any,
) -> Explanation:
    """Says what :func:`autocast` would do to a function, operation by operation, and why.

    Nothing is compiled or run. Works on every machine: where ``dtype`` is ``None`` and no half type
    is faster here, the record is for bfloat16.

    Args:
        fn: the function. For one that :func:`autocast` returned, what that does to it, with its
            dtype and policy unless others are given.
        *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place; with ``static``,
            those behind the first.
        dtype: as for :func:`autocast`.
        policy: as for :func:`autocast`.
        calibration: as for :func:`autocast`.
        static: as for :func:`autocast`.
        **kwargs: its keyword arguments. For a function that has one of the four names above itself,
            pass ``functools.partial(fn, policy=...)``.

    Returns:
        A record; print it for a table.

    Raises:
        ArgumentTypeError, ArgumentError: as for :func:`autocast`.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> x = jax.ShapeDtypeStruct((128, 64), jnp.float32)
        >>> w = jax.ShapeDtypeStruct((64, 32), jnp.float32)
        >>> seen = duotone.explain(lambda x, w: jax.nn.softmax(x @ w), x, w, dtype=jnp.float16)
        >>> [o.operation for o in seen.operations if o.paint == "half"]
        ['dot_general']
    """
    check_callable("explain", fn)
    check_settings("explain", dtype, policy)
    check_calibration("explain", calibration)
    if static is not None:
        fn, dtype, policy = autocast(fn, dtype=dtype, policy=policy, static=static), None, None
    settings = settings_of(fn)
    chosen, count = dtype is None, 0
    if settings is not None:
        fn, chosen = settings.function, chosen and settings.chosen
        dtype = settings.dtype if dtype is None else dtype
        policy = settings.policy if policy is None else policy
        if settings.weights is not None:
            args, count = (settings.weights.stand_in, *args), len(settings.weights.arrays)
    if calibration is not None:
        policy = (policy or Policy()).replace(calibration=calibration)
    merged = (policy or Policy()).merged_with_environment()
    half = (
        half_of_device(merged.replace(ignore_performance=True), describe_callable(fn))
        if dtype is None
        else half_named("explain", dtype)
    )
    assert half is not None, "ignore_performance always gives a half type"
    arrays, signature = flatten_call(describe_callable(fn), args, kwargs)
    traced = trace(fn, signature, arrays)
    painted = paint_for_device(
        traced.jaxpr,
        merged,
        half,
        chosen=chosen,
        arguments=_arguments(traced, merged),
        static=count,
    )
    record = make_record(
        painted.built.graph,
        painted.classes,
        painted.painting,
        painted.plan,
        half,
        painted.plans.recompute,
    )
    return Explanation(record.operations, record.casts, record.summary)


def function_inside(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that :func:`autocast` was given, if ``fn`` is what it returned; else ``fn``."""
    settings = settings_of(fn)
    return fn if settings is None else settings.function


def settings_of(fn: Callable[..., Any]) -> Settings | None:
    """What a function that :func:`autocast` returned was made from; ``None`` of another one."""
    return getattr(fn, _SETTINGS, None)


def _arguments(traced: Traced, policy: Policy) -> tuple[str, ...] | None:
    """Names of the arguments, if the policy says anything of values."""
    return traced.arguments() if policy.ranges or policy.calibration is not None else None


def check_settings(name: str, dtype: Any, policy: Policy | None) -> None:
    """Raises what :func:`autocast` raises for these arguments; asks no device.

    Args:
        name: the public function that was called, for the error.
        dtype: as :func:`autocast` takes it.
        policy: likewise.
    """
    check_policy(name, policy)
    if dtype is not None:
        half_named(name, dtype)


def half_name(name: str, dtype: Any, policy: Policy | None) -> str | None:
    """The half type in which :func:`autocast` with these arguments calculates.

    With ``dtype=None`` it asks the default device, which starts JAX's backends; nothing is logged.

    Args:
        name: the public function that was called, for the error.
        dtype: as :func:`autocast` takes it.
        policy: likewise.

    Returns:
        ``"float16"``, ``"bfloat16"``, or ``None`` where functions stay as they are.
    """
    if dtype is not None:
        return half_named(name, dtype).name
    half = _fast_half((policy or Policy()).merged_with_environment())
    return None if half is None else half.name


def _fast_half(policy: Policy) -> HalfType | None:
    choice = current_choice()
    if choice.dtype is None:
        return HALF_TYPES["bfloat16"] if policy.ignore_performance else None
    return HALF_TYPES[choice.dtype]


def half_of_device(policy: Policy, what: str) -> HalfType | None:
    """The half type that is fast here, or ``None`` where the function is to stay as it is."""
    half = _fast_half(policy)
    if half is None:
        logger.warning(
            "%s: not rewritten, half is not faster here: %s. "
            "Policy(ignore_performance=True) or dtype=... rewrites all the same.",
            what,
            current_choice().reason,
        )
    return half
