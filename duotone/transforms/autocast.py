"""The functions users call: ``autocast`` and ``explain``.

The stages that they take a function through stand in :mod:`duotone.jaxpr.pipeline`, in order.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

import jax

from duotone.devices import assumed
from duotone.devices.assumed import assuming
from duotone.devices.specifications import Target, find_target
from duotone.errors import ArgumentError
from duotone.explaining.explanation import Explanation
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.painted import Site
from duotone.jaxpr.pipeline import paint_for_device, paint_full
from duotone.jaxpr.reading.signature import describe_callable, flatten_call
from duotone.jaxpr.reading.trace import trace
from duotone.jaxpr.records import halves_inside, record_of
from duotone.jaxpr.running import backward
from duotone.jaxpr.running.inside import collecting, holds_rewritten
from duotone.policy.arguments import (
    check_calibration,
    check_callable,
    check_policy,
    half_named,
    refuse_heal,
    without_heal,
)
from duotone.policy.calibration import Calibration
from duotone.policy.dtypes import OFF
from duotone.policy.policy import Policy
from duotone.transforms.decorator import Decorator
from duotone.transforms.mixed_function import (
    Settings,
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

    The function is traced when it is called, painted, and rewritten; what it takes and returns
    stays as it was: pytrees, shapes, dtypes, weak types. Each signature is traced once; outside
    ``jax.jit`` the rewritten program runs compiled. It may be called inside and around every JAX
    transformation. To differentiate, :func:`duotone.grad` and :func:`duotone.value_and_grad`, or
    this around ``jax.grad(fn)``. Inside it both passes are painted together too, unless the
    function has effects, closes over traced values or stands in ``shard_map``, or ranges or a
    calibration are given: the backward pass is JAX's then and recomputes nothing.

    Args:
        fn: the function; if omitted, a decorator is returned.
        dtype: ``float16`` or ``bfloat16`` (anything ``jax.numpy.dtype`` takes, also ``"fp16"``,
            ``"bf16"`` and ``"half"``). ``None`` asks the default device for the one that is fast
            there; where none is, ``fn`` runs as it is and one line is logged (see
            :class:`~duotone.Policy`, ``ignore_performance``). ``float32`` switches off.
        policy: what may be painted; the default policy if omitted. Environment variables are
            merged in (``docs/environment.md``).
        calibration: what :func:`duotone.calibrate` measured for ``fn``: short for
            ``Policy(calibration=...)``.
        weights: for inference: the first argument of ``fn``, the weights, which are the same at
            every call; a pytree, or what :func:`cast_params` returned, whose dtype and policy then
            hold unless others are given. Weights that ``fn`` reads in half only are cast
            once, at the first call. They are constants: there is no derivative with respect to
            them, and a change made to them afterwards is not seen.
        enabled: ``False`` switches off: the function that is returned runs ``fn`` as it is, also
            inside another rewrite, which leaves it float32 in both passes.

    Returns:
        A function with the signature of ``fn``; with ``weights``, without its first argument.

    Raises:
        ArgumentTypeError: ``fn`` is not callable or does not take the weights first, ``dtype`` is
            not a dtype, ``policy`` is no policy, ``calibration`` no calibration, ``weights`` holds
            shapes in place of arrays.
        ArgumentError: ``dtype`` is neither a half type nor float32, or not that of the cast
            weights; ``weights`` holds no array.

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
        return Decorator(
            autocast,
            dtype=dtype,
            policy=policy,
            calibration=calibration,
            weights=weights,
            enabled=enabled,
        )
    check_callable("autocast", fn)
    check_policy("autocast", policy)
    refuse_heal("autocast", policy)
    check_calibration("autocast", calibration)
    chosen = dtype is None
    held = None
    if weights is not None:
        fn, dtype, policy = unwrapped(fn, dtype, policy)
        held = Weights(describe_callable(fn), weights)
        dtype, chosen, policy = _recorded_settings(held.record, dtype, policy)
    if calibration is not None:
        policy = (policy or Policy()).replace(calibration=calibration)
    settings = Settings(fn, dtype if enabled else OFF, chosen, policy, held)

    @functools.wraps(fn, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return settings.call(assumed(), args, kwargs)

    # The function that was written, not a wrapper around it: Equinox looks for arrays on the way.
    vars(wrapped)["__wrapped__"] = inspect.unwrap(fn, stop=lambda f: hasattr(f, "__signature__"))
    if held is not None and (signature := without_first(fn)) is not None:
        vars(wrapped)["__signature__"] = signature
    return wrapped


def unwrapped(
    fn: Callable[..., Any], dtype: Any, policy: Policy | None
) -> tuple[Callable[..., Any], Any, Policy | None]:
    """The function inside of one that :func:`autocast` returned, and its settings.

    Args:
        fn: any function; one that is not of :func:`autocast` is returned as it is.
        dtype: as for :func:`autocast`; what is given wins, unless ``fn`` is switched off.
        policy: as for :func:`autocast`; what is given wins.
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
    """Dtype, whether duotone chose it, and policy; those of cast weights unless others are given.

    Raises:
        ArgumentError: the weights were cast to another half type.
    """
    if record is None:
        return dtype, dtype is None, policy
    policy = record.policy if policy is None else policy
    if dtype is None:
        # Neither a half type nor the choice of one: the weights were cast with mixed precision off.
        off = record.dtype is None and not record.chosen
        return OFF if off else record.dtype, record.chosen, policy
    half = half_named("autocast", dtype)
    if record.cast and (half is None or half.name != record.dtype):
        raise ArgumentError(
            f"autocast: dtype is {jax.numpy.dtype(dtype).name} and weights were cast to "
            f"{record.dtype}; leave dtype out, or cast the float32 weights anew"
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
    """Says what :func:`autocast` would do to a function, operation by operation, and why.

    Nothing is compiled or run. Works on every machine: where ``dtype`` is ``None`` and no half type
    is faster here, the record is for bfloat16.

    Args:
        fn: the function. For one that :func:`autocast` returned, what that does to it, with its
            dtype and policy unless others are given.
        *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place; with ``weights``,
            those behind the first.
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
        site = Site(arguments=argument_names(traced, merged), weights=count)
        painted = paint_for_device(traced.jaxpr, merged, half, chosen=chosen, site=site)
    record = record_of(painted, collection)
    left = ""
    if painted.painting.changed:
        left = leaves_backward(painted) or backward.leaves_backward(traced.jaxpr)
    name = OFF if half is None else half.name
    summary = dataclasses.replace(record.summary, half_dtype=name, backward=left)
    return Explanation(record.operations, record.casts, summary)


def function_inside(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that :func:`autocast` was given, if ``fn`` is what it returned; else ``fn``."""
    settings = settings_of(fn)
    return fn if settings is None else settings.function


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

    Raises:
        ArgumentTypeError: ``dtype`` is not a dtype.
        ArgumentError: ``dtype`` is no half type; float32 neither, for there is nothing to ask for.
    """
    if dtype is not None:
        half = half_named(name, dtype)
        if half is None:  # None would mean "ask the device" to the caller
            raise ArgumentError(
                f"{name}: dtype is float32, which switches mixed precision off, and cannot here; "
                "leave the call out, or pass float16, bfloat16 or None (asks the device)"
            )
        return half.name
    half = fast_half((policy or Policy()).merged_with_environment())
    return None if half is None else half.name
