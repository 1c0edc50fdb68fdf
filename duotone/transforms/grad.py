"""``grad`` and ``value_and_grad`` as in JAX, with both passes painted as one program.

::

    no scale:  autocast(jax.value_and_grad(fun))(*args)
    a scale:   autocast(scaled)(scale, *args), where
               scaled scales the loss, differentiates and unscales (``duotone.scale.gradient``)

The other order, ``jax.grad(autocast(fun))``, gives the same program if one program can contain
both passes (:mod:`duotone.jaxpr.running.backward`). Otherwise JAX derives the backward pass from
the painted forward pass, stores every residual of it, and recomputes nothing.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax

from duotone._checks import check_switch
from duotone.errors import ArgumentError, ArgumentTypeError, kind_of, shown
from duotone.policy.arguments import check_rewrite, is_off
from duotone.policy.calibration import Calibration
from duotone.policy.policy import Policy
from duotone.policy.scales import check_scale
from duotone.scale.gradient import check_argnums, check_reach, scaled_parts, with_loss_scale_first
from duotone.scale.state import FixedLossScale, LossScale, NoLossScale
from duotone.transforms.autocast import autocast, unwrapped


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    *,
    scale: LossScale | float | None = None,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    enabled: bool = True,
) -> Callable[..., Any]:
    """Creates a function that computes the gradient in mixed precision, like ``jax.grad``.

    The gradient has the structure, shapes and dtypes that ``jax.grad`` gives it. Float32
    parameters have float32 gradients, which are summed in float32 and not rounded to half (except
    on a CPU, in programs that duotone compiles with :func:`compiler_options`).

    Args:
        fun: returns a scalar, or a pair ``(scalar, aux)`` with ``has_aux``.
        argnums: positions of the arguments to differentiate by: an integer or several.
        has_aux: whether ``fun`` returns a pair.
        holomorphic: whether ``fun`` is holomorphic, with complex arguments and result.
        allow_int: whether integer arguments may be differentiated (their gradients are float0).
        reduce_axes: must be empty, as for ``jax.grad``.
        scale: a loss scale, as for :func:`value_and_grad`.
        dtype: as for :func:`autocast`.
        policy: as for :func:`autocast`.
        calibration: as for :func:`autocast`.
        enabled: ``False`` switches off rewriting and scaling.

    Returns:
        A function with the signature of ``fun`` that returns the gradient, or with ``has_aux`` a
        pair ``(gradient, aux)``.

    Raises:
        ArgumentTypeError, ArgumentError: as for :func:`value_and_grad`.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> def loss(w, x):
        ...     return jnp.mean(jax.nn.relu(x @ w))
        >>> w, x = jnp.ones((8, 4)), jnp.ones((2, 8))
        >>> gradient = duotone.grad(loss, dtype=jnp.bfloat16)(w, x)
        >>> gradient.dtype, gradient.shape
        (dtype('float32'), (8, 4))
    """
    jax_takes = (argnums, has_aux, holomorphic, allow_int, reduce_axes)
    settings = {"dtype": dtype, "policy": policy, "calibration": calibration, "enabled": enabled}
    return _painted(jax.grad, fun, jax_takes, scale, settings)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    *,
    scale: LossScale | float | None = None,
    dtype: Any = None,
    policy: Policy | None = None,
    calibration: Calibration | None = None,
    enabled: bool = True,
) -> Callable[..., Any]:
    """Creates a function that computes value and gradient, like ``jax.value_and_grad``.

    It equals ``duotone.autocast(jax.value_and_grad(fun))``. The other order,
    ``jax.value_and_grad(duotone.autocast(fun))``, leaves the backward pass to JAX if one program
    cannot contain both passes (``docs/limits.md``). The result works inside and around every JAX
    transformation. Outside ``jax.jit`` the rewritten program runs compiled, so make the function
    once, not in every step.

    With ``scale``, duotone multiplies the loss by a loss scale, differentiates it, and divides the
    gradients by the scale in float32: loss and gradients come out unscaled. Elements that
    overflowed stay infinite or NaN, so ``duotone.all_finite(grads)`` tells whether to take the
    step::

        loss, grads = duotone.value_and_grad(loss_fn, scale=loss_scale)(params, batch)
        loss_scale = loss_scale.adjust(duotone.all_finite(grads))

    A loss scale changes from step to step, so make the function inside the compiled step, as here.

    Args:
        fun: returns a scalar, or a pair ``(scalar, aux)`` with ``has_aux``. It may be a result of
            :func:`autocast`, whose dtype and policy are then the defaults; if that is switched
            off, it stays off.
        argnums: positions of the arguments to differentiate by: an integer or several.
        has_aux: whether ``fun`` returns a pair.
        holomorphic: whether ``fun`` is holomorphic, with complex arguments and result.
        allow_int: whether integer arguments may be differentiated (their gradients are float0).
        reduce_axes: must be empty, as for ``jax.grad``.
        scale: the loss scale of this step: a :class:`DynamicLossScale`, :class:`FixedLossScale`,
            :class:`NoLossScale` or a class of your own; a fixed positive number; or ``None``.
            A float16 loss is scaled by 2**15 at most.
        dtype: as for :func:`autocast`.
        policy: as for :func:`autocast`.
        calibration: as for :func:`autocast`.
        enabled: ``False`` switches off rewriting and scaling, as ``dtype="float32"`` does, also
            inside another rewrite.

    Returns:
        A function with the signature of ``fun`` that returns ``(value, gradient)``, or with
        ``has_aux`` ``((value, aux), gradient)``. Dtypes are those of ``jax.value_and_grad``, with
        one exception: with ``scale``, gradients of half arguments are float32, since they may not
        fit half.

    Raises:
        ArgumentTypeError: ``fun`` is not callable, ``argnums`` no integer, ``scale`` no loss scale,
            or as for :func:`autocast`. On a call: an argument to differentiate by is missing; with
            ``scale``, the loss is not floating. Without, JAX raises what it raises.
        ArgumentError: ``argnums`` is empty; ``scale`` is not positive, or goes with
            ``holomorphic``; or as for :func:`autocast`. On a call, with ``scale``: the loss is not
            a scalar.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> def loss(w, x):
        ...     return jnp.mean(jax.nn.relu(x @ w))
        >>> @jax.jit
        ... def step(scale, w, x):
        ...     value, g = duotone.value_and_grad(loss, scale=scale, dtype=jnp.float16)(w, x)
        ...     finite = duotone.all_finite(g)
        ...     return scale.adjust(finite), jnp.where(finite, w - 0.1 * g, w), value
        >>> scale, w, value = step(duotone.DynamicLossScale(), jnp.ones((8, 4)), jnp.ones((2, 8)))
        >>> float(value), float(w[0, 0]), int(scale.good_steps)
        (8.0, 0.9750000238418579, 1)
    """
    jax_takes = (argnums, has_aux, holomorphic, allow_int, reduce_axes)
    settings = {"dtype": dtype, "policy": policy, "calibration": calibration, "enabled": enabled}
    return _painted(jax.value_and_grad, fun, jax_takes, scale, settings)


def _painted(
    differentiate: Callable[..., Any],
    fun: Callable[..., Any],
    jax_takes: tuple[Any, ...],
    scale: Any,
    settings: dict[str, Any],
) -> Callable[..., Any]:
    """Paints the derivative that JAX makes, or with a loss scale that of the scaled loss."""
    name = f"duotone.{differentiate.__name__}"
    check_rewrite(name, fun, settings["policy"], settings["calibration"])
    check_switch(name, "enabled", settings["enabled"])
    is_off(name, settings["dtype"])
    # JAX would derive the backward pass of an autocast inside from its forward pass.
    fun, dtype, policy = unwrapped(fun, settings["dtype"], settings["policy"])
    settings |= {"dtype": dtype, "policy": policy}
    argnums = check_argnums(f"{name}: argnums", jax_takes[0])
    if scale is not None:
        return _scaled(name, fun, (argnums, *jax_takes[1:]), scale, settings)
    gradient = differentiate(fun, argnums, *jax_takes[1:])

    @functools.wraps(gradient)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        _check_call(name, argnums, args)
        return gradient(*args, **kwargs)

    return autocast(differentiated, **settings)


def _scaled(
    name: str,
    fun: Callable[..., Any],
    jax_takes: tuple[Any, ...],
    scale: Any,
    settings: dict[str, Any],
) -> Callable[..., Any]:
    """Paints the derivative of the scaled loss; its results are unscaled."""
    argnums, has_aux, holomorphic, allow_int, reduce_axes = jax_takes
    if holomorphic:
        raise ArgumentError(
            f"{name}: holomorphic=True, and a loss scale is for a real loss; leave scale out."
        )
    jax.grad(fun, reduce_axes=reduce_axes)  # refuses what JAX refuses
    off = not settings["enabled"] or is_off(name, settings["dtype"])
    used = NoLossScale() if off else _loss_scale(name, scale)
    parts = scaled_parts(fun, argnums, has_aux, allow_int=allow_int, what=f"{name}: fun")

    def differentiated(loss_scale: LossScale, /, *args: Any, **kwargs: Any) -> Any:
        loss, aux, grads = parts(loss_scale, *args, **kwargs)
        if name == "duotone.grad":
            return (grads, aux) if has_aux else grads
        return ((loss, aux) if has_aux else loss), grads

    kind = name.removeprefix("duotone.")
    painted = autocast(with_loss_scale_first(kind, fun, differentiated), **settings)

    @functools.wraps(fun, updated=())
    def scaled(*args: Any, **kwargs: Any) -> Any:
        _check_call(name, argnums, args)
        # The loss scale is an argument, not a constant: it changes and may be a tracer.
        return painted(used, *args, **kwargs)

    return scaled


def _check_call(name: str, argnums: int | tuple[int, ...], args: tuple[Any, ...]) -> None:
    """Refuses a call without the arguments to differentiate by, or with a loss scale in front."""
    first = 0 in (argnums if isinstance(argnums, tuple) else (argnums,))
    if args and first and isinstance(args[0], LossScale):
        raise ArgumentTypeError(
            f"{name}: the first argument of the call is {kind_of(args[0])}. A loss scale "
            f"is named where the function is made: {name}(fun, scale=loss_scale)(params, ...)."
        )
    check_reach(f"{name}: argnums", argnums, len(args))


def _loss_scale(name: str, scale: Any) -> LossScale:
    """Converts the ``scale`` argument to a loss scale."""
    if isinstance(scale, LossScale):
        return scale
    if isinstance(scale, numbers.Real) and not isinstance(scale, bool):
        return FixedLossScale(check_scale("scale", scale))
    if isinstance(scale, type) and issubclass(scale, LossScale):
        remedy = f"Make one first: {scale.__name__}(...)."
    elif hasattr(scale, "loss_scale"):
        remedy = "Pass its loss scale: scale=state.loss_scale."
    elif hasattr(scale, "dtype"):
        remedy = "Put the array into one: duotone.DynamicLossScale(value=scale)."
    else:
        remedy = (
            "It changes from step to step, so pass its state; duotone.DynamicLossScale() first."
        )
    raise ArgumentTypeError(
        f"{name}: scale must be a loss scale (DynamicLossScale, FixedLossScale, NoLossScale), a "
        f"positive number, or None; got {shown(scale)}. {remedy}"
    )
