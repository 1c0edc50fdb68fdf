"""Statistics: the moving averages of a model, which the forward pass of a skipped step has moved.

Keras updates them before an optimizer can know that the gradients overflow. So a guard reads all
variables that are not trained before the step, and writes them back if the step is skipped. In a
good step this copies nothing. Random seeds advance in a skipped step too.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from duotone.adapters.tensorflow.replicas import across, all_of
from duotone.adapters.tensorflow.scaling import float32_scope, tf

_SEED = "seed_generator_state"


class _Guards(threading.local):
    """The guards around the step that this thread runs; each is a list of answers."""

    def __init__(self) -> None:
        self.answers: list[list[Any]] = []


_guards = _Guards()


def report(finite: Any, last_finite: Any) -> None:
    """Tells the guards around a step whether it is taken.

    Args:
        finite: ``bool[]``, whether the gradients are finite.
        last_finite: the variable with the same answer, for a step inside of a branch or a loop.
    """
    for answers in _guards.answers:
        answers.append((finite, last_finite))


@contextlib.contextmanager
def guard(variables: Sequence[Any]) -> Iterator[None]:
    """Restores variables if an optimizer skips a step in this context.

    Args:
        variables: Keras variables or ``tf.Variable``; seeds are left alone.
    """
    kept = [_of_tensorflow(v) for v in variables if getattr(v, "name", "") != _SEED]
    with float32_scope():
        before = [tf.convert_to_tensor(v) for v in kept]
    answers: list[Any] = []
    _guards.answers.append(answers)
    try:
        yield
    finally:
        _guards.answers.remove(answers)
    if answers and kept:
        restore(list(zip(kept, before, strict=True)), _all_taken(answers))


def _of_tensorflow(variable: Any) -> Any:
    """Returns the TensorFlow variable of a Keras variable."""
    value = getattr(variable, "value", None)
    return variable if callable(value) else value


def _all_taken(answers: list[Any]) -> Any:
    found = [
        finite if is_here(finite) else tf.convert_to_tensor(variable)
        for finite, variable in answers
    ]
    with float32_scope():
        return functools.reduce(tf.logical_and, found)


def is_here(tensor: Any) -> bool:
    """Returns True if a tensor is in the graph of the caller, or both are eager."""
    here = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    try:
        return tensor.graph is here
    except AttributeError:  # an eager tensor
        return here is None


def restore(moved: Sequence[tuple[Any, Any]], taken: Any) -> Any:
    """Writes earlier values into variables unless the step was taken, in all replicas.

    Args:
        moved: pairs of a TensorFlow variable and its value before the step.
        taken: ``bool[]``, of this replica.

    Returns:
        The operation, in a graph.
    """

    def decide(strategy: Any, taken: Any, variables: list[Any], before: list[Any]) -> Any:
        def write() -> Any:
            update = strategy.extended.update
            pairs = zip(variables, before, strict=True)
            return tf.group(*(update(v, lambda v, x: v.assign(x), args=(x,)) for v, x in pairs))

        with float32_scope():
            return tf.cond(all_of(strategy, taken), tf.no_op, write)

    variables, before = ([pair[i] for pair in moved] for i in (0, 1))
    return across(decide, taken, variables, before)
