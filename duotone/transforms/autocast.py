"""The functions users call: ``autocast`` and ``explain``.

:mod:`duotone.jaxpr.pipeline` lists the stages of the rewrite in order.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

import jax

from duotone import _jax
from duotone._checks import check_switch
from duotone.devices.assumed import assumed, assuming
from duotone.devices.specifications import Target, find_target
from duotone.errors import ArgumentError
from duotone.explaining.explanation import Explanation
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.painted import CallSite
from duotone.jaxpr.pipeline import paint_alone, paint_for_device, paint_full
from duotone.jaxpr.reading.signature import describe_callable, flatten_call
from duotone.jaxpr.reading.trace import trace
from duotone.jaxpr.records import halves_inside, record_of
from duotone.jaxpr.running import backward
from duotone.jaxpr.running.inside import collecting, holds_rewritten
from duotone.policy.arguments import (
    check_calibration,
    check_callable,
    check_policy,
    check_rewrite,
    half_named,
    without_heal,
)
from duotone.policy.calibration import Calibration
from duotone.policy.dtypes import OFF
from duotone.policy.policy import Policy
from duotone.transforms.decorator import Decorator
from duotone.transforms.mixed_function import (
    FunctionSettings,
    argument_names,
    fast_half,
    half_of_device,
    leaves_backward,
    settings_of,
)
from duotone.transforms.static_weights import CastParams, Weights, check_fits, without_first

P = ParamSpec("P")
R = TypeVar("R")


@overload
def autocast(
    fn: Callable[P, R],
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    enabled: bool = True,
) -> Callable[P, R]: ...
@overload
def autocast(
    fn: None = None,
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    enabled: bool = True,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def autocast(
    fn: Callable[Concatenate[Any, P], R],
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    weights: Any,
    enabled: bool = True,
) -> Callable[P, R]: ...
def autocast(
    fn: Callable[..., Any] | None = None,
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    weights: Any = None,
    enabled: bool = True,
) -> Any:
    """Makes a function run in mixed precision.

    A call traces the function, paints it and rewrites it. The pytrees, shapes, dtypes and weak
    types of arguments and results do not change. Each signature is traced once; outside
    ``jax.jit`` the rewritten program runs compiled. The result works inside and around every JAX
    transformation. To differentiate, use :func:`duotone.grad` or :func:`duotone.value_and_grad`,
    or wrap ``jax.grad(fn)``. ``jax.grad`` of the result also paints both passes together, except in
    cases that ``docs/limits.md`` lists, such as effects, traced values that the function closes
    over, ``shard_map``, or a policy with ranges. JAX then derives the backward pass, which
    recomputes nothing, and :func:`explain` gives the reason.

    Args:
        fn: the function; if omitted, a decorator is returned.
        dtype: ``float16`` or ``bfloat16`` (anything ``jax.numpy.dtype`` takes, also ``"fp16"``,
            ``"bf16"`` and ``"half"``). ``None`` selects the half type that is fast on the default
            device. If none is, ``fn`` runs unchanged and logs one line (see
            :class:`~duotone.Policy`, ``ignore_performance``). ``float32`` switches the rewrite off.
        policy: which operations may be painted; the default policy if omitted. Environment
            variables are merged in (``docs/environment.md``).
        calibration: the result of :func:`duotone.calibrate` for ``fn``. It is short for
            ``Policy(calibration=...)``.
        weights: for inference, the first argument of ``fn`` if it is the same at every call: a
            pytree, or the result of :func:`cast_params`, which also sets the default of ``dtype``
            and ``policy``. The first call casts the weights that ``fn`` reads in half only. They
            are constants: they have no derivative, and later changes to them have no effect.
        enabled: ``False`` switches the rewrite off. The result then runs ``fn`` unchanged, also
            inside another rewrite, which leaves it float32 in both passes.

    Returns:
        A function with the signature of ``fn``; with ``weights``, without its first argument.

    Raises:
        ArgumentTypeError: ``fn`` is not callable or does not take the weights first; ``dtype``,
            ``policy`` or ``calibration`` has the wrong type; ``weights`` holds shapes instead of
            arrays.
        ArgumentError: ``dtype`` is neither a half type nor float32, or not that of the cast
            weights; ``weights`` holds no array.
        UnknownOperationError, RangeError, CalibrationError: on a call: the lists, the ranges or
            the calibration of the policy do not fit the function.
        OutputError: on a call: ``fn`` returns a generator, a coroutine, or an object that only
            converts to an array.
        LeakedTracerError: on a call: ``fn`` uses a traced value of another call, or returns one in
            an object that JAX does not flatten.

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
    check_switch("autocast", "enabled", enabled)
    if fn is None:
        return Decorator(
            autocast,
            dtype=dtype,
            policy=policy,
            calibration=calibration,
            weights=weights,
            enabled=enabled,
        )
    check_rewrite("autocast", fn, policy, calibration)
    chosen = dtype is None
    fixed = None
    if weights is not None:
        fn, dtype, policy = unwrapped(fn, dtype, policy)
        fixed = Weights(describe_callable(fn), weights)
        dtype, chosen, policy = _recorded_settings(fixed.record, dtype, policy)
    if calibration is not None:
        policy = (policy or Policy()).replace(calibration=calibration)
    settings = FunctionSettings(fn, dtype if enabled else OFF, chosen, policy, fixed)

    @functools.wraps(fn, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return settings.call(assumed(), args, kwargs)

    # This is the user's function, not a wrapper of it: Equinox searches wrappers for arrays.
    vars(wrapped)["__wrapped__"] = inspect.unwrap(fn, stop=lambda f: hasattr(f, "__signature__"))
    if fixed is not None and (signature := without_first(fn)) is not None:
        vars(wrapped)["__signature__"] = signature
    return wrapped


def unwrapped(
    fn: Callable[..., Any], dtype: Any, policy: Policy | None
) -> tuple[Callable[..., Any], Any, Policy | None]:
    """Returns the function inside of one that :func:`autocast` returned, and its settings.

    Args:
        fn: any function; one that :func:`autocast` did not make is returned unchanged.
        dtype: as for :func:`autocast`; overrides the dtype of ``fn`` unless that is switched off.
        policy: as for :func:`autocast`; overrides the policy of ``fn``.
    """
    found = settings_of(fn)
    if found is None or found.weights is not None:
        return fn, dtype, policy
    return (
        found.function,
        found.dtype if dtype is None or found.off else dtype,
        found.policy if policy is None else policy,
    )


def _recorded_settings(
    record: CastParams | None, dtype: Any, policy: Policy | None
) -> tuple[Any, bool, Policy | None]:
    """Returns the dtype, whether duotone chose it, and the policy; cast weights set the defaults.

    Raises:
        ArgumentError: the weights were cast to another half type.
    """
    if record is None:
        return dtype, dtype is None, policy
    policy = record.policy if policy is None else policy
    if dtype is None:
        # The record has no half type and duotone did not choose: mixed precision was off then.
        off = record.dtype is None and not record.chosen
        return OFF if off else record.dtype, record.chosen, policy
    half = half_named("autocast", dtype)
    if record.cast and (half is None or half.name != record.dtype):
        raise ArgumentError(
            f"autocast: dtype is {jax.numpy.dtype(dtype).name} and weights were cast to "
            f"{record.dtype}; leave dtype out, or cast the float32 weights again"
        )
    return dtype, False, policy


def explain(
    fn: Callable[..., Any],
    *args: Any,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    weights: Any = None,
    target: str | Target | None = None,
    **kwargs: Any,
) -> Explanation:
    """Reports what :func:`autocast` would do to each operation of a function, and why.

    It compiles and runs nothing, so it works on every machine. If ``dtype`` is ``None`` and no half
    type is faster here, the record is for bfloat16.

    Args:
        fn: the function, or the result of :func:`autocast`, whose dtype and policy are then the
            defaults.
        *args: its arguments: arrays or ``jax.ShapeDtypeStruct``; with ``weights``, the arguments
            after the first.
        dtype: as for :func:`autocast`; with ``float32`` everything is full.
        policy: as for :func:`autocast`.
        calibration: as for :func:`autocast`.
        weights: as for :func:`autocast`.
        target: the device to explain for, present or not: ``"h200"``, ``"v5e"``, ``"cpu"`` (see
            ``docs/targets.md``); ``None`` for the default device here.
        **kwargs: its keyword arguments. For a function that has one of the five names above itself,
            pass ``functools.partial(fn, policy=...)``.

    Returns:
        A record; print it for a table.

    Raises:
        ArgumentTypeError, ArgumentError: as for :func:`autocast`.
        UnknownTargetError: no such target is known.

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
    if target is not None:
        with assuming(find_target(target).device()):
            return explain(
                fn,
                *args,
                dtype=dtype,
                policy=policy,
                calibration=calibration,
                weights=weights,
                **kwargs,
            )
    if weights is not None:
        policy = without_heal(policy)
        fn, dtype, policy = autocast(fn, dtype=dtype, policy=policy, weights=weights), None, None
    settings = settings_of(fn)
    in_jit = settings is not None and _jax.is_jitted(fn)
    chosen, count = dtype is None, 0
    if settings is not None:
        fn, chosen = settings.function, chosen and settings.chosen
        dtype = settings.dtype if dtype is None else dtype
        policy = settings.policy if policy is None else policy
        if settings.weights is not None:
            args, count = (settings.weights.stand_in, *args), len(settings.weights.arrays)
            check_fits(describe_callable(fn), fn, args, kwargs)
    if calibration is not None:
        policy = (policy or Policy()).replace(calibration=calibration)
    merged = (policy or Policy()).merged_with_environment()
    half = (
        half_of_device(merged.replace(ignore_performance=True), describe_callable(fn))
        if dtype is None
        else half_named("explain", dtype)
    )
    arrays, signature = flatten_call(describe_callable(fn), args, kwargs)
    traced, collection = trace(fn, signature, arrays), None
    if holds_rewritten(traced.jaxpr):
        with collecting() as collection:
            traced = trace(fn, signature, arrays)
        inside = halves_inside(traced.jaxpr, collection)
        if dtype is None and len(inside) == 1:
            half = HALF_TYPES[next(iter(inside))]
    if half is None:
        painted = paint_full(traced.jaxpr, merged)
    else:
        site = CallSite(arguments=argument_names(traced, merged), weights=count)
        paint = paint_for_device if in_jit else paint_alone
        painted = paint(traced.jaxpr, merged, half, chosen=chosen, site=site)
    record = record_of(painted, collection)
    left = ""
    if painted.changed:
        left = leaves_backward(painted.resolved, painted.forms, painted.optimizations)
        left = left or backward.leaves_backward(traced.jaxpr)
    name = OFF if half is None else half.name
    summary = dataclasses.replace(record.summary, half_dtype=name, backward=left)
    return Explanation(record.operations, record.casts, summary)


def function_inside(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the user's function that :func:`autocast` wrapped, or ``fn`` itself."""
    settings = settings_of(fn)
    return fn if settings is None else settings.function


def check_settings(name: str, dtype: Any, policy: Policy | None) -> None:
    """Raises the errors that :func:`autocast` raises for these arguments; asks no device."""
    check_policy(name, policy)
    if dtype is not None:
        half_named(name, dtype)


def half_name(name: str, dtype: Any, policy: Policy | None) -> str | None:
    """Returns the name of the half type that :func:`autocast` uses for these arguments.

    With ``dtype=None`` it asks the default device, which starts JAX's backends; it logs nothing.

    Returns:
        ``"float16"``, ``"bfloat16"``, or ``None`` if functions stay unchanged.

    Raises:
        ArgumentTypeError: ``dtype`` is not a dtype.
        ArgumentError: ``dtype`` is not a half type. Float32 is refused too.
    """
    if dtype is not None:
        half = half_named(name, dtype)
        if half is None:  # None would mean "ask the device" to the caller
            raise ArgumentError(
                f"{name}: dtype is float32, which would switch mixed precision off; leave the call "
                "out, or pass float16, bfloat16 or None (asks the device)"
            )
        return half.name
    half = fast_half((policy or Policy()).merged_with_environment())
    return None if half is None else half.name
