"""Refusals of TensorFlow's optimizers, each with the remedy."""

from __future__ import annotations

from typing import Any

from duotone.errors import ArgumentError, ArgumentTypeError, kind_of


def check_v1_optimizer(optimizer: Any, scaling: tuple[type, ...]) -> None:
    """Raises if an optimizer of ``tf.compat.v1.train`` cannot be wrapped.

    Args:
        optimizer: the argument.
        scaling: the classes that scale losses.

    Raises:
        ArgumentTypeError: it is a class.
        ArgumentError: it scales the loss already.
    """
    if isinstance(optimizer, type):
        made = f"tf.compat.v1.train.{optimizer.__name__}(...)"
        raise ArgumentTypeError(f"{optimizer.__name__} is a class. Make an optimizer: {made}.")
    if isinstance(optimizer, scaling):
        raise ArgumentError(
            f"the optimizer is {kind_of(optimizer)}, which scales the loss already. Wrap the bare "
            "optimizer, once."
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
        "the optimizer with loss_scale=None (duotone run: --loss-scale none)."
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
