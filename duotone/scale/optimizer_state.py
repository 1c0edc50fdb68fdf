"""The state of an optimizer with a loss scale: its fields, and how to find, read and check it.

It is a pytree of arrays, so every checkpoint library can save it. :func:`check` checks a restored
state, because a file can contain anything.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.tree_util import keystr, tree_flatten_with_path

from duotone.errors import ArgumentError, ArgumentTypeError, kind_of
from duotone.policy.regions import updating
from duotone.policy.scales import MAX_SCALE, MIN_SCALE
from duotone.scale.leaves import is_inexact
from duotone.scale.state import DynamicLossScale, LossScale, NoLossScale
from duotone.text.scale_log import Reading


class MixedPrecisionState(NamedTuple):
    """The state of a wrapped optimizer; ``optax.tree_utils.tree_get`` finds its fields.

    Attributes:
        inner: the state of the wrapped optimizer, unchanged.
        loss_scale: the loss scale that the user asked for; counts good and skipped steps. If the
            optimizer does not scale losses (``"dynamic"`` in bfloat16, or mixed precision switched
            off), its value is not used; so the state has one structure for all dtypes.
        last_finite: ``bool[]``, whether the last step was taken.
        stuck: ``int32[]``, consecutive skipped steps after which the scale did not fall.
    """

    inner: Any
    loss_scale: LossScale
    last_finite: jax.Array
    stuck: jax.Array


def begin(inner: Any, loss_scale: LossScale) -> MixedPrecisionState:
    """Returns the state before the first step."""
    return MixedPrecisionState(inner, loss_scale, jnp.asarray(True), jnp.zeros((), jnp.int32))


def advance(
    state: MixedPrecisionState, inner: Any, finite: jax.Array, loss: Any = None
) -> MixedPrecisionState:
    """Returns the state after a step.

    Args:
        state: the state before the step.
        inner: the wrapped optimizer's state after the step.
        finite: ``bool[]``, whether the gradients were finite.
        loss: the loss of the step, unscaled and equal on all devices; None if it is unknown.
    """
    loss_scale = state.loss_scale
    if loss is not None:
        loss_scale = loss_scale.fitted_to(loss, finite, state.last_finite)
    loss_scale = loss_scale.adjust(finite)
    with updating():
        unmoved = jnp.logical_not(loss_scale.value < state.loss_scale.value)
        stuck = jnp.where(finite, 0, state.stuck + unmoved.astype(jnp.int32))
    return MixedPrecisionState(inner, loss_scale, finite, stuck)


def cannot_fall(loss_scale: LossScale) -> jax.Array:
    """Returns True if a skipped step would not lower a loss scale, ``bool[]``."""
    with updating():
        lower = loss_scale.adjust(jnp.asarray(False)).value
        return jnp.logical_not(lower < loss_scale.value)


def in_use(state: MixedPrecisionState, *, scaled: bool) -> MixedPrecisionState:
    """Returns a state with the loss scale that multiplies losses.

    Returns:
        The state itself, or one whose loss scale is a ``NoLossScale`` with the same counts.
    """
    if scaled:
        return state
    return state._replace(loss_scale=NoLossScale(**_counts(state.loss_scale)))


def stored(used: MixedPrecisionState, before: MixedPrecisionState) -> MixedPrecisionState:
    """Returns the inverse of :func:`in_use`: the state that the optimizer stores.

    Args:
        used: the state after a step, with the loss scale that is in use.
        before: the stored state before the step.
    """
    if type(used.loss_scale) is type(before.loss_scale):
        return used
    counts = _counts(used.loss_scale)
    new: Any = before.loss_scale
    kept = dataclasses.replace(new, **{n: counts[n] for n in _counts(new)})
    return used._replace(loss_scale=kept)


def _counts(loss_scale: LossScale) -> dict[str, Any]:
    """Returns the counts of a loss scale; a user's subclass may have none."""
    names = {field.name for field in dataclasses.fields(loss_scale)}  # pyright: ignore
    return {n: getattr(loss_scale, n) for n in ("good_steps", "skipped") if n in names}


