"""Skipping: an Optax optimizer that skips the steps whose gradients are not finite.

::

    finite = all gradients are finite, on all devices
    if finite:  updates, state = inner.update(grads, state, params)
    else:       updates = -0.0                 # p + -0.0 is p, bit for bit, for every p
                                               # momenta, counters, schedules stay: all of `state`

:func:`skip_nonfinite` does this and counts skipped steps; the optimizer of
``duotone.adapters.optax`` adds the loss scale. Both call :func:`guarded_update` or
:func:`guarded_apply`.

On CPUs this is ``lax.cond``, elsewhere ``select``. Measured on a CPU, a select of every parameter
and momentum costs a seventh of a small network's step, and a branch costs nothing measurable
(``benchmarks/optimizer_overhead.py`` has both). With a select, two operations read the old
momentum, so the compiler copies it before it overwrites it. A branch also keeps infinities out of
the optimizer: ``jax_debug_nans`` does not stop in it, and a line search does not run on NaN.

On a GPU, the host must read the condition before it can launch a branch. It would wait for the
backward pass in every step and could not run ahead of the device. A select is part of the fused
loop that reads and writes the momentum anyway.

If devices may disagree (``axis_name=()``), it is a select on every backend, because a collective in
a branch that only some devices take would hang. Under ``vmap``, JAX turns the branch into a select.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.core import Tracer

from duotone.devices.assumed import platform_to_paint_for
from duotone.errors import ArgumentError, ArgumentTypeError, kind_of
from duotone.policy.regions import updating
from duotone.scale.finite import AxisName, all_finite, check_axis_name, unfollowed_axes
from duotone.scale.gradient import ScaledGrad
from duotone.scale.leaves import is_inexact, to_full
from duotone.scale.selection import pairs, select_tree


class SkipState(NamedTuple):
    """The state of :func:`skip_nonfinite`.

    Attributes:
        inner: the state of the wrapped optimizer, unchanged.
        skipped: the number of skipped steps, ``int32[]``.
        last_finite: ``bool[]``, whether the last step was taken.
    """

    inner: Any
    skipped: jax.Array
    last_finite: jax.Array


def skip_nonfinite(
    inner: Any, *, axis_name: AxisName | None = None
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer so that a step whose gradients are not all finite changes nothing.

    Parameters, the optimizer's state, its step counters and schedules do not change by a single
    bit; ``skipped`` counts the step. This scales no loss: for float16 use
    :func:`duotone.enable_mixed_precision_graph_rewrite`, which also skips.

    To accumulate gradients, use ``skip_nonfinite(optax.MultiSteps(tx, k))``. With the other
    nesting, one bad micro-batch makes the whole sum NaN.

    Args:
        inner: an Optax optimizer, or any object with ``init`` and ``update``.
        axis_name: mapped axes over which all devices must agree; see :func:`duotone.all_finite`.

    Returns:
        An Optax optimizer; its state is a :class:`SkipState`.

    Raises:
        ArgumentTypeError: `inner` is not an optimizer, or `axis_name` not a name.
        ArgumentError: on a step, if devices could disagree and no axis is named.

    Example:
        >>> import jax.numpy as jnp, optax, duotone
        >>> tx = duotone.skip_nonfinite(optax.sgd(0.5))
        >>> params = jnp.ones(2)
        >>> updates, state = tx.update(jnp.array([1.0, jnp.inf]), tx.init(params), params)
        >>> optax.apply_updates(params, updates).tolist(), int(state.skipped)
        ([1.0, 1.0], 1)
    """
    optimizer = with_extra_args(inner, "skip_nonfinite")
    axes = check_axis_name(axis_name)

    def init(params: Any) -> SkipState:
        return SkipState(optimizer.init(params), jnp.zeros((), jnp.int32), jnp.asarray(True))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        if not isinstance(state, SkipState):
            raise ArgumentTypeError(
                "skip_nonfinite: the state must be a SkipState, as its init(params) gives; got "
                f"{kind_of(state)}. The state of the bare optimizer goes inside: "
                "tx.init(params)._replace(inner=state)."
            )
        grads, finite = checked_gradients(updates, axes, "skip_nonfinite")
        updates, new = guarded_update(optimizer, grads, state.inner, params, finite, extra)
        skipped = state.skipped + jnp.logical_not(finite).astype(jnp.int32)
        return updates, SkipState(new, skipped, finite)

    return optax.GradientTransformationExtraArgs(init, update)


def with_extra_args(inner: Any, who: str) -> Any:
    """Returns an optimizer whose ``update`` takes extra arguments, from any with both methods.

    Raises:
        ArgumentTypeError: `inner` is not an optimizer.
    """
    if isinstance(inner, optax.GradientTransformation):
        return optax.with_extra_args_support(inner)
    init: Any = getattr(inner, "init", None)
    update: Any = getattr(inner, "update", None)
    if isinstance(inner, type) or not all(map(callable, (init, update))):
        raise ArgumentTypeError(f"{who}: {_not_an_optimizer(inner)}")
    optimizer = optax.GradientTransformationExtraArgs(init, update)
    if _takes_any_keyword(optimizer.update):
        return optimizer
    return optax.with_extra_args_support(optax.GradientTransformation(*optimizer))


