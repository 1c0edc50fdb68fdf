"""Mixed precision for every model of the process, without changing its source.

``duotone run`` and the environment switch call :func:`enable_everywhere`. Afterwards a model that
was compiled with a plain optimizer runs as if that optimizer had been wrapped. As in TensorFlow,
rewriting and loss scaling are separate switches.

The optimizer is wrapped when Keras makes the model's training function, in the model and in its
compile config, so that the saved model has a wrapped optimizer. Models that are in mixed precision
already do not change, and duotone logs one line for each.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from duotone._checks import check_switch
from duotone.adapters import keras_checks
from duotone.adapters.keras import hooks, plans, settings
from duotone.adapters.keras.optimizer import LossScaleOptimizer
from duotone.scale import DynamicLossScale

_NAME = "duotone.keras.enable_everywhere"


def enable_everywhere(
    rewrite: bool, loss_scaling: bool, *, dtype: Any = None, loss_scale: Any = "dynamic"
) -> None:
    """Treats every Keras model with a plain optimizer as if that optimizer were wrapped.

    Args:
        rewrite: rewrite training, evaluation and prediction.
        loss_scaling: scale the loss and skip steps that overflow. With `rewrite` this is
            ``loss_scale="dynamic"`` of :func:`~duotone.adapters.keras.enable`; without, a
            :class:`~duotone.DynamicLossScale` for models that have their own half precision.
        dtype: the half type; None for the one that is fast on this device.
        loss_scale: the loss scale, as for :func:`~duotone.adapters.keras.enable`; used with
            `loss_scaling`.

    If both are False, duotone no longer changes models whose functions Keras has not made yet.

    Raises:
        ArgumentTypeError, ArgumentError: `dtype` is not a half type, or `loss_scale` not a loss
            scale, a switch is neither True nor False, or Keras does not run on JAX.

    Example:
        >>> import duotone.keras
        >>> duotone.keras.enable_everywhere(rewrite=True, loss_scaling=True, dtype="bfloat16")
        >>> duotone.keras.enable_everywhere(rewrite=False, loss_scaling=False)
    """
    keras_checks.check_backend()
    check_switch(_NAME, "rewrite", rewrite)
    check_switch(_NAME, "loss_scaling", loss_scaling)
    if settings.check_loss_scale(loss_scale) is None and not rewrite:
        loss_scale = DynamicLossScale()  # the model's half type is unknown, so always scale
    dtype = settings.check_dtype(dtype, _NAME)
    switches = _Switches(bool(rewrite), bool(loss_scaling), dtype, loss_scale)
    plans.everywhere[:] = [switches]
    hooks.install()


@dataclasses.dataclass(slots=True)
class _Switches:
    rewrite: bool
    loss_scaling: bool
    dtype: str | None
    loss_scale: Any
    half: tuple[str | None] | None = None  # found once, so that there is one log line

    def plan_of(self, model: Any) -> plans.StepPlan | None:
        """Returns the plan of a model that has none of its own."""
        if not self.rewrite or not keras_checks.is_plain(model, plans.WrappedBase):
            return None
        if self.half is None:
            self.half = (settings.half_of(self.dtype, None, "Keras models"),)
        return plans.StepPlan(self.half[0], asks_device=self.dtype is None)

    def wrap_optimizer(self, model: Any) -> None:
        """Wraps the plain optimizer of a model if loss scaling is on."""
        if not self.loss_scaling or not keras_checks.is_plain(model, plans.WrappedBase):
            return
        inner = model.optimizer
        wrapped = LossScaleOptimizer(inner, self.loss_scale, dtype=self.dtype, rewrite=self.rewrite)
        if inner.built:
            wrapped.build(inner._trainable_variables)
        model.optimizer = wrapped
        model._compile_config.config["optimizer"] = wrapped
        if hasattr(model, "_record_training_state_sharding_spec"):
            # Keras 3.10 has recorded the shardings of the old optimizer's variables.
            model._record_training_state_sharding_spec()
