"""Skipped training steps: restores the state of a model, except random seeds.

The optimizer does not change trainable variables and its own state in a skipped step. This module
restores the rest of the state that ``train_step`` returns:

- *Non-trainable variables* (moving statistics of BatchNormalization, codebooks, counters) keep
  their values: one infinite activation would ruin a running mean permanently. Random seeds advance.
- *Metrics* are updated as Keras does, unless one would become infinite or NaN that is finite in an
  empty metric (a minimum starts at infinity). Then no metric counts this batch. If no batch of the
  epoch has counted yet, the NaN is kept until one does, so an epoch of bad batches shows NaN
  instead of the 0 of an empty mean.

It also fits the first loss scale to the first loss (``DynamicLossScale.fitted_to``), because Keras
does not pass the loss to the optimizer.

The logs of the batch are those of the step, so ``TerminateOnNaN`` sees them.

This runs around the (rewritten) step, inside Keras' ``jit``. A custom ``train_step`` whose state
has another form than Keras' own must restore its own state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import keras

from duotone.adapters.keras_checks import optimizers_of
from duotone.scale import DynamicLossScale, select_tree
from duotone.scale.optimizer_state import MixedPrecisionState


def run_step(
    model: Any, optimizer: Any, step: Callable[..., Any], state: Any, *args: Any, **kwargs: Any
) -> Any:
    """Calls a training step and restores the state if the step is skipped."""
    form = _form(state)
    flags = (i for i, v in enumerate(optimizer.variables) if v is optimizer.last_finite)
    position = next(flags, None)
    expected = (model.non_trainable_variables, optimizer.variables, model.metrics_variables)
    if form is None or position is None or form[1:] != tuple(map(len, expected)):
        optimizer.healer.unseen(f"the state of {model.name!r}'s train_step is not in Keras' form")
        return step(state, *args, **kwargs)
    trainable, others, slots, metrics = state
    empty = _empty_metrics(model, metrics)
    # Resets metrics that have NaN from a skipped step and no counted batch.
    kept = slots[position] | _sound(metrics, empty)
    metrics = select_tree(kept, metrics, empty)
    given = (trainable, others, slots, metrics), *args
    result = step(*given, **kwargs)
    if not isinstance(result, tuple) or len(result) != 2 or _form(result[1]) != form:
        optimizer.healer.unseen(f"{model.name!r}'s train_step returns no state in Keras' form")
        return result
    logs, (new_trainable, new_others, new_slots, new_metrics) = result
    taken, loss = new_slots[position], _loss(logs)
    with keras.StatelessScope(list(zip(optimizer.variables, slots, strict=True))):
        before = optimizer.state()
    if optimizer.half is not None:
        optimizer.healer.attend(step, given, kwargs, loss, taken, before)
    if loss is not None:
        new_slots = _fitted(optimizer, before, new_slots, loss, taken)
    keep = _restored(model)
    new_others = [
        select_tree(taken, new, old) if restored else new
        for new, old, restored in zip(new_others, others, keep, strict=True)
    ]
    uncounted = _all(_equal(a, b) for a, b in zip(metrics, empty, strict=True))
    counts = taken | _sound(new_metrics, empty) | uncounted
    return logs, (new_trainable, new_others, new_slots, select_tree(counts, new_metrics, metrics))


def _fitted(
    optimizer: Any, before: MixedPrecisionState, new_slots: list[Any], loss: Any, taken: Any
) -> list[Any]:
    """Returns the optimizer's variables after a step; a large loss lowers the first scale."""
    loss_scale = before.loss_scale
    if not isinstance(loss_scale, DynamicLossScale):
        return new_slots
    fitted = loss_scale.fitted_to(loss, taken, before.last_finite)
    slot = next(i for i, v in enumerate(optimizer.variables) if v is optimizer.dynamic_scale)
    lowered = fitted.value < loss_scale.value
    value = select_tree(lowered, fitted.adjust(taken).value, new_slots[slot])
    return [*new_slots[:slot], value, *new_slots[slot + 1 :]]


def _loss(logs: Any) -> Any:
    """Returns the loss in the logs of a step, if there is one."""
    loss = logs.get("loss") if isinstance(logs, dict) else None
    return None if loss is None or jnp.ndim(loss) != 0 else loss


def _form(state: Any) -> tuple[int, ...] | None:
    """Returns the lengths of the lists of Keras' training state; ``None`` if not four lists."""
    if isinstance(state, tuple) and len(state) == 4 and all(isinstance(s, list) for s in state):
        return tuple(len(part) for part in state)
    return None


def _restored(model: Any) -> list[bool]:
    """Returns, for each non-trainable variable, whether a skipped step restores it."""
    # Other optimizers in the model (of a custom step) restore their own variables.
    of_optimizers = {id(v) for optimizer in optimizers_of(model) for v in optimizer.variables}
    return [
        variable.name != "seed_generator_state" and id(variable) not in of_optimizers
        for variable in model.non_trainable_variables
    ]


def _empty_metrics(model: Any, metrics: list[Any]) -> list[Any]:
    """Returns the state of the metrics before the first batch of an epoch."""
    variables = model.metrics_variables
    with keras.StatelessScope(state_mapping=list(zip(variables, metrics, strict=True))) as scope:
        for metric in model.metrics:
            metric.reset_state()
    return [jnp.asarray(scope.get_current_value(variable)) for variable in variables]


def _sound(metrics: list[Any], empty: list[Any]) -> Any:
    """Checks if every metric is finite, or equals an empty one: a minimum starts at infinity."""
    return _all(
        jnp.isfinite(a) | _equal(a, b)
        for a, b in zip(metrics, empty, strict=True)
        if jnp.issubdtype(jnp.result_type(a), jnp.inexact)
    )


def _equal(a: Any, b: Any) -> Any:
    return (a == b) | ((a != a) & (b != b))  # NaN equals NaN


def _all(flags: Iterable[Any]) -> Any:
    return functools.reduce(jnp.logical_and, map(jnp.all, flags), jnp.asarray(True))
