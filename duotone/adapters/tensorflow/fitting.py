"""Fitting: a guard around each training step of a Keras model with a wrapped optimizer.

Keras makes the function of a training step in ``make_train_function``, from the method
``train_step``. duotone wraps the first, once, in the classes of ``keras.Model.__mro__`` that define
it. While it runs, ``model.train_step`` is the guarded step. The function logs skipped steps.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import keras

from duotone.adapters.keras_callback import FIRST_LINES, counted
from duotone.adapters.keras_checks import check_model, optimizers_of
from duotone.adapters.tensorflow.statistics import guard
from duotone.errors import TensorFlowError
from duotone.tensorflow.live import jit, switch

logger = logging.getLogger("duotone")

_MAKER = "make_train_function"
_WRAPPED = "__duotone_hook__"


def install() -> None:
    """Wraps the method with which Keras makes its training function; later calls do nothing."""
    for kind in keras.Model.__mro__:
        method = vars(kind).get(_MAKER)
        if method is not None and not hasattr(method, _WRAPPED):
            setattr(kind, _MAKER, _wrapped(method))


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def make(self: Any, force: bool = False) -> Any:
        made_before = self.train_function is not None and not force
        if made_before or hasattr(self.train_step, _WRAPPED) or not _wrapped_optimizers(self):
            return method(self, force=force)
        check_model(self)
        _check_jit(self)
        _warn_of_eager(self)
        with _guarded_step(self):
            method(self, force=force)
        made: Any = self.train_function
        self.train_function = counted(made, lambda _: _log(self))
        return None

    setattr(make, _WRAPPED, True)
    return make


def _log(model: Any) -> None:
    """Logs skipped steps, and keeps the line about the graph of the first step."""
    FIRST_LINES.setdefault(model, switch.first_line())
    for optimizer in _wrapped_optimizers(model):
        optimizer.warn()


def _wrapped_optimizers(model: Any) -> list[Any]:
    """Returns the wrapped optimizers of a model."""
    from duotone.adapters.tensorflow.keras import LossScaleOptimizer

    return [own for own in optimizers_of(model) if isinstance(own, LossScaleOptimizer)]


@contextlib.contextmanager
def _guarded_step(model: Any) -> Iterator[None]:
    """Replaces the training step of a model while Keras makes a function of it."""
    own, step = vars(model).get("train_step"), model.train_step

    @functools.wraps(step)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with guard(_statistics(model)):
            return step(*args, **kwargs)

    setattr(guarded, _WRAPPED, True)
    vars(model)["train_step"] = guarded
    try:
        yield
    finally:
        del vars(model)["train_step"]
        if own is not None:
            vars(model)["train_step"] = own


def _statistics(model: Any) -> list[Any]:
    """Returns the variables of a model that are not trained, without those of its optimizers."""
    theirs = {id(v) for optimizer in optimizers_of(model) for v in optimizer.variables}
    return [v for v in model.non_trainable_variables if id(v) not in theirs]


def _check_jit(model: Any) -> None:
    """Raises an error if XLA compiles the step of a model, so that duotone cannot rewrite it."""
    if switch.is_enabled() and model.jit_compile and (name := jit.missing()):
        raise TensorFlowError(
            f"model {model.name!r}: this TensorFlow has no {name}, so a training step that XLA "
            "compiles would stay float32. Compile the model with jit_compile=False."
        )


def _warn_of_eager(model: Any) -> None:
    if model.run_eagerly:
        logger.warning(
            "model %r runs eagerly (run_eagerly=True): there is no graph to rewrite, so it trains "
            "in float32. Compile it with run_eagerly=False.",
            model.name,
        )
