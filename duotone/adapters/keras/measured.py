"""Measures the training step of a Keras model on one batch, and finds what overflows there.

:func:`calibrate` and :func:`blame` call ``train_on_batch``, so that Keras prepares the state and
the batch. They replace the compiled training function by one that measures and returns the state
unchanged. The measurements are kept with the model, and ``steps`` paints its training step by them.
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
    """Measures the values of a training step; later steps are painted by the measurements.

    The step of the compiled model runs in float32 on one batch, with the loss scaled, operation by
    operation. Weights, optimizer and metrics do not change. Call it before ``fit``. Further calls
    with other batches add to the measurements. They are not saved with the model: save the result,
    and pass it as ``Policy(calibration=...)`` when you make the optimizer again.

    Args:
        model: compiled with a wrapped optimizer, or made by ``duotone.keras.autocast``.
        x: the inputs of one batch, as for ``model.train_on_batch``.
        y: the targets of the batch.
        sample_weight: the sample weights of the batch.

    Returns:
        The measurements on all batches so far; print it for a table.

    Raises:
        ArgumentTypeError: `model` is not a Keras model.
        ArgumentError: its training step is not rewritten.
        CalibrationError: the batch contains NaN.

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

    return _instead_of_training(model, measure, x, y, sample_weight)


def blame(model: Any, x: Any, y: Any = None, sample_weight: Any = None) -> Blame:
    """Runs :func:`duotone.blame` on the training step of a compiled model.

    The step runs once on one batch together with its float32 reference. Weights, optimizer and
    metrics do not change.

    Args:
        model: compiled with a wrapped optimizer, or made by ``duotone.keras.autocast``.
        x: the inputs of one batch, as for ``model.train_on_batch``.
        y: the targets of the batch.
        sample_weight: the sample weights of the batch.

    Returns:
        A record; print it.

    Raises:
        ArgumentTypeError: `model` is not a Keras model.
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

    return _instead_of_training(
        model, lambda *call: _blaming.blame(train_step, *call), x, y, sample_weight
    )


def _instead_of_training(
    model: Any, look: Callable[..., R], x: Any, y: Any, sample_weight: Any
) -> R:
    """Calls ``look(state, batch)`` instead of training on a batch, and returns its result."""
    found: list[R] = []

    def train_function(state: Any, batches: Iterator[Any]) -> tuple[dict[str, Any], Any]:
        found.append(look(*jax.tree.map(jnp.asarray, (state, next(batches)))))
        return {}, state

    model.make_train_function()  # so that Keras uses the replacement below
    model.train_function = train_function
    try:
        model.train_on_batch(x, y, sample_weight=sample_weight, return_dict=True)
    finally:
        model.train_function = None  # the next step makes a new one, with a new painting
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
