"""Steps: ``train_step``, ``test_step`` and ``predict_step`` of a model with a plan, rewritten.

A step method of a class is wrapped once. The wrapper depends on the model:

1. If the model has no plan, or its step is running already (``super().train_step``, a
   ``train_step`` that calls ``test_step``), the original method runs.
2. Otherwise the method runs through :func:`duotone.autocast`, inside Keras' own ``jit`` (with its
   donation, shardings and ``steps_per_execution``), and ``skipped`` restores the state after a
   skipped training step.

With ``jit_compile=False`` Keras calls the step with concrete arrays at every batch. The rewritten
program is then cached, by signature, as long as Keras keeps the function that it made from the
step; ``compile`` makes a new one. Inside ``jit`` nothing is cached: Keras decides when to trace.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from duotone.adapters import keras_checks
from duotone.adapters.keras import skipped
from duotone.adapters.keras.plans import StepPlan, plan_of
from duotone.adapters.keras_callback import FIRST_LINES
from duotone.calibrating.measure import Calibrations
from duotone.transforms.autocast import autocast
from duotone.transforms.log_observers import heard_by

logger = logging.getLogger("duotone")

STEPS = {
    "train_step": "train_function",
    "test_step": "test_function",
    "predict_step": "predict_function",
}
"""Each step method, and the attribute in which Keras keeps the function made from it."""

WRAPPED = "__duotone_step__"
"""The attribute of a method that is wrapped already."""

Bind = Callable[[Any], Callable[..., Any]]
"""Takes a model and returns its original step method, bound."""


class _Running(threading.local):
    """The models whose step is running, in this thread."""

    def __init__(self) -> None:
        self.models: list[Any] = []

    def __contains__(self, model: Any) -> bool:
        return any(model is other for other in self.models)

    @contextlib.contextmanager
    def entered(self, model: Any) -> Iterator[None]:
        self.models.append(model)
        try:
            yield
        finally:
            self.models.pop()


running = _Running()
"""The models whose step is running, in this thread."""
# This maps each model and step to Keras' function, the plan of its painting, and the program.
_kept: weakref.WeakKeyDictionary[Any, dict[str, tuple[Any, Any, Callable[..., Any]]]] = (
    weakref.WeakKeyDictionary()
)
MEASURED: weakref.WeakKeyDictionary[Any, Calibrations] = weakref.WeakKeyDictionary()
"""By model, the measurements of its training step; see ``measured``."""
_warned_eager: weakref.WeakSet[Any] = weakref.WeakSet()


def is_running() -> bool:
    """Returns True while a step of a model with a plan runs or is traced in this thread."""
    return bool(running.models)


def wrap_steps(kind: type) -> None:
    """Wraps the step methods that a class itself defines; each only once."""
    for name in STEPS:
        method = vars(kind).get(name)
        if method is not None and not hasattr(method, WRAPPED):
            setattr(kind, name, stepping(name, binding(method), functools.wraps(method)))


def binding(method: Any) -> Bind:
    """Returns a function that binds a method of a class to a model."""
    return lambda model: method.__get__(model, type(model))


def stepping(
    name: str, bind: Bind, named: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """Returns a method that runs a step by the plan of its model."""

    @named
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        plan = None if self in running else plan_of(self)
        if plan is None:
            return bind(self)(*args, **kwargs)
        with running.entered(self):
            run = _with_logged_line(self, _program(plan, self, name, bind, (args, kwargs)))
            if name != "train_step" or plan.skips is None:
                return run(*args, **kwargs)
            return skipped.run_step(self, plan.skips, run, *args, **kwargs)

    setattr(step, WRAPPED, True)
    return step


def _program(plan: StepPlan, model: Any, name: str, bind: Bind, call: Any) -> Callable[..., Any]:
    """Returns the step to run: the original, or the rewritten one; cached outside of a trace."""
    if plan.half is None:
        return bind(model)
    if model.run_eagerly:
        warn_of_eager(model)
        return bind(model)
    function = getattr(model, STEPS[name], None)
    if function is None or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(call)):
        return _rewritten(plan, model, name, bind)
    programs = _kept.setdefault(model, {})
    owner, kept, program = programs.get(name, (_no_owner, None, bind(model)))
    if owner() is not function or kept != plan:
        program = _rewritten(plan, model, name, bind)
        programs[name] = (weakref.ref(function), plan, program)
    return program


def _with_logged_line(model: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Calls ``run``, and keeps the first line that duotone logs about the model's steps."""

    def keep(line: str) -> None:
        FIRST_LINES.setdefault(model, line)

    def observed(*args: Any, **kwargs: Any) -> Any:
        with heard_by(keep):
            return run(*args, **kwargs)

    return observed


def _no_owner() -> None:
    """Returns None, the owner of a program that is not cached yet."""


def _rewritten(plan: StepPlan, model: Any, name: str, bind: Bind) -> Callable[..., Any]:
    keras_checks.check_model(model)
    reference: Any = weakref.ref(model)  # a cached program must not keep its model alive

    def step(*args: Any, **kwargs: Any) -> Any:
        return bind(reference())(*args, **kwargs)

    policy = plan.policy
    if name == "train_step" and model in MEASURED:
        policy = MEASURED[model].added_to(policy)
    dtype = None if plan.asks_device else plan.half
    return autocast(with_name(step, model, name), dtype=dtype, policy=policy)


def original(model: Any, name: str) -> Callable[..., Any]:
    """Returns the step method of a model, not rewritten."""

    def step(*args: Any, **kwargs: Any) -> Any:
        with running.entered(model):
            return getattr(model, name)(*args, **kwargs)

    return with_name(step, model, name)


def with_name(step: Callable[..., Any], model: Any, name: str) -> Callable[..., Any]:
    """Gives a function the name of a model's step, and returns it."""
    step.__name__ = name
    step.__qualname__ = f"{type(model).__name__}.{name}"
    return step


def warn_of_eager(model: Any) -> None:
    """Logs once for each model that its steps run eagerly, in full precision."""
    if model not in _warned_eager:
        _warned_eager.add(model)
        logger.warning(
            "model %r is compiled with run_eagerly=True: its steps are not rewritten and run in "
            "full precision. Leave run_eagerly out to run in mixed precision.",
            model.name,
        )
