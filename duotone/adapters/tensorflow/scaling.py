"""Scaling: the arithmetic of a loss scale in TensorFlow.

All operations are in the name scope that the rewrite keeps float32. The functions take and return
tensors; ``replicas`` writes the variables. The rules are those of :mod:`duotone.scale.state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from duotone.adapters.tensorflow.rule import ScaleRule
from duotone.measuring.libraries import library
from duotone.policy.scales import ORDINARY_LOSS
from duotone.tensorflow.live.switch import FLOAT32_SCOPE

tf: Any = library("tensorflow", "mixed precision of TensorFlow optimizers", "tensorflow")


class State(NamedTuple):
    """The state of a loss scale: five variables or their values.

    Attributes:
        value: the scale, ``float32[]``.
        good_steps: finite steps since it last changed or a step was skipped, ``int32[]``.
        skipped: the total number of skipped steps, ``int32[]``.
        last_finite: whether the last step was taken, ``bool[]``.
        stuck: consecutive skipped steps after which the scale did not fall, ``int32[]``.
    """

    value: Any
    good_steps: Any
    skipped: Any
    last_finite: Any
    stuck: Any

    def read(self) -> State:
        """Returns the values of the variables."""
        return State(*map(tf.convert_to_tensor, self))

    def assign(self, values: State, *, without_value: bool) -> list[Any]:
        """Assigns values to the variables, or to all but the scale; returns the operations."""
        pairs = list(zip(self, values, strict=True))[without_value:]
        return [variable.assign(value) for variable, value in pairs]


def in_use(rule: ScaleRule, state: State) -> State:
    """Returns the values of a state, with the scale that multiplies losses.

    A fixed scale is that of the rule: the variable may come from the checkpoint of another one.
    """
    values = state.read()
    if not rule.is_fixed:
        return values
    with float32_scope():
        return values._replace(value=tf.constant(rule.initial, tf.float32))


def metrics_of(rule: ScaleRule, state: State) -> dict[str, Any]:
    """Returns the state by the names of ``metrics()``: numbers, or tensors in a graph."""
    values = in_use(rule, state)
    if tf.executing_eagerly():
        values = State(*(value.numpy().item() for value in values))
    return {
        "loss_scale": values.value,
        "good_steps": values.good_steps,
        "skipped_steps": values.skipped,
        "last_finite": values.last_finite,
    }


def float32_scope() -> Any:
    """Returns the name scope whose operations stay float32."""
    return tf.name_scope(FLOAT32_SCOPE)


def in_float32_scope() -> bool:
    """Returns True in :func:`float32_scope`."""
    return FLOAT32_SCOPE in tf.get_current_name_scope()


def scale(loss: Any, value: Any) -> Any:
    """Returns a loss times the scale; a half loss becomes float32."""
    with float32_scope():
        loss = _in_full(tf.convert_to_tensor(loss))
        return loss * tf.cast(value, loss.dtype)


def unscale(gradient: Any, value: Any) -> Any:
    """Returns a gradient divided by the scale; half becomes float32, None stays None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = unscale(gradient.values, value)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    with float32_scope():
        gradient = _in_full(gradient)
        return gradient / tf.cast(value, gradient.dtype)


def _in_full(tensor: Any) -> Any:
    half = tensor.dtype in (tf.float16, tf.bfloat16)
    return tf.cast(tensor, tf.float32) if half else tensor


def all_finite(gradients: Sequence[Any]) -> Any:
    """Returns True if no gradient has an infinity or NaN, ``bool[]``."""
    with float32_scope():
        tensors = [getattr(gradient, "values", gradient) for gradient in gradients]
        checks = [
            tf.reduce_all(tf.math.is_finite(tensor))
            for tensor in tensors
            if tensor is not None and (tensor.dtype.is_floating or tensor.dtype.is_complex)
        ]
        return tf.reduce_all(tf.stack(checks)) if checks else tf.constant(True)


def advance(rule: ScaleRule, state: State, finite: Any, loss: Any = None) -> State:
    """Returns the state after a step.

    Args:
        rule: how the scale changes.
        state: the values before the step.
        finite: ``bool[]``, whether the gradients were finite.
        loss: the loss of the step, ``float32[]``, unscaled; None if it is unknown.
    """
    with float32_scope():
        value = state.value if loss is None else _fitted(rule, state, finite, loss)
        good = tf.where(finite, state.good_steps + 1, 0)
        grows = good >= rule.growth_interval
        value = tf.where(finite, value, value / rule.factor)
        value = tf.where(grows, value * rule.factor, value)
        value = tf.where(value >= rule.floor, value, rule.floor)  # also replaces NaN
        value = tf.minimum(value, rule.cap)
        skipped = state.skipped + tf.cast(tf.logical_not(finite), tf.int32)
        unmoved = tf.cast(tf.logical_not(value < state.value), tf.int32)
        stuck = tf.where(finite, 0, state.stuck + unmoved)
        return State(value, tf.where(grows, 0, good), skipped, finite, stuck)


def _fitted(rule: ScaleRule, state: State, finite: Any, loss: Any) -> Any:
    """Returns the scale before it is halved: a large loss lowers it in the first two steps."""
    size = tf.abs(loss) / ORDINARY_LOSS
    bits = tf.bitcast(size, tf.int32)
    mantissa, exponent = bits % 2**23, bits // 2**23  # exact powers of two, unlike a logarithm
    above = tf.maximum(exponent - 127 + tf.cast(mantissa > 0, tf.int32), 0)
    # In a graph of TensorFlow 1, `==` compares objects.
    unused = tf.equal(state.good_steps, 0) & tf.equal(state.skipped, 0)
    first = unused & tf.equal(state.value, rule.initial)
    second = tf.equal(state.skipped, 1) & tf.logical_not(state.last_finite)
    lowered_exponent = 15 - tf.where(first, (above + 1) // 2, above)
    lowered = tf.bitcast((lowered_exponent + 127) * 2**23, tf.float32) * rule.factor
    large = tf.math.is_finite(size) & (above > 0)
    fits = (first | second) & tf.logical_not(finite) & large
    return tf.where(fits, tf.minimum(state.value, lowered), state.value)
