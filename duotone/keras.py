"""Keras 3: the public names.

The code is in ``duotone.adapters.keras``, and that for TensorFlow in
``duotone.adapters.tensorflow``::

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

if TYPE_CHECKING or _keras.backend.backend() != "tensorflow":
    from duotone.adapters.keras import (
        LossScaleOptimizer,
        autocast,
        blame,
        calibrate,
        enable,
        enable_everywhere,
    )
else:
    from duotone.adapters import keras_checks as _checks
    from duotone.adapters.tensorflow.keras import LossScaleOptimizer, enable

    __getattr__ = _checks.only_on_jax

__all__ = [
    "LossScaleCallback",
    "LossScaleOptimizer",
    "autocast",
    "blame",
    "calibrate",
    "enable",
    "enable_everywhere",
]