def states_in(tree: Any) -> list[tuple[str, MixedPrecisionState]]:
    """Returns every outermost :class:`MixedPrecisionState` in a tree, with its path."""
    leaves, _ = tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, MixedPrecisionState))
    return [(keystr(path), leaf) for path, leaf in leaves if isinstance(leaf, MixedPrecisionState)]


def find(state: Any, who: str, *, scaled: bool = False) -> MixedPrecisionState:
    """Returns the one :class:`MixedPrecisionState` in the state of an outer optimizer.

    Args:
        state: the state itself, or the state of ``optax.chain``, ``optax.masked`` and the like.
        who: the method that was called, for the error.
        scaled: whether gradients may overflow because of the loss scale. An optimizer that stores
            them must then be inside the mixed-precision optimizer.

    Raises:
        ArgumentTypeError: there is none.
        ArgumentError: there are several, or it is inside ``optax.MultiSteps``, or a step that
            is not finite would ruin an optimizer outside of it.
    """
    if isinstance(state, MixedPrecisionState):
        return state
    found = states_in(state)
    if not found:
        alone = " alone" if isinstance(state, LossScale) else ""
        raise ArgumentTypeError(
            f"{who}: the state must be that of a mixed-precision optimizer, as its init(params) "
            f"gives; got {kind_of(state)}{alone}. A state of the bare optimizer (from an old "
            "checkpoint, for instance) goes inside: opt.init(params)._replace(inner=state)."
        )
    if len(found) > 1:
        shown = ", ".join(f"state{path}" for path, _ in found)
        raise ArgumentError(
            f"{who}: the state contains {len(found)} loss scales, at {shown}, but one loss can "
            "have only one. Wrap the outermost optimizer once: "
            "enable_mixed_precision_graph_rewrite(optax.multi_transform(...))."
        )
    _refuse_inside_accumulation(state, who)
    scaled = scaled and not isinstance(found[0][1].loss_scale, NoLossScale)
    if scaled and (ruined := _unprotected(state)):
        raise ArgumentError(
            f"{who}: {ruined} is outside of the mixed-precision optimizer, so gradients that "
            "overflow reach it and it does not skip the step. Wrap the outermost optimizer "
            "once: enable_mixed_precision_graph_rewrite(optax.chain(...))."
        )
    return found[0][1]


def _refuse_inside_accumulation(state: Any, who: str) -> None:
    around = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.MultiStepsState))
    if any(isinstance(leaf, optax.MultiStepsState) and states_in(leaf) for leaf in around):
        raise _accumulation_around(who)