def accepted(optimizer: Any, offered: dict[str, Any]) -> dict[str, Any]:
    """Returns the extra arguments that an optimizer's ``update`` accepts.

    By Optax's convention, ``update`` accepts all and ignores unknown ones; some do not.
    """
    parameters = inspect.signature(optimizer.update).parameters
    return (
        offered
        if _takes_any_keyword(optimizer.update)
        else {name: argument for name, argument in offered.items() if name in parameters}
    )


def _takes_any_keyword(function: Any) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _not_an_optimizer(inner: Any) -> str:
    name = getattr(inner, "__name__", None)
    if hasattr(inner, "tx"):  # a Flax TrainState or NNX optimizer
        shown, remedy = f"{kind_of(inner)}", "Wrap the Optax optimizer that you make it of."
    elif isinstance(inner, str):
        shown, remedy = repr(inner), f"Make the optimizer first, such as optax.{inner}(1e-3)."
    elif callable(inner) and name is not None:
        shown = f"the function {name}"
        remedy = f"Call it first, as in {name}(1e-3), and pass the optimizer that it makes."
    else:
        shown, remedy = f"{kind_of(inner)}", "Pass an optimizer, such as optax.adam(1e-3)."
    return f"the optimizer must have init and update, like Optax optimizers; got {shown}. {remedy}"


def checked_gradients(grads: Any, axes: tuple[str, ...] | None, who: str) -> tuple[Any, jax.Array]:
    """Returns gradients as a plain tree, and whether they are finite on all devices.

    The ``finite`` of a :class:`ScaledGrad` is used: it was computed before anything, such as
    clipping, could hide an infinity.

    Raises:
        ArgumentError: devices could disagree and no axis is named.
    """
    check_agreement(axes, who)
    if isinstance(grads, ScaledGrad):
        return grads.grads, jnp.asarray(grads.finite)
    return grads, all_finite(grads, axis_name=axes)


def check_agreement(axes: tuple[str, ...] | None, who: str) -> None:
    """Refuses a finite check if devices could disagree and the types do not show it.

    Inside ``shard_map(check_vma=True)``, types have the axes along which an array varies. With
    ``check_vma=False`` and in ``pmap`` they do not. ``vmap`` needs no check: if only one lane skips
    a step, every lane gets its own parameters, and their shape shows it.

    Raises:
        ArgumentError: the code runs inside axes that types do not track, and `axes` is None.
    """
    if axes is not None:
        return
    unfollowed = unfollowed_axes()
    if unfollowed:
        names = unfollowed[0] if len(unfollowed) == 1 else tuple(unfollowed)
        raise ArgumentError(
            f"{who}: this runs on several devices along {names!r}, each with its own gradients "
            "(pmap, or shard_map with check_vma=False), and their types do not show if they are "
            "equal. If one device skipped a step that the others take, their parameters would "
            f"differ afterwards. Pass axis_name={names!r} to "
            "enable_mixed_precision_graph_rewrite; or pass axis_name=() if the gradients are "
            "already averaged over it, or if each device trains its own model."
        )


def guarded_update(
    optimizer: Any, grads: Any, old: Any, params: Any, finite: jax.Array, extra: dict[str, Any]
) -> tuple[Any, Any]:
    """Runs the optimizer if the gradients are finite.

    Args:
        optimizer: has ``init`` and ``update``, and accepts extra arguments.
        grads: unscaled gradients.
        old: the optimizer's state.
        params: the parameters, or None.
        finite: ``bool[]``.
        extra: further arguments of ``update``.

    Returns:
        The updates (-0.0 in a skipped step), and the new state or `old`. Floating leaves of the
        state keep their dtypes; see :func:`updated`.

    Raises:
        ArgumentError: the optimizer returned a state of another structure or shape.
    """

    def run() -> tuple[Any, Any]:
        return updated(optimizer, grads, old, params, extra)

    return _where(finite, run, lambda like: (jax.tree.map(_nothing, like[0]), old))


def guarded_apply(
    optimizer: Any, grads: Any, old: Any, params: Any, finite: jax.Array, extra: dict[str, Any]
) -> tuple[Any, Any]:
    """Calls :func:`guarded_update` and adds the updates to the parameters.

    Returns:
        The new parameters in their own dtypes and the new state, or both unchanged.

    Raises:
        ArgumentError: the optimizer returned a state of another structure or shape.
    """

    def run() -> tuple[Any, Any]:
        updates, new = updated(optimizer, grads, old, params, extra)
        return optax.apply_updates(params, updates), new

    return _where(finite, run, lambda like: (params, old))


