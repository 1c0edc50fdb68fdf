"""Mixed precision for TensorFlow programs that do not mention it, as in ``duotone run``.

Each optimizer is wrapped as ``duotone.optimizer_from_environment`` wraps it: a Keras optimizer when
a model is compiled with it, one of ``tf.compat.v1.train`` when it is asked to minimize a loss.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

_HOOK = "__duotone_everywhere__"


def wrap_keras_optimizers() -> None:
    """Wraps the optimizer of every Keras model that is compiled from now on."""
    import keras

    for kind in keras.Model.__mro__:
        method = vars(kind).get("compile")
        if method is not None and not hasattr(method, _HOOK):
            kind.compile = _compiling(method)


def _compiling(method: Any) -> Any:
    @functools.wraps(method)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        from duotone.adapters.keras_checks import is_plain
        from duotone.adapters.tensorflow.keras import LossScaleOptimizer

        if is_plain(self, LossScaleOptimizer):
            from duotone.adapters.enable import optimizer_from_environment

            with self.distribute_strategy.scope():
                self.optimizer = optimizer_from_environment(self.optimizer)
            if self._compile_config is not None:  # what is saved with the model
                self._compile_config.config["optimizer"] = self.optimizer
        return result

    setattr(compile, _HOOK, True)
    return compile


def wrap_v1_optimizers() -> None:
    """Wraps every ``tf.compat.v1.train`` optimizer that minimizes a loss from now on."""
    tf = sys.modules["tensorflow"]
    base = tf.compat.v1.train.Optimizer
    if hasattr(base.minimize, _HOOK):
        return
    original = base.minimize

    @functools.wraps(original)
    def minimize(self: Any, *args: Any, **kwargs: Any) -> Any:
        from duotone.adapters.enable import optimizer_from_environment
        from duotone.adapters.tensorflow.v1 import V1LossScaleOptimizer

        done = isinstance(self, V1LossScaleOptimizer)
        return original(self if done else optimizer_from_environment(self), *args, **kwargs)

    setattr(minimize, _HOOK, True)
    base.minimize = minimize
