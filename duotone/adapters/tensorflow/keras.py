"""Keras optimizers on TensorFlow: a ``keras.optimizers.LossScaleOptimizer`` of duotone.

It scales the loss before Keras differentiates it, divides the gradients in float32, and changes
nothing if they are not finite on one of the replicas. Creating one in any way (the constructor,
``from_config``, ``load_model``) switches the rewrite of this process on.

Its config and variables are those of the optimizer on JAX, so that a saved model can be loaded on
either backend.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import keras

from duotone.adapters.keras_checks import check_global_policy, check_optimizer, inner_optimizer_of
from duotone.adapters.keras_inner import InnerSettings
from duotone.adapters.tensorflow import fitting, statistics
from duotone.adapters.tensorflow.alarm import TensorFlowAlarm
from duotone.adapters.tensorflow.replicas import agreed, take_or_skip
from duotone.adapters.tensorflow.scaling import (
    State,
    all_finite,
    float32_scope,
    in_use,
    metrics_of,
    scale,
    tf,
    unscale,
)
from duotone.adapters.tensorflow.settings import WrapSettings
from duotone.errors import ArgumentError
from duotone.text.scale_log import Reading


class _Losses(threading.local):
    """The last loss that each optimizer scaled in this thread: a replica is a thread."""

    def __init__(self) -> None:
        self.of: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


_losses = _Losses()


@keras.saving.register_keras_serializable(package="duotone")
class LossScaleOptimizer(InnerSettings, keras.optimizers.LossScaleOptimizer):
    """A Keras optimizer for training in mixed precision on TensorFlow.

    ``duotone.enable_mixed_precision_graph_rewrite`` makes it.

    Args:
        inner_optimizer: any Keras optimizer. Set clipping, weight decay, moving averages,
            accumulation and schedules on it; they get unscaled gradients of taken steps.
        loss_scale: ``"dynamic"``, a number, a loss-scale object or None.
        dtype: the half type, or None for the one that is fast on the devices of this machine.
        policy: which operations may be painted.
        rewrite: whether graphs are rewritten; else it only scales the loss.
        name: the name of the optimizer.

    Raises:
        ArgumentTypeError, ArgumentError: an argument that cannot be used.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        loss_scale: Any = "dynamic",
        *,
        dtype: Any = None,
        policy: Any = None,
        rewrite: bool = True,
        name: str | None = None,
    ) -> None:
        check_optimizer(inner_optimizer)
        settings = WrapSettings.of(loss_scale, dtype, policy, rewrite)
        settings.switch_on()
        super().__init__(inner_optimizer, name=name)
        self._settings = settings
        self._scaled = False
        self.alarm = TensorFlowAlarm()
        # A loss may be scaled before `build`: its graph must read a variable, not a number.
        self.step_counter = self._scalar("step_counter", "int32", 0)
        self.dynamic_scale = self._scalar("dynamic_scale", "float32", settings.initial)
        self.skipped = self._scalar("skipped", "int32", 0)
        self.last_finite = self._scalar("last_finite", "bool", True)
        self.stuck = self._scalar("stuck", "int32", 0)
        fitting.install()

    def _scalar(self, name: str, dtype: str, value: Any) -> Any:
        initial: Any = keras.initializers.Constant(value)
        return self.add_variable((), initial, dtype, "only_first_replica", name=name)

    @property
    def half(self) -> str | None:
        """``"float16"``, ``"bfloat16"``, or None if graphs are not rewritten."""
        return self._settings.half

    def build(self, var_list: Sequence[Any]) -> None:
        """Creates the variables of the inner optimizer, if it has none."""
        self._settings.warn_of_dtypes(var_list)
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(var_list)
        # Skips the `build` of Keras' LossScaleOptimizer, which would create its own variables.
        super(keras.optimizers.LossScaleOptimizer, self).build(var_list)

    def metrics(self) -> dict[str, Any]:
        """Returns the state of the loss scale.

        Returns:
            ``loss_scale`` (1 if nothing is scaled), ``good_steps``, ``skipped_steps``,
            ``last_finite`` (numbers; tensors inside of a ``tf.function``), and ``dtype``: the half
            type, or ``"float32"`` if graphs are not rewritten.
        """
        return {**metrics_of(self._settings.rule, self._state()), "dtype": self.half or "float32"}

    def reading(self) -> Reading:
        """Returns the numbers of the loss scale; eager code only."""
        rule, numbers = self._settings.rule, metrics_of(self._settings.rule, self._state())
        stuck = self.stuck.numpy().item()
        return Reading(**numbers, stuck=stuck, smallest=numbers["loss_scale"] <= rule.floor)

    @property
    def steps(self) -> int:
        """The number of steps so far, taken or skipped; eager code only."""
        return int(self.iterations) + self.reading().skipped_steps

    def warn(self) -> None:
        """Logs the number of skipped steps if it has grown much, and a scale that is stuck."""
        reading = self.reading()
        scales = self._settings.rule.scales
        self.alarm.count(reading.skipped_steps, reading.loss_scale if scales else None)
        self.alarm.check(reading)

    def _state(self) -> State:
        """Returns the variables of the loss scale."""
        ours = (self.dynamic_scale, self.step_counter, self.skipped, self.last_finite, self.stuck)
        return State(*(variable.value for variable in ours))

    def _value(self) -> Any:
        """Returns the scale that multiplies the loss."""
        return in_use(self._settings.rule, self._state()).value

    # One step.

    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale, in float32; differentiate the result.

        Args:
            loss: a floating scalar.
        """
        self._scaled = True
        if not self._settings.rule.scales:
            return loss
        _losses.of[self] = loss
        return scale(loss, self._value())

    def guard(self, model: Any) -> AbstractContextManager[None]:
        """Returns a context in which a skipped step also restores what the model has moved.

        ``fit`` does this for each step. In a loop of your own, call the model and :meth:`apply` in
        this context; else the moving statistics of BatchNormalization keep those of the skipped
        batch.

        Args:
            model: a Keras model or layer.
        """
        return statistics.guard(model.non_trainable_variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Takes a step with gradients of the scaled loss, or skips it if one is not finite.

        Args:
            grads: gradients of the loss that :meth:`scale_loss` returned; None for no gradient.
            trainable_variables: the variables, in the same order; all if omitted.

        Raises:
            ArgumentError: :meth:`scale_loss` was never called, or the step is outside of the
                replicas of a strategy.
        """
        grads, variables = list(grads), self._variables_of(trainable_variables)
        rule = self._settings.rule
        if rule.scales and not self._scaled:
            raise ArgumentError(
                f"optimizer {self.name!r}: the loss was not scaled before it was differentiated. "
                "The optimizer would divide these gradients by the loss scale, and the model would "
                "not train. Scale it under the tape: loss = optimizer.scale_loss(loss). To train "
                "without loss scaling, wrap the optimizer with loss_scale=None (duotone run: "
                "--loss-scale none)."
            )
        loss = self._loss()
        if not self._settings.guards:
            self._update(grads, variables)
            return
        value = self._value()
        grads = [
            # This is not a gradient: Keras stores it as the variable's new value (float8 scales).
            g if self._overwrite_variable_with_gradient(v) else unscale(g, value)
            for g, v in zip(grads, variables, strict=True)
        ]
        finite, loss = agreed(all_finite(grads), loss)
        statistics.report(finite, self.last_finite.value)
        take_or_skip(rule, self._state(), finite, loss, self._update, (grads, variables))

    def _variables_of(self, given: Any) -> list[Any]:
        if given is None and not self.built:
            raise ArgumentError(
                f"optimizer {self.name!r}: apply needs the variables in its first call: "
                "optimizer.apply(gradients, model.trainable_variables)."
            )
        variables = list(self._trainable_variables if given is None else given)
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        return variables

    def _loss(self) -> Any:
        """Returns the loss of this step; None if it was scaled in another graph."""
        loss = _losses.of.pop(self, None)
        if loss is None or not statistics.is_here(loss) or loss.shape.rank != 0:
            return None
        with float32_scope():
            return tf.cast(loss, tf.float32)

    def _update(self, grads: Any, variables: Any) -> None:
        with float32_scope():
            self.inner_optimizer.apply(grads, variables)

    # These save and load.

    def get_config(self) -> dict[str, Any]:
        """Returns plain data from which :meth:`from_config` makes an equal optimizer."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"name": self.name, "inner_optimizer": inner, **self._settings.data()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Returns the optimizer of a config."""
        inner, rest = inner_optimizer_of(config, custom_objects)
        return cls(inner, **rest)


def enable(
    optimizer: Any, loss_scale: Any, *, dtype: Any, policy: Any, rewrite: bool
) -> LossScaleOptimizer:
    """Wraps a Keras optimizer, and switches the rewrite of this process on."""
    check_global_policy()
    return LossScaleOptimizer(optimizer, loss_scale, dtype=dtype, policy=policy, rewrite=rewrite)
