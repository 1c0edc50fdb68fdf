"""Refusals of TensorFlow's optimizers, each with the remedy."""

from __future__ import annotations

import sys
from typing import Any

from duotone.errors import ArgumentError, ArgumentTypeError, kind_of


def check_keras_optimizer(optimizer: Any) -> None:
    """Raises if a Keras optimizer cannot be wrapped.

    Raises:
        ArgumentTypeError: it is not a Keras optimizer.
        ArgumentError: it scales the loss already.
    """
    keras: Any = sys.modules["keras"]
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise _not_an_optimizer(optimizer, "keras.optimizers")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise _scales_already(optimizer, ".inner_optimizer")
    if optimizer.loss_scale_factor is not None:
        raise ArgumentError(
            f"the optimizer {optimizer.name!r} has loss_scale_factor="
            f"{optimizer.loss_scale_factor}, and the loss would be scaled twice. Make it without, "
            f"and pass loss_scale={optimizer.loss_scale_factor} to duotone for a fixed scale."
        )


def check_global_policy(who: str) -> None:
    """Raises if a dtype policy of Keras casts to half already.

    Args:
        who: the public function that was called.

    Raises:
        ArgumentError: Keras' global dtype policy is a mixed one.
    """
    keras: Any = sys.modules.get("keras")
    policy = None if keras is None else keras.config.dtype_policy()
    if policy is not None and "mixed_" in (policy.name or ""):
        raise ArgumentError(
            f"{who}: the global Keras dtype policy is {policy.name!r}, which casts each layer "
            "already. A graph rewrite and a dtype policy cannot be used together: set "
            'keras.config.set_dtype_policy("float32") before the model is made.'
        )


def check_v1_optimizer(optimizer: Any, base: type, scaling: tuple[type, ...]) -> None:
    """Raises if an optimizer of ``tf.compat.v1.train`` cannot be wrapped.

    Args:
        optimizer: the argument.
        base: ``tf.compat.v1.train.Optimizer``.
        scaling: the classes that scale losses.

    Raises:
        ArgumentTypeError: it is not an optimizer.
        ArgumentError: it scales the loss already.
    """
    if not isinstance(optimizer, base):
        raise _not_an_optimizer(optimizer, "tf.compat.v1.train")
    if isinstance(optimizer, scaling):
        raise _scales_already(optimizer, "")


def _not_an_optimizer(optimizer: Any, home: str) -> ArgumentTypeError:
    if isinstance(optimizer, type):
        name = optimizer.__name__
        return ArgumentTypeError(f"{name} is a class. Make an optimizer first: {home}.{name}(...).")
    return ArgumentTypeError(f"the optimizer must be one of {home}; got {kind_of(optimizer)}.")


def _scales_already(optimizer: Any, attribute: str) -> ArgumentError:
    inner = f": pass its {attribute}" if attribute else ""
    return ArgumentError(
        f"the optimizer is {kind_of(optimizer)}, which scales the loss already. Wrap the bare "
        f"optimizer, once{inner}."
    )


def not_scaled(name: str) -> ArgumentError:
    """Returns the error of gradients whose loss was not scaled.

    Args:
        name: the name of the optimizer.
    """
    return ArgumentError(
        f"optimizer {name!r}: the loss was not scaled before it was differentiated. The optimizer "
        "would divide these gradients by the loss scale, and the model would not train. Scale it "
        "under the tape: loss = optimizer.scale_loss(loss). To train without loss scaling, wrap "
        "the optimizer with loss_scale=None."
    )


def is_eager(method: str) -> ArgumentError:
    """Returns the error of a step of TensorFlow 1 outside of a graph.

    Args:
        method: the method that was called.
    """
    return ArgumentError(
        f"{method} was called eagerly, where there is no graph to rewrite. Call it in a "
        "tf.function, or build the step in `with tf.Graph().as_default():` and run it in a "
        "tf.compat.v1.Session."
    )
