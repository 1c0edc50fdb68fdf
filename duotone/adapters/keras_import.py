"""Runs when Keras is imported: registers our optimizer's name, and explains a missing backend.

Keras saves a model with the name of its optimizer's class, and looks the name up when it loads the
model in any process. So duotone registers the name as soon as both have been imported, in either
order. It registers a placeholder that loads the class on demand: the class needs JAX and Optax, or
TensorFlow, and most programs load no such model. (Keras registers the class itself when
the module of the class is imported.)
"""

from __future__ import annotations

import sys
from typing import Any

from duotone.errors import ArgumentError

OPTIMIZER = "duotone>LossScaleOptimizer"
"""The name under which Keras saves a wrapped optimizer."""


class _Optimizer:
    """The placeholder for the wrapped optimizer until its class is loaded."""

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Returns the wrapped optimizer of a config; Keras calls it.

        Args:
            config: the result of ``LossScaleOptimizer.get_config``.
            custom_objects: the ``custom_objects`` of the call that loads the model.

        Raises:
            ArgumentError: Keras runs neither on JAX nor on TensorFlow.
        """
        return _class_of_backend().from_config(config, custom_objects)


def _class_of_backend() -> Any:
    """Returns the class of the wrapped optimizer."""
    keras: Any = sys.modules["keras"]
    backend = keras.backend.backend()
    if backend == "jax":
        from duotone.adapters.keras import LossScaleOptimizer
    elif backend == "tensorflow":
        from duotone.adapters.tensorflow.keras import LossScaleOptimizer
    else:
        raise ArgumentError(
            "the model was saved with an optimizer of duotone, which trains on JAX and TensorFlow, "
            f"and Keras runs on the {backend} backend. Set the environment variable "
            "KERAS_BACKEND=jax (or tensorflow) before keras is imported; or load the model without "
            "its optimizer: keras.saving.load_model(path, compile=False)."
        )
    return LossScaleOptimizer


def name_optimizer() -> None:
    """Registers the name of the wrapped optimizer; Keras must be imported."""
    saving: Any = getattr(sys.modules["keras"], "saving", None)
    if hasattr(saving, "get_custom_objects"):  # older than Keras 2.13 cannot load such a model
        saving.get_custom_objects().setdefault(OPTIMIZER, _Optimizer)


def name_backend(error: ImportError) -> None:
    """Adds the remedy to the error of importing Keras without its backend."""
    library = (error.name or "").partition(".")[0]
    if library in ("tensorflow", "torch", "openvino"):
        error.add_note(
            f"duotone: Keras looks for {library}, its backend unless another one is chosen. Set "
            "the environment variable KERAS_BACKEND=jax before keras is imported."
        )
