"""Every model of the process, without a change of its source.

``duotone run`` and the environment switch call :func:`enable_everywhere`; from then on a model that
was compiled with a plain optimizer is treated as if that optimizer had been wrapped. The two
switches of the original can be on apart: rewriting, and loss scaling.

The optimizer of a model is wrapped when Keras makes the model's training function, in the model
and in its compile config, so that a saved model is one that was trained with a wrapped optimizer.
Models that are in mixed precision already are left alone, with one log line each.
"""

from __future__ import annotations

import dataclasses
import logging
import weakref
from typing import Any

import keras

from duotone.adapters.keras import hooks, plans, refusals, settings
from duotone.adapters.keras.optimizer import LossScaleOptimizer
from duotone.scale import DynamicLossScale

logger = logging.getLogger("duotone")

_left_alone: weakref.WeakSet[Any] = weakref.WeakSet()


def enable_everywhere(
    rewrite: bool, loss_scaling: bool, *, dtype: Any = None, loss_scale: Any = "dynamic"
) -> None:
    """Treats every Keras model compiled with a plain optimizer as if that had been wrapped.

    Args:
        rewrite: rewrite training, evaluation and prediction.
        loss_scaling: scale the loss and skip steps that overflow. With `rewrite` this is
            ``loss_scale="dynamic"`` of :func:`~duotone.adapters.keras.enable`; without, a
            :class:`~duotone.DynamicLossScale` for models whose half precision is their own.
        dtype: the half type; None for the one that is fast on this device.
        loss_scale: with `loss_scaling`, which one, as for :func:`~duotone.adapters.keras.enable`.

    With both false, models whose functions are not made yet are left alone again.

    Raises:
        ArgumentTypeError, ArgumentError: `dtype` is no half type, `loss_scale` no loss scale; Keras
            does not run on JAX.
    """
    refusals.check_backend()
    if settings.check_loss_scale(loss_scale) is None and not rewrite:
        loss_scale = DynamicLossScale()  # no half type of ours decides whether to scale
    switches = _Switches(bool(rewrite), bool(loss_scaling), settings.check_dtype(dtype), loss_scale)
    plans.set_default(switches.plan_of)
    hooks.set_before_plans(switches.wrap_optimizer)
    hooks.install()


@dataclasses.dataclass(slots=True)
class _Switches:
    rewrite: bool
    loss_scaling: bool
    dtype: str | None
    loss_scale: Any
    half: tuple[str | None] | None = None  # asked once, so that there is one log line

    def plan_of(self, model: Any) -> plans.Plan | None:
        """The plan of a model that does not ask for one."""
        if not self.rewrite or not _plain(model):
            return None
        if self.half is None:
            self.half = (settings.half_of(self.dtype, None, "Keras models"),)
        return plans.Plan(self.half[0], asks_device=self.dtype is None)

    def wrap_optimizer(self, model: Any) -> None:
        """Wraps the plain optimizer of a model, where the loss is to be scaled."""
        if not self.loss_scaling or not _plain(model):
            return
        inner = model.optimizer
        wrapped = LossScaleOptimizer(inner, self.loss_scale, dtype=self.dtype, rewrite=self.rewrite)
        if inner.built:
            wrapped.build(inner._trainable_variables)
        model.optimizer = wrapped
        model._compile_config.config["optimizer"] = wrapped
        if hasattr(model, "_record_training_state_sharding_spec"):
            # Keras 3.10 has listed the shardings of the optimizer's variables already.
            model._record_training_state_sharding_spec()


def _plain(model: Any) -> bool:
    """True if a model was compiled with an optimizer that may be wrapped; logs once why not."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or isinstance(optimizer, plans.Wrapped):
        return False
    reason = refusals.mixed_layer(model)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor:
        reason = reason or f"its optimizer {optimizer.name!r} scales the loss already"
    if reason is not None and model not in _left_alone:
        _left_alone.add(model)
        logger.warning("model %r is left as it is: %s", model.name, reason)
    return reason is None
