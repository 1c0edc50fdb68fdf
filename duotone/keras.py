"""Keras 3 on JAX: the public names (the code is in ``duotone.adapters.keras``).

::

    optimizer = duotone.enable_mixed_precision_graph_rewrite(keras.optimizers.Adam(1e-3))
    model.compile(optimizer=optimizer, loss="mse")

Import this module before loading a model that was saved with a wrapped optimizer.
"""

from duotone.adapters.keras import (
    LossScaleCallback,
    LossScaleOptimizer,
    autocast,
    enable,
    enable_everywhere,
)

__all__ = ["LossScaleCallback", "LossScaleOptimizer", "autocast", "enable", "enable_everywhere"]
