"""One model in mixed precision, without hooks in Keras.

:func:`autocast` gives the model a new subclass of its class, whose step methods run the original
ones by the model's plan (``steps``), compiled by the ``jit`` of duotone (``compiled``). So ``fit``,
``evaluate``, ``predict`` and KerasHub's ``generate`` find them in every mode of Keras, and no class
of Keras changes. ``model.__class__`` still returns the old class, for saving, cloning and printing.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import keras

from duotone.adapters import keras_checks
from duotone.adapters.keras import generating, settings
from duotone.adapters.keras.compiled import with_own_jit
from duotone.adapters.keras.plans import PLAN, StepPlan, wrapped_optimizers
from duotone.adapters.keras.steps import STEPS, Bind, stepping
from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.policy.arguments import refuse_heal
from duotone.policy.policy import Policy

_NAME = "duotone.keras.autocast"

Model = TypeVar("Model", bound=keras.Model)


def autocast(model: Model, *, dtype: Any = None, policy: Policy | None = None) -> Model:
    """Makes one Keras model train, evaluate and predict in mixed precision.

    This does not scale the loss. For float16, compile the model with
    ``keras.optimizers.LossScaleOptimizer``, or use
    ``duotone.enable_mixed_precision_graph_rewrite(optimizer)`` instead, which does both. bfloat16
    needs no loss scaling.

    Args:
        model: a functional, sequential or subclassed model, compiled or not, built or not. It is
            changed in place.
        dtype: ``float16``, ``bfloat16``, or ``None`` for the one that is fast on this device. If
            there is none, nothing is rewritten and one line is logged.
        policy: which operations may be painted; the default policy if omitted.

    Returns:
        The same model. A copy of it (saved and loaded, cloned, pickled) is in full precision until
        it is passed here too.

    Raises:
        ArgumentTypeError: `model` is not a Keras model; `dtype` or `policy` is of the wrong type.
        ArgumentError: it is in mixed precision already, by this function, by its optimizer or by
            dtype policies; Keras does not run on JAX.

    Example:
        >>> import keras, numpy
        >>> import duotone.keras
        >>> model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        >>> model = duotone.keras.autocast(model, dtype="bfloat16")
        >>> model.predict(numpy.ones((4, 3)), verbose=0).dtype
        dtype('float32')
    """
    keras_checks.check_backend()
    half = settings.check_dtype(dtype, _NAME)
    refuse_heal(_NAME, settings.check_policy(policy, _NAME))
    _check(model)
    kind = type(model)

    @functools.cache
    def plan() -> StepPlan:
        found = settings.half_of(half, policy, f"model {model.name!r}")
        return StepPlan(found, policy, asks_device=half is None)

    members: dict[str, Any] = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__class__": property(lambda self: kind),
        PLAN: staticmethod(plan),
    }
    own = type(kind)(kind.__name__, (kind,), members)
    for name, function in STEPS.items():
        named = functools.wraps(getattr(own, name))
        setattr(own, name, stepping(name, _original(own, name), named))
        setattr(own, f"make_{function}", _maker(own, f"make_{function}"))
        setattr(model, function, None)  # Keras then makes a new one from the new step
    if hasattr(kind, generating.STEP):
        named = functools.wraps(getattr(own, generating.STEP))
        step = generating.generating(_original(own, generating.STEP), named)
        setattr(own, generating.STEP, step)
        setattr(model, generating.FUNCTION, None)
    object.__setattr__(model, "__class__", own)
    return model


def _original(own: type, name: str) -> Bind:
    """Returns a function that binds the method of a model's old class."""
    return lambda model: getattr(super(own, model), name)


def _maker(own: type, name: str) -> Any:
    @functools.wraps(getattr(own, name))
    def make(self: Any, force: bool = False) -> Any:
        with with_own_jit():
            return getattr(super(own, self), name)(force=force)

    return make


def _check(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ArgumentTypeError(
            f"{model!r} of type {type(model).__name__} is not a keras.Model; for a function use "
            "duotone.autocast"
        )
    if hasattr(type(model), PLAN):
        raise ArgumentError(f"model {model.name!r} was passed to duotone.keras.autocast already")
    for optimizer in wrapped_optimizers(model):
        raise ArgumentError(
            f"model {model.name!r} is in mixed precision already, because its optimizer "
            f"{optimizer.name!r} was wrapped; leave autocast out"
        )
    keras_checks.check_model(model)
