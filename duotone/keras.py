"""Mixed precision for Keras 3, on JAX and on TensorFlow. See ``docs/keras.md``.

One line is enough for ``fit``, ``evaluate`` and ``predict``::

    optimizer = duotone.enable_mixed_precision_graph_rewrite(keras.optimizers.Adam(1e-3))
    model.compile(optimizer=optimizer, loss="mse")

To load a model that was saved with a wrapped optimizer, ``import duotone`` is enough.

On TensorFlow there are ``LossScaleCallback``, ``LossScaleOptimizer`` and ``enable``. The other
names are for Keras on JAX, and an error there says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras as _keras

from duotone.adapters.keras_callback import LossScaleCallback

if not TYPE_CHECKING and _keras.backend.backend() == "tensorflow":
    from duotone.adapters import keras_checks as _checks
    from duotone.adapters.tensorflow.keras import LossScaleOptimizer, enable

    __getattr__ = _checks.only_on_jax
else:  # the names that type checkers and the reference show
    from duotone.adapters.keras import (
        LossScaleOptimizer,
        autocast,
        blame,
        calibrate,
        enable,
        enable_everywhere,
    )

__all__ = [
    "LossScaleCallback",
    "LossScaleOptimizer",
    "autocast",
    "blame",
    "calibrate",
    "enable",
    "enable_everywhere",
]
