"""Replicas: a step that all replicas of a distribution strategy take, or none.

::

    each replica     its gradients are finite?  its loss
    all workers      AND, sum              (one collective, if there are several)
    across replicas  AND, sum;  if finite: each replica updates;  new loss scale

A strategy allows no branch with a collective inside of a replica, so the branch is across them.
Without a strategy there is one replica, and the same code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duotone.adapters.tensorflow.rule import ScaleRule
from duotone.adapters.tensorflow.scaling import State, advance, float32_scope, in_use, tf
from duotone.errors import ArgumentError


def agreed(finite: Any, loss: Any = None) -> tuple[Any, Any]:
    """Returns whether the gradients of a replica are finite on every worker, and its loss.

    Replicas of one process agree in :func:`take_or_skip`, replicas of several workers here.

    Args:
        finite: ``bool[]``, of this replica.
        loss: ``float32[]``, of this replica; None if it is unknown.

    Raises:
        ArgumentError: the step is outside of ``strategy.run``.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise ArgumentError(
            "a step of a wrapped optimizer ran in the scope of a distribution strategy, outside of "
            "its replicas. Call strategy.run(step, args=...) with the function that applies the "
            "gradients."
        )
    here = _merged_replicas()
    if context.num_replicas_in_sync == here:
        return finite, loss
    with float32_scope():
        bad = tf.cast(tf.logical_not(finite), tf.float32)
        own = tf.stack([bad, bad if loss is None else loss])
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
        return tf.equal(total[0], 0.0), None if loss is None else total[1] / here


def _merged_replicas() -> int:
    """Returns the number of replicas whose values :func:`across` sees."""
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        return 1
    return len(tf.distribute.get_strategy().extended.worker_devices)


def across(function: Callable[..., Any], *args: Any) -> Any:
    """Calls ``function(strategy, *args)`` once for all replicas."""
    merge = tf.__internal__.distribute.interim.maybe_merge_call
    return merge(function, tf.distribute.get_strategy(), *args)


def all_of(strategy: Any, finite: Any) -> Any:
    """Returns True if the values of all replicas that :func:`across` sees are true."""
    return tf.reduce_all(tf.stack(strategy.experimental_local_results(finite)))


def take_or_skip(
    rule: ScaleRule,
    state: State,
    finite: Any,
    loss: Any,
    update: Callable[..., Any],
    args: Sequence[Any],
) -> Any:
    """Updates in all replicas if the gradients are finite; then adjusts the loss scale.

    Args:
        rule: how the loss scale changes.
        state: its variables.
        finite: ``bool[]``, as :func:`agreed` gives it.
        loss: the loss of all replicas, or None.
        update: takes a step with ``args``, in each replica.
        args: the gradients and variables of this replica.

    Returns:
        One operation that does all this.
    """

    def decide(strategy: Any, finite: Any, loss: Any, *args: Any) -> Any:
        with float32_scope():
            taken = all_of(strategy, finite)
            if loss is not None:
                loss = tf.add_n(strategy.experimental_local_results(loss))
            after = advance(rule, in_use(rule, state), taken, loss)
            updated = _if(taken, lambda: _each(strategy, update, args))
            stored = state.assign(after, without_value=rule.is_fixed)
            return tf.group(updated, *stored)

    return across(decide, finite, loss, *args)


def _if(condition: Any, then: Callable[[], Any]) -> Any:
    """Runs ``then`` if the condition is true; returns an operation in a graph."""

    def run() -> Any:
        operation = then()
        with tf.control_dependencies(() if operation is None else (operation,)):
            return tf.no_op()

    return tf.cond(condition, run, tf.no_op)


def _each(strategy: Any, update: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Calls a function in each replica; returns an operation if the function does."""
    if not tf.distribute.in_cross_replica_context():  # compiled by XLA, a replica branches itself
        return update(*args)
    made = strategy.extended.call_for_each_replica(update, args=tuple(args))
    return None if made is None else strategy.group(made)
