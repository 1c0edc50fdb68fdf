"""Keras 3 on JAX: one line around the optimizer, and ``model.fit`` runs in mixed precision.

::

    optimizer = enable(keras.optimizers.Adam(1e-3), dtype="float16")
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(x, y)

Files: ``settings`` (the user's choices, as plain data), ``optimizer`` (loss scaling),
``plans`` (which models are rewritten, how), ``steps`` (a step method, rewritten), ``skipped`` (the
state after a skipped step), ``hooks`` (around Keras' trainer), ``generating`` (the ``generate`` of
KerasHub), ``models`` (one model, no hooks), ``everywhere`` (all models), ``measured`` (calibration,
blame).

This package is the only part of duotone that imports Keras.
"""

from duotone.adapters.keras.everywhere import enable_everywhere
from duotone.adapters.keras.measured import blame, calibrate
from duotone.adapters.keras.models import autocast
from duotone.adapters.keras.optimizer import LossScaleOptimizer, enable

__all__ = [
    "LossScaleOptimizer",
    "autocast",
    "blame",
    "calibrate",
    "enable",
    "enable_everywhere",
]
