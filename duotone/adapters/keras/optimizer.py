"""The wrapped optimizer: a ``keras.optimizers.LossScaleOptimizer`` with duotone's loss scale.

It wraps another Keras optimizer, scales the loss before Keras differentiates it, unscales the
gradients in float32, and changes nothing if they are not finite. Creating one in any way (the
constructor, ``from_config``, ``load_model``, unpickling) installs the hooks that rewrite the
steps of models compiled with it (``hooks``).

The state is in Keras variables, which are the same for every loss scale and every half type,
so that checkpoints are portable between devices:

====================  =======  =================================================================
``dynamic_scale``     float32  the scale; unused and constant if nothing is scaled
``step_counter``      int32    finite steps since it last changed or a step was skipped
``skipped``           int32    the total number of skipped steps
``last_finite``       bool     whether the last step was taken
``stuck``             int32    consecutive skipped steps with the scale at its floor
====================  =======  =================================================================

:mod:`duotone.scale` has the rules to adjust, unscale and check.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from duotone._checks import check_switch
from duotone.adapters import keras_checks
from duotone.adapters.keras import hooks, scaled, settings, steps
from duotone.adapters.keras.plans import WrappedBase
from duotone.adapters.keras_inner import InnerSettings
from duotone.blaming.healing import Healer
from duotone.errors import ArgumentError
from duotone.policy.plain_data import policy_data
from duotone.policy.policy import Policy
from duotone.policy.scales import MAX_SCALE, MIN_SCALE
from duotone.scale import DynamicLossScale, NoLossScale, all_finite, select_tree
from duotone.scale.optimizer_state import MixedPrecisionState, advance, begin, check, read
from duotone.text.scale_log import Reading, StuckAlarm
from duotone.transforms.mixed_function import rewrote_anything

logger = logging.getLogger("duotone")


@keras.saving.register_keras_serializable(package="duotone")
class LossScaleOptimizer(WrappedBase, InnerSettings, keras.optimizers.LossScaleOptimizer):
    """A Keras optimizer whose models train, evaluate and predict in mixed precision.

    :func:`enable` and ``duotone.enable_mixed_precision_graph_rewrite`` make it.

    Args:
        inner_optimizer: any Keras optimizer. Set clipping, weight decay, moving averages,
            accumulation and schedules on it; they get unscaled gradients of taken steps.
        loss_scale: as for :func:`enable`.
        dtype: as for :func:`enable`.
        policy: as for :func:`enable`.
        rewrite: whether models compiled with it are rewritten; else it only scales the loss.
        name: the name of the optimizer.

    Raises:
        ArgumentTypeError, ArgumentError: as for :func:`enable`.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        loss_scale: Any = "dynamic",
        *,
        dtype: Any = None,
        policy: Policy | None = None,
        rewrite: bool = True,
        name: str | None = None,
    ) -> None:
        keras_checks.check_backend()
        keras_checks.check_optimizer(inner_optimizer)
        check_switch("LossScaleOptimizer", "rewrite", rewrite)
        chosen = settings.check_loss_scale(loss_scale)
        half = settings.check_dtype(dtype)
        policy = settings.check_policy(policy)
        state = chosen if chosen is not None else DynamicLossScale()
        interval = state.growth_interval if isinstance(state, DynamicLossScale) else 2**31 - 1
        super().__init__(
            inner_optimizer,
            initial_scale=float(state.value),
            dynamic_growth_steps=interval,
            name=name,
        )
        self._chosen = chosen
        self._dtype = half
        self._policy = policy
        self._rewrite = rewrite
        self._half: tuple[str | None] | None = None
        self.healer = Healer(lambda: self._policy, self._repaint)
        self.alarm = StuckAlarm(ask=lambda: self.healer.ask(self.half))
        self._mark = scaled.Mark()
        self._warned = False
        hooks.install()

    # These are the settings of the rewrite.

    @property
    def policy(self) -> Policy | None:
        """The user's policy, with healed operations added."""
        return self._policy

    @property
    def pins(self) -> tuple[str, ...]:
        """Patterns of the operations kept full: the policy's ``keep_full`` and healed ones."""
        return () if self._policy is None else self._policy.keep_full

    def _repaint(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def half(self) -> str | None:
        """``"float16"``, ``"bfloat16"``, or ``None`` if programs are not rewritten."""
        if not self._rewrite:
            return None
        if self._half is None:
            what = f"models compiled with {self.inner_optimizer.name!r}"
            self._half = (settings.half_of(self._dtype, self._policy, what),)
        return self._half[0]

    @property
    def asks_device(self) -> bool:
        """True if the half type is the device's choice, not the user's."""
        return self._dtype is None

    # State.

    def build(self, var_list: Sequence[Any]) -> None:
        """Creates the variables of the loss scale, and of the inner optimizer if it has none."""
        state = settings.loss_scale_of(self._chosen, "float16")
        self.step_counter = self._scalar("step_counter", "int", getattr(state, "good_steps", 0))
        self.dynamic_scale = self._scalar("dynamic_scale", "float32", state.value)
        self.skipped = self._scalar("skipped", "int", getattr(state, "skipped", 0))
        self.last_finite = self._scalar("last_finite", "bool", True)
        self.stuck = self._scalar("stuck", "int", 0)
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(var_list)
        # Skips the `build` of Keras' LossScaleOptimizer, which would create its own variables.
        super(keras.optimizers.LossScaleOptimizer, self).build(var_list)

    def _scalar(self, name: str, dtype: str, value: Any) -> Any:
        initial: Any = keras.initializers.Constant(np.asarray(value).item())
        return self.add_variable((), initial, dtype, name=name)

    def state(self) -> MixedPrecisionState:
        """Returns the loss scale with the variables' current values, also in a stateless scope.

        Returns:
            The same state that wrapped Optax optimizers carry, with ``inner`` None.
        """
        loss_scale = settings.loss_scale_of(self._chosen, self.half)
        if not self.built:
            return begin(None, loss_scale)
        state = {
            "value": self.dynamic_scale,
            "good_steps": self.step_counter,
            "skipped": self.skipped,
        }
        fields = {field.name for field in dataclasses.fields(loss_scale)}
        loss_scale = dataclasses.replace(
            loss_scale, **{n: v.value for n, v in state.items() if n in fields}
        )
        return MixedPrecisionState(None, loss_scale, self.last_finite.value, self.stuck.value)

    def mixed_precision_state(self) -> MixedPrecisionState:
        """Returns :meth:`state`, under the name that a ``LossScaleMonitor`` calls."""
        return self.state()

    def reading(self) -> Reading:
        """Returns the numbers of the loss scale, for ``LossScaleCallback``.

        Raises:
            ArgumentError: a number is out of its range.
        """
        return check(self.state(), "LossScaleCallback")

    def metrics(self) -> dict[str, float | int | bool | str]:
        """Returns the state of the loss scale as Python numbers.

        Warns once (logger ``"duotone"``) if many consecutive steps were skipped at the smallest
        scale.

        Returns:
            ``loss_scale`` (the one in use: 1 if nothing is scaled), ``good_steps``,
            ``skipped_steps``, ``last_finite``, and ``dtype``: the half type, or ``"float32"`` if
            models are not rewritten.
        """
        reading = read(self.state(), "metrics")
        self.alarm.check(reading)
        return {**reading.metrics(), "dtype": self.half or "float32"}

    def scale_in_use(self, value: Any) -> float | None:
        """Returns the loss scale; None if nothing is scaled.

        Args:
            value: the value of a dynamic loss scale; others do not read it.
        """
        loss_scale = settings.loss_scale_of(self._chosen, self.half)
        if isinstance(loss_scale, NoLossScale):
            return None
        return float(value if isinstance(loss_scale, DynamicLossScale) else loss_scale.value)

    @property
    def steps(self) -> int:
        """The number of steps so far, taken or skipped; with accumulation, of batches."""
        return (
            int(self.inner_optimizer.variables[0].value) + read(self.state(), "steps").skipped_steps
        )

    # One step.

    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale, in float32; differentiate the result.

        In your own ``train_step`` or compiled loop, call it in a ``keras.StatelessScope`` that maps
        the optimizer's variables to their values in this step, as Keras' own step does.

        Args:
            loss: a floating scalar.

        Raises:
            ArgumentError: the scale is not part of the state of the step.
        """
        loss_scale = settings.loss_scale_of(self._chosen, self.half)
        if self.built and isinstance(loss_scale, DynamicLossScale):
            value = scaled.value_of_step(self.name, self.dynamic_scale)
            loss_scale = dataclasses.replace(loss_scale, value=value)
        return scaled.marked(self._mark, loss_scale.scale(loss))

    def stateless_apply(  # pyright: ignore[reportIncompatibleMethodOverride]  (Keras 3.10)
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> tuple[list[Any], list[Any]]:
        """Performs one step on arrays; see :meth:`apply`."""
        # Keras' general form calls ``apply`` in a stateless scope.
        general = super(keras.optimizers.LossScaleOptimizer, self).stateless_apply
        return general(optimizer_variables, grads, trainable_variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Takes a step with scaled gradients, or skips it if one of them is not finite.

        Args:
            grads: gradients of the scaled loss, one for each variable; None for no gradient.
            trainable_variables: Keras variables that the optimizer was built with; all if omitted.

        Raises:
            ArgumentError: the gradients are not those of a loss that :meth:`scale_loss` scaled.
        """
        variables = (
            self._trainable_variables if trainable_variables is None else [*trainable_variables]
        )
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        self._warn_of_float32()
        loss_scale = self.state()
        if variables:
            scaled.check_scaled(self.name, loss_scale.loss_scale, self._mark)
        unscaled = [
            # This is not a gradient: Keras stores it as the variable's new value (float8 scales).
            grad
            if self._overwrite_variable_with_gradient(variable)
            else loss_scale.loss_scale.unscale(grad)
            for grad, variable in zip(grads, variables, strict=True)
        ]
        finite = all_finite(unscaled)
        state = [*self.inner_optimizer.variables, *self._trainable_variables]
        before = [variable.value for variable in state]
        with keras.StatelessScope(state_mapping=list(zip(state, before, strict=True))) as scope:
            self.inner_optimizer.apply(unscaled, trainable_variables)
        after = [scope.get_current_value(variable) for variable in state]
        for variable, value in zip(state, select_tree(finite, after, before), strict=True):
            variable.assign(value)
        self._set(advance(loss_scale, None, finite))

    def _warn_of_float32(self) -> None:
        """Warns once of gradients in a loop of the user's own, if duotone rewrote nothing yet."""
        if self._warned or steps.is_running() or rewrote_anything() or self.half is None:
            return
        self._warned = True
        logger.warning(
            "optimizer %r: these gradients come from a function that duotone did not rewrite, so "
            "this loop trains in float32. duotone rewrites the steps of fit; in a loop of your "
            "own, differentiate duotone.autocast(loss_fn) in place of loss_fn.",
            self.name,
        )

    def _set(self, state: MixedPrecisionState) -> None:
        """Assigns the state after a step to the variables."""
        loss_scale: Any = state.loss_scale
        self.last_finite.assign(state.last_finite)
        self.stuck.assign(state.stuck)
        self.skipped.assign(loss_scale.skipped)
        self.step_counter.assign(loss_scale.good_steps)
        if isinstance(loss_scale, DynamicLossScale):
            self.dynamic_scale.assign(loss_scale.value)

    # These save and load.

    def load_own_variables(self, store: Any) -> None:
        """Loads the state, and refuses an invalid scale.

        Raises:
            ArgumentError: the saved scale is NaN, infinite, 0 or below the floor.
        """
        if self.built and len(store.keys()) == len(self.variables):
            position = next(i for i, v in enumerate(self.variables) if v is self.dynamic_scale)
            saved, own = store[str(position)], self._chosen or DynamicLossScale()
            smallest = own.floor if isinstance(own, DynamicLossScale) else MIN_SCALE
            if saved.shape == () and not smallest <= float(saved[()]) <= MAX_SCALE:
                raise ArgumentError(
                    f"the checkpoint of optimizer {self.name!r} has the loss scale "
                    f"{float(saved[()])!r}, which must be finite and at least {smallest:g}: "
                    "it was damaged, or written by an optimizer without a floor. Load the model "
                    "with compile=False and compile it again with a new optimizer."
                )
        super().load_own_variables(store)
        if self.built and not isinstance(self._chosen, DynamicLossScale | None):
            self.dynamic_scale.assign(self._chosen.value)

    def get_config(self) -> dict[str, Any]:
        """Returns plain data from which :meth:`from_config` makes an equal optimizer."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "loss_scale": settings.loss_scale_data(self._chosen),
            "dtype": self._dtype,
            "policy": policy_data(self._policy),
            "rewrite": self._rewrite,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Returns the optimizer of a config."""
        inner, rest = keras_checks.inner_optimizer_of(config, custom_objects)
        return cls(inner, **rest)


def enable(
    optimizer: Any,
    loss_scale: Any = "dynamic",
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    rewrite: bool = True,
) -> LossScaleOptimizer:
    """Wraps a Keras optimizer, so that models compiled with it run in mixed precision.

    ``fit``, ``evaluate``, ``predict`` and their ``…_on_batch`` forms are rewritten inside the
    functions that Keras compiles. Other models do not change.

    Args:
        optimizer: a Keras optimizer that does not scale the loss yet.
        loss_scale: ``"dynamic"`` (for float16; no scaling if the half type is bfloat16 or nothing
            is rewritten), a positive number for a fixed scale, ``None`` for no scaling, or a
            :class:`~duotone.DynamicLossScale`, :class:`~duotone.FixedLossScale` or
            :class:`~duotone.NoLossScale`.
        dtype: ``float16``, ``bfloat16``, or ``None`` for the one that is fast on this device. If
            there is none, nothing is rewritten and one line is logged.
        policy: which operations may be painted; the default policy if omitted.
        rewrite: whether models compiled with it are rewritten; else it only scales the loss.

    Returns:
        An optimizer to compile a model with.

    Raises:
        ArgumentTypeError: `optimizer` is not a Keras optimizer; an argument of the wrong type.
        ArgumentError: Keras does not run on JAX, has a mixed dtype policy, or the optimizer scales
            the loss already; a value out of range.

    Example:
        >>> import keras, duotone.keras
        >>> optimizer = duotone.keras.enable(keras.optimizers.SGD(0.1), dtype="float16")
        >>> optimizer.metrics()["loss_scale"]
        32768.0

    References:
        TensorFlow, ``tf.train.experimental.enable_mixed_precision_graph_rewrite``.
    """
    keras_checks.check_backend()
    keras_checks.check_global_policy()
    return LossScaleOptimizer(optimizer, loss_scale, dtype=dtype, policy=policy, rewrite=rewrite)
