"""Keras beside duotone: the name of our optimizer, and the backend that a process forgot to choose.

Keras saves a model together with the name of its optimizer's class, and looks the name up when it
loads the model, in whatever process that is. So the name is there as soon as duotone and Keras have
both been imported, in either order. What stands under it is a stand-in that loads the class when it
is asked for: the class needs JAX, Optax and Keras' JAX backend, and most programs load no such
model. (Keras gives the name to the class itself when ``duotone.adapters.keras`` is imported.)

Called by ``duotone`` when Keras has been imported, or could not be.
"""

from __future__ import annotations

import sys
from typing import Any

from duotone.errors import ArgumentError

OPTIMIZER = "duotone>LossScaleOptimizer"
"""The name under which Keras saves a wrapped optimizer."""

_BACKENDS = frozenset({"tensorflow", "torch", "openvino"})


class _Optimizer:
    """Stands under the name of the wrapped optimizer until its class is loaded."""

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The wrapped optimizer of a config; Keras calls it.

        Args:
            config: as ``LossScaleOptimizer.get_config`` made it.
            custom_objects: of whoever loads the model.

        Raises:
            ArgumentError: Keras does not run on JAX.
        """
        keras: Any = sys.modules["keras"]
        backend = keras.backend.backend()
        if backend != "jax":
            raise ArgumentError(
                "the model was saved with an optimizer of duotone, which trains on JAX, and Keras "
                f"runs on the {backend} backend. Set the environment variable KERAS_BACKEND=jax "
                "before keras is imported; or load the model without its optimizer: "
                "keras.saving.load_model(path, compile=False)."
            )
        from duotone.adapters.keras import LossScaleOptimizer

        return LossScaleOptimizer.from_config(config, custom_objects)


def name_optimizer() -> None:
    """Tells Keras, which has been imported, the name of the wrapped optimizer."""
    saving: Any = getattr(sys.modules["keras"], "saving", None)
    if hasattr(saving, "get_custom_objects"):  # not in a Keras of before 2.13, which loads no such
        saving.get_custom_objects().setdefault(OPTIMIZER, _Optimizer)


def name_backend(error: ImportError) -> None:
    """Adds the remedy to the error of a Keras that looks for a backend that is not installed.

    Args:
        error: with which the import of Keras fails.
    """
    library = (error.name or "").partition(".")[0]
    if library in _BACKENDS:
        error.add_note(
            f"duotone: Keras looks for {library}, its backend unless another one is chosen. Set "
            "the environment variable KERAS_BACKEND=jax before keras is imported."
        )
