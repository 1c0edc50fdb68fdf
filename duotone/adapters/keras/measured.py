"""A Keras model looked at on a batch: what its training step calculates, and what overflows there.

:func:`calibrate` and :func:`blame` let Keras itself prepare state and batch, as ``train_on_batch``
does, with a training function that looks, in the place of the compiled one, and gives the state
back as it is.
What was measured is kept with the model, and its training step is painted by it (``steps``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import keras

from duotone.adapters.keras.plans import plan_of
from duotone.adapters.keras.steps import MEASURED, original
from duotone.blaming import blame as _blaming
from duotone.blaming.blame import Blame
from duotone.calibrating.measure import Calibrations
from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.policy.calibration import Calibration

R = TypeVar("R")


def calibrate(model: Any, x: Any, y: Any = None, sample_weight: Any = None) -> Calibration:
    """Measures what the values of a training step are, and paints the steps after by it.

    The step of the compiled model runs in float32 on one batch, the loss scaled, operation by
    operation; weights, optimizer and metrics stay as they are. Call it before ``fit``; again with
    another batch to add to what was measured. It is not saved with the model: save the result, or
    give it as ``Policy(calibration=...)`` when the optimizer is made again.

    Args:
        model: compiled with a wrapped optimizer, or made by ``duotone.keras.autocast``.
        x: one batch, as for ``model.train_on_batch``.
        y: likewise.
        sample_weight: likewise.

    Returns:
        What was measured on all batches so far; print it for a table.

    Raises:
        ArgumentTypeError: `model` is no Keras model.
        ArgumentError: its training step is not rewritten.
        CalibrationError: the batch holds NaN.

    Example:
        >>> import keras, numpy as np, duotone.keras
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> optimizer = duotone.keras.enable(keras.optimizers.SGD(0.1), dtype="float16")
        >>> model.compile(optimizer, loss="mse")
        >>> measured = duotone.keras.calibrate(model, np.full((4, 8), 1e6), np.zeros((4, 1)))
        >>> any(value.largest > 65504 for value in measured.values)
        True
    """
    _check("calibrate", model)
    calibrations = MEASURED.setdefault(model, Calibrations())

    def measure(*call: Any) -> Calibration:
        return calibrations.measure(original(model, "train_step"), call, {})

    return _in_place_of_training(model, measure, x, y, sample_weight)


def blame(model: Any, x: Any, y: Any = None, sample_weight: Any = None) -> Blame:
    """:func:`duotone.blame` for the training step of a compiled model.

    The step runs once on one batch beside its float32 reference; weights, optimizer and metrics
    stay as they are.

    Args:
        model: compiled with a wrapped optimizer, or made by ``duotone.keras.autocast``.
        x: one batch, as for ``model.train_on_batch``.
        y: likewise.
        sample_weight: likewise.

    Returns:
        A record; print it.

    Raises:
        ArgumentTypeError: `model` is no Keras model.
        ArgumentError: its training step is not rewritten.

    Example:
        >>> import keras, numpy as np, duotone.keras
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> optimizer = duotone.keras.enable(keras.optimizers.SGD(0.1), dtype="float16")
        >>> model.compile(optimizer, loss="mse")
        >>> found = duotone.keras.blame(model, np.full((4, 8), 1e6), np.zeros((4, 1)))
        >>> found.verdict.value, found.first.operation
        ('overflow', 'argument')
    """
    _check("blame", model)

    def train_step(state: Any, batch: Any) -> Any:
        return model.train_step(state, batch)

    return _in_place_of_training(
        model, lambda *call: _blaming.blame(train_step, *call), x, y, sample_weight
    )


def _in_place_of_training(
    model: Any, look: Callable[..., R], x: Any, y: Any, sample_weight: Any
) -> R:
    """Calls ``look(state, batch)`` where Keras would train on a batch, and returns its result."""
    found: list[R] = []

    def train_function(state: Any, batches: Iterator[Any]) -> tuple[dict[str, Any], Any]:
        found.append(look(*jax.tree.map(jnp.asarray, (state, next(batches)))))
        return {}, state

    model.make_train_function()  # so that Keras finds one, which is replaced
    model.train_function = train_function
    try:
        model.train_on_batch(x, y, sample_weight=sample_weight, return_dict=True)
    finally:
        model.train_function = None  # made anew at the next step, and so painted anew
    return found[0]


def _check(name: str, model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ArgumentTypeError(
            f"{name}: the model is {shown(model)}; pass a Keras model that was compiled."
        )
    if plan_of(model) is None:
        raise ArgumentError(
            f"{name}: model {model.name!r} is not in mixed precision, so nothing in it is "
            "half. Compile it with "
            "duotone.enable_mixed_precision_graph_rewrite(optimizer) first."
        )
    if model.run_eagerly:
        raise ArgumentError(
            f"{name}: model {model.name!r} is compiled with run_eagerly=True, and its steps are "
            "not rewritten. Leave run_eagerly out."
        )