def refuse_accumulation_around() -> None:
    """Raises if ``optax.MultiSteps`` calls ``update``, which passes only the inner state."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is optax.MultiSteps.update.__code__:
            raise _accumulation_around("update")
        frame = frame.f_back


def _accumulation_around(who: str) -> ArgumentError:
    return ArgumentError(
        f"{who}: optax.MultiSteps is outside of the mixed-precision optimizer, so one bad "
        "micro-batch makes the whole accumulated sum NaN, and the loss scale is adjusted once in k "
        "steps. Wrap it instead: enable_mixed_precision_graph_rewrite(optax.MultiSteps(tx, k))."
    )


def _unprotected(state: Any) -> str:
    """Names a part of the state that overflowing gradients would ruin; empty if there is none.

    Such a part is another branch of a partition, except ``optax.set_to_zero()``, or an earlier
    part of a chain that has arrays (a momentum).
    """
    if isinstance(state, MixedPrecisionState) or not states_in(state):
        return ""
    if isinstance(state, optax.PartitionState):
        for name, branch in state.inner_states.items():
            frozen = isinstance(getattr(branch, "inner_state", None), optax.EmptyState)
            if not frozen and not states_in(branch):
                return f"the branch {name!r} of multi_transform"
    parts = jax.tree.leaves(state, is_leaf=lambda x: x is not state)
    if isinstance(state, dict) or type(state) is tuple:
        for part in itertools.takewhile(lambda part: not states_in(part), parts):
            if any(jnp.ndim(leaf) and is_inexact(leaf) for leaf in jax.tree.leaves(part)):
                return f"{type(part).__name__}, earlier in the chain,"
    return next(filter(None, map(_unprotected, parts)), "")


def is_concrete(state: MixedPrecisionState) -> bool:
    """Returns True if the numbers of a state can be read now without waiting for a device."""
    return all(
        not isinstance(leaf, Tracer)
        and getattr(leaf, "is_ready", lambda: True)()
        and getattr(leaf, "is_fully_addressable", True)
        # Checks the value too: the value of a fixed scale is a constant, which any trace traces.
        for leaf in jax.tree.leaves((*state[1:], state.loss_scale.value))
    )


def read(state: MixedPrecisionState, who: str) -> Reading:
    """Returns the numbers of a state; waits for the device.

    Args:
        state: outside compiled functions.
        who: the method that was called, for the error.

    Raises:
        ArgumentTypeError: the state is traced, or its arrays are not scalars.
    """
    loss_scale = state.loss_scale
    numbers = (
        loss_scale.value,
        getattr(loss_scale, "good_steps", 0),
        getattr(loss_scale, "skipped", 0),
        state.last_finite,
        state.stuck,
    )
    if any(isinstance(number, Tracer) for number in numbers):
        raise ArgumentTypeError(
            f"{who}: the state is traced (inside jit, grad, vmap or scan), so its numbers are not "
            "known yet. Return the state from the compiled step and call this outside."
        )
    if any(jnp.shape(number) != () for number in numbers):
        raise ArgumentTypeError(
            f"{who}: the state contains one loss scale for each of several models or devices "
            f"(shape {jnp.shape(numbers[0])}). Take one: jax.tree.map(lambda x: x[0], state)."
        )
    with jax.ensure_compile_time_eval():  # the state is concrete even if the call is traced
        smallest = cannot_fall(loss_scale)
    *numbers, smallest = jax.device_get((*numbers, smallest))
    scale, good, skipped, finite, stuck = numbers
    return Reading(float(scale), int(good), int(skipped), bool(finite), int(stuck), bool(smallest))


def check(state: MixedPrecisionState, who: str) -> Reading:
    """Refuses a loss scale that no training produces: NaN, infinite, 0, out of its bounds.

    Args:
        state: outside compiled functions.
        who: the method that was called, for the error.

    Raises:
        ArgumentError: a number is out of range.
        ArgumentTypeError: the state is traced.
    """
    reading = read(state, who)
    floor, cap = MIN_SCALE, MAX_SCALE
    if isinstance(state.loss_scale, DynamicLossScale):
        floor, cap = state.loss_scale.floor, state.loss_scale.cap
    floor, cap = _as_float32(floor), _as_float32(cap)
    if not (math.isfinite(reading.loss_scale) and floor <= reading.loss_scale <= cap):
        raise ArgumentError(
            f"{who}: the loss scale of the state is {reading.loss_scale:g}, but a training keeps "
            f"it from {floor:g} to {cap:g}. The checkpoint is damaged, or was written "
            "by another library. Start with a new loss scale and keep the rest: "
            "state._replace(loss_scale=opt.init(params).loss_scale)."
        )
    for name in ("good_steps", "skipped_steps", "stuck"):
        if getattr(reading, name) < 0:
            raise ArgumentError(
                f"{who}: {name} of the state is {getattr(reading, name)}, but a count is never "
                "below 0. The checkpoint is damaged; start with a new loss scale and keep the "
                "rest: new = opt.init(params); state._replace(loss_scale=new.loss_scale, "
                "stuck=new.stuck)."
            )
    return reading


def _as_float32(number: float) -> float:
    """Rounds a bound to float32, the dtype in which the state stores the scale."""
    return float(np.float32(number)) if number < MAX_SCALE else number
