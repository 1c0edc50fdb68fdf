"""The settings of the optimizer inside of a wrapped Keras optimizer.

Keras' ``LossScaleOptimizer`` passes the learning rate to the optimizer inside, and nothing else: a
``clipnorm`` that is set on the wrapper, and its ``exclude_from_weight_decay``, have no effect.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

_OWN = frozenset({"name", "loss_scale_factor"})
"""Arguments of an optimizer that do not say how it updates; the wrapper has its own."""
_READ_HERE = frozenset({"use_ema", "gradient_accumulation_steps"})
"""Settings for which Keras would create variables in the wrapper too, if it had them."""


class InnerSettings:
    """The part of both wrapped optimizers (JAX, TensorFlow) that passes settings inside.

    A setting is an argument of the inner optimizer's class, or of a base of it, that the optimizer
    keeps as an attribute of the same name.
    """

    def __init__(self, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        make: Any = super().__init__  # of Keras' LossScaleOptimizer, the other base
        make(inner_optimizer, *args, **kwargs)
        for name in _settings(type(inner_optimizer)) - _READ_HERE:
            vars(self).pop(name, None)  # so that `__getattr__` reads the one inside

    def __setattr__(self, name: str, value: Any) -> None:
        inner = vars(self).get("inner_optimizer")
        if _is_setting(inner, name):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Returns a setting of the inner optimizer; Python calls it for a name not found here."""
        inner = vars(self).get("inner_optimizer")
        if _is_setting(inner, name):
            return vars(inner)[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Excludes variables from the weight decay of the inner optimizer.

        Args:
            var_list: variables to exclude.
            var_names: excludes each variable whose name contains one of these strings.

        Raises:
            ValueError: the inner optimizer is built already, as in Keras.
        """
        inner: Any = vars(self)["inner_optimizer"]
        inner.exclude_from_weight_decay(var_list, var_names)


def _is_setting(inner: Any, name: str) -> bool:
    return inner is not None and name in vars(inner) and name in _settings(type(inner))


@functools.cache
def _settings(made_by: type) -> set[str]:
    """Returns the names of the arguments with which optimizers of a class are made."""
    makers = (vars(kind).get("__init__") for kind in made_by.__mro__ if kind is not object)
    names = {name for made in makers if made for name in inspect.signature(made).parameters}
    return names - _OWN
