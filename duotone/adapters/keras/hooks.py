"""Hooks: rewrite the steps of a model whose optimizer asks for mixed precision.

Keras has no path from an optimizer to the functions that a model compiles. So duotone wraps three
methods, once, in the classes of ``keras.Model.__mro__`` that define them: ``make_train_function``,
``make_test_function`` and ``make_predict_function``. If the model has a plan (``plans``), the
wrapper first wraps the step methods of each class of ``type(model).__mro__`` (``steps``). Then
Keras' own method runs, with the ``jit`` of duotone (``compiled``). KerasHub's tasks compile a step
of their own (``generating``).

duotone does not wrap ``keras.Model.compile``: Keras compares it with the base class' method to find
out whether it was overridden, and would load a model without its optimizer. It sets nothing on the
model itself, because Keras ignores instance attributes when its variables are Flax NNX's.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import keras

from duotone.adapters.keras import generating
from duotone.adapters.keras.compiled import with_own_jit
from duotone.adapters.keras.plans import everywhere, plan_of
from duotone.adapters.keras.steps import STEPS, wrap_steps
from duotone.adapters.keras_callback import counted

logger = logging.getLogger("duotone")

_WRAPPED = "__duotone_hook__"
_MAKERS = {f"make_{function}": function for function in STEPS.values()}


def install() -> None:
    """Wraps the methods with which Keras makes its functions; further calls do nothing."""
    generating.install()
    for kind in keras.Model.__mro__:
        for maker, function in _MAKERS.items():
            method = vars(kind).get(maker)
            if method is not None and not hasattr(method, _WRAPPED):
                setattr(kind, maker, _wrapped(method, function))


def _wrapped(method: Callable[..., Any], function: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def make(self: Any, force: bool = False) -> Any:
        if force or getattr(self, function, None) is None:
            for switches in everywhere:
                switches.wrap_optimizer(self)
            if plan_of(self) is None:
                return method(self, force=force)
            _warn_of_own_steps(self)
            for kind in type(self).__mro__:
                wrap_steps(kind)
                generating.wrap_generation(kind)
            with with_own_jit():
                method(self, force=force)
            if function == "train_function":
                look = functools.partial(_count, self)
                self.train_function = counted(self.train_function, look)
            return None
        return method(self, force=force)

    setattr(make, _WRAPPED, True)
    return make


def _count(model: Any, result: Any) -> None:
    """Tells the alarm of a model's optimizer how many steps were skipped, after a step."""
    optimizer, values = model.optimizer, result[1][2]
    alarm, skipped = getattr(optimizer, "alarm", None), getattr(optimizer, "skipped", None)
    if alarm is None or skipped is None or len(values) != len(optimizer.variables):
        return
    found = {id(v): value for v, value in zip(optimizer.variables, values, strict=True)}
    if count := int(found[id(skipped)]):
        alarm.count(count, optimizer.scale_in_use(found[id(optimizer.dynamic_scale)]))


def _warn_of_own_steps(model: Any) -> None:
    for name in STEPS:
        if name in vars(model):
            logger.warning(
                "model %r: %s was set on the model itself and is not rewritten; define it in a "
                "subclass of keras.Model to run it in mixed precision",
                model.name,
                name,
            )
