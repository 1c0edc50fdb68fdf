"""Calibration of a Keras model: what the values of its training step are on some batches.

:func:`calibrate` lets Keras itself prepare state and batch, as ``train_on_batch`` does, with a
training function that measures in the place of the compiled one and gives the state back as it is.
What was measured is kept with the model, and its training step is painted by it (``steps``).

What goes wrong: a model whose training step is not rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras

from duotone._measuring import Calibrations
from duotone.adapters.keras.plans import plan_of
from duotone.adapters.keras.steps import MEASURED, original
from duotone.calibration import Calibration
from duotone.errors import ArgumentError, ArgumentTypeError, shown


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
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> optimizer = duotone.keras.enable(keras.optimizers.SGD(0.1), dtype="float16")
        >>> model.compile(optimizer, loss="mse")
        >>> measured = duotone.keras.calibrate(model, np.full((4, 2), 1e6), np.zeros((4, 1)))
        >>> any(value.largest > 65504 for value in measured.values)
        True
    """
    _check(model)
    calibrations = MEASURED.setdefault(model, Calibrations())
    found: list[Calibration] = []

    def train_function(state: Any, batches: Iterator[Any]) -> tuple[dict[str, Any], Any]:
        call = jax.tree.map(jnp.asarray, (state, next(batches)))
        found.append(calibrations.measure(original(model, "train_step"), call, {}))
        return {}, state

    model.make_train_function()  # so that Keras finds one, which is replaced
    model.train_function = train_function
    try:
        model.train_on_batch(x, y, sample_weight=sample_weight, return_dict=True)
    finally:
        model.train_function = None  # made anew at the next step, and so painted anew
    return found[0]


def _check(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ArgumentTypeError(
            f"calibrate: the model is {shown(model)}; pass a Keras model that was compiled."
        )
    if plan_of(model) is None:
        raise ArgumentError(
            f"calibrate: model {model.name!r} is not in mixed precision, so nothing would read "
            "what is measured. Compile it with "
            "duotone.enable_mixed_precision_graph_rewrite(optimizer) first."
        )
    if model.run_eagerly:
        raise ArgumentError(
            f"calibrate: model {model.name!r} is compiled with run_eagerly=True, and its steps are "
            "not rewritten. Leave run_eagerly out."
        )