def updated(
    optimizer: Any, grads: Any, old: Any, params: Any, extra: dict[str, Any]
) -> tuple[Any, Any]:
    """Runs the optimizer, in float32 if its parameters are half and its gradients are not.

    Unscaled gradients are float32, because those of float16 parameters may be too small for
    float16. An optimizer that compares dtypes (``lax.cond``, ``lax.clamp``) fails if its state and
    parameters are half. So it gets all three as if the parameters were float32, and the state is
    stored in the dtypes from ``init``. Half gradients of half parameters are not converted.

    Returns:
        The updates, and the new state in the dtypes of `old`.
    """
    wide, state = params, old
    if _any_half(params) and not _any_half(grads):
        wide = to_full(params)
        try:
            state = in_dtypes_of(jax.eval_shape(lambda: optimizer.init(wide)), old)
        except TypeError:  # a leaf of the state is not an array
            wide = params
    updates, new = optimizer.update(grads, state, wide, **extra)
    return updates, in_dtypes_of(old, new)


def _any_half(tree: Any) -> bool:
    floating = [leaf for leaf in jax.tree.leaves(tree) if is_inexact(leaf)]
    return any(jnp.finfo(jnp.result_type(leaf)).bits < 32 for leaf in floating)


def _where(finite: jax.Array, run: Callable[[], Any], keep: Callable[[Any], Any]) -> Any:
    """Returns ``run()`` if `finite`, else ``keep(like)``; ``like`` has the types of ``run()``."""
    with updating():
        if jax.typeof(finite).mat.varying or not _branching_is_free():
            done = run()
            return select_tree(finite, done, keep(done))
        if not isinstance(finite, Tracer) and finite.is_fully_addressable:
            return _where_known(bool(finite), run, keep)
        done = None

        def taken() -> list[Any]:
            nonlocal done
            done = run()
            return [jnp.asarray(new) for new, _, chosen in pairs(done, keep(done)) if chosen]

        def left() -> list[Any]:
            nonlocal done
            if done is None:  # jax.disable_jit takes one branch only
                done = run()
            return [_like(new, old) for new, old, chosen in pairs(done, keep(done)) if chosen]

        arrays = iter(lax.cond(finite, taken, left))
        leaves = [next(arrays) if chosen else old for _, old, chosen in pairs(done, keep(done))]
        return jax.tree.unflatten(jax.tree.structure(done), leaves)


def _where_known(finite: bool, run: Callable[[], Any], keep: Callable[[Any], Any]) -> Any:
    """Selects as :func:`_where`, outside of ``jit``, where ``lax.cond`` recompiles at each step."""
    done = None

    def shaped() -> None:
        nonlocal done
        done = run()

    if finite:
        shaped()
    else:
        jax.eval_shape(shaped)
    leaves = [
        jnp.asarray(new if finite else old) if chosen else old
        for new, old, chosen in pairs(done, keep(done))
    ]
    return jax.tree.unflatten(jax.tree.structure(done), leaves)


def _branching_is_free() -> bool:
    """Returns True if the host does not wait for a device to read a branch condition."""
    return platform_to_paint_for() == "cpu"


def _like(new: Any, old: Any) -> jax.Array:
    """Returns `old`, cast to vary along the mesh axes along which `new` varies."""
    axes = jax.typeof(jnp.asarray(new)).mat.varying - jax.typeof(jnp.asarray(old)).mat.varying
    return lax.pcast(jnp.asarray(old), tuple(sorted(axes)), to="varying") if axes else old


def _nothing(update: Any) -> Any:
    """Returns an update that changes nothing when it is added."""
    if not hasattr(update, "dtype") or update.dtype == jax.dtypes.float0:
        return update
    # -0.0 instead of 0.0: -0.0 + 0.0 is 0.0, whose bits, checksum and reciprocal differ.
    zero = complex(-0.0, -0.0) if jnp.iscomplexobj(update) else -0.0
    return jnp.full(update.shape, zero if is_inexact(update) else 0, update.dtype)


def in_dtypes_of(old: Any, new: Any) -> Any:
    """Casts the floating leaves of a tree to the dtypes of another tree of the same structure.

    Args:
        old: the tree with the dtypes.
        new: a tree of arrays; returned unchanged if the structures differ.

    Returns:
        `new`, with the dtypes of `old`.
    """
    if jax.tree.structure(old) != jax.tree.structure(new):
        return new  # `select_tree` then raises an error that names the difference

    def convert(kept: Any, leaf: Any) -> Any:
        if leaf is kept or not (is_inexact(kept) and is_inexact(leaf)):
            return leaf
        dtype = kept.dtype if hasattr(kept, "dtype") else jnp.result_type(kept)
        return leaf if jnp.result_type(leaf) == dtype else jnp.asarray(leaf).astype(dtype)

    return jax.tree.map(convert, old, new)
