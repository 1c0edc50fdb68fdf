"""Generation: ``generate_step`` of a model with a plan, rewritten.

KerasHub's tasks compile this method themselves, for ``generate``. They pass the variables of the
model and of its sampler in a ``keras.StatelessScope`` around the call, and read the new states of
random seeds from the scope afterwards. A rewritten function is a function of arrays, so::

    values in the scope, arguments ─► autocast(the step in a scope of its own)
                                      ─► results, changed values ─► the scope

A call outside of a scope is eager (``run_eagerly=True``), and the original method runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

# Keras has no public way to find the scope that is active.
from keras.src.backend.common.stateless_scope import get_stateless_scope

from duotone.adapters.keras import steps
from duotone.adapters.keras.plans import StepPlan, plan_of
from duotone.adapters.on_import import when_imported
from duotone.transforms.autocast import autocast

STEP, FUNCTION = "generate_step", "generate_function"
"""The method that is rewritten, and the attribute with the function that a task made from it."""


@functools.cache
def install() -> None:
    """Wraps the step of each class of KerasHub that defines one, when KerasHub is imported."""
    when_imported("keras_hub", lambda: wrap_subclasses(keras.Model))


def wrap_subclasses(kind: type) -> None:
    """Wraps the step in a class and in all that are derived from it."""
    wrap_generation(kind)
    for derived in kind.__subclasses__():
        wrap_subclasses(derived)


def wrap_generation(kind: type) -> None:
    """Wraps the step that a class itself defines; only once."""
    method = vars(kind).get(STEP)
    if method is not None and not hasattr(method, steps.WRAPPED):
        setattr(kind, STEP, generating(steps.binding(method), functools.wraps(method)))


def generating(
    bind: steps.Bind, named: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """Returns a method that generates by the plan of its model."""

    @named
    def generate_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        plan = None if self in steps.running else plan_of(self)
        if plan is None or plan.half is None:
            return bind(self)(*args, **kwargs)
        scope = get_stateless_scope()
        if self.run_eagerly or scope is None:
            steps.warn_of_eager(self)
            return bind(self)(*args, **kwargs)
        with steps.running.entered(self):
            return _run_in(scope, plan, self, bind(self), args, kwargs)

    setattr(generate_step, steps.WRAPPED, True)
    return generate_step


def _run_in(scope: Any, plan: StepPlan, model: Any, step: Any, args: Any, kwargs: Any) -> Any:
    """Runs a step, rewritten, which reads and updates the variables of a scope."""

    def pure(values: dict[int, Any], args: Any, kwargs: Any) -> tuple[Any, dict[int, Any]]:
        with keras.StatelessScope() as own:
            own.state_mapping.update(values)
            result = step(*args, **kwargs)
        after = own.state_mapping
        return result, {key: v for key, v in after.items() if v is not values.get(key)}

    dtype = None if plan.asks_device else plan.half
    run = autocast(steps.with_name(pure, model, STEP), dtype=dtype, policy=plan.policy)
    result, changed = run(dict(scope.state_mapping), args, kwargs)
    scope.state_mapping.update(changed)
    return result
