"""Keras 3 on JAX: the public names (the code is in ``duotone.adapters.keras``).

::

    optimizer = duotone.enable_mixed_precision_graph_rewrite(keras.optimizers.Adam(1e-3))
    model.compile(optimizer=optimizer, loss="mse")

To load a model that was saved with a wrapped optimizer, ``import duotone`` is enough.
"""

from duotone.adapters.keras import (
    LossScaleCallback,
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
