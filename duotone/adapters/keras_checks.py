"""Checks of Keras optimizers and models on every backend; each error names the remedy."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import Any

import keras

from duotone.errors import ArgumentError, ArgumentTypeError, kind_of

logger = logging.getLogger("duotone")

_left_alone: weakref.WeakSet[Any] = weakref.WeakSet()


def check_backend() -> None:
    """Raises ArgumentError if Keras runs on anything but JAX."""
    backend = keras.backend.backend()
    if backend != "jax":
        raise ArgumentError(
            f"Keras runs on the {backend} backend; duotone.keras rewrites JAX programs. Set the "
            "environment variable KERAS_BACKEND=jax before keras is imported. (On TensorFlow, "
            "duotone.enable_mixed_precision_graph_rewrite wraps optimizers.)"
        )


def only_on_jax(name: str) -> Any:
    """Raises for a name of ``duotone.keras`` that Keras on TensorFlow does not have.

    Raises:
        ArgumentError: the name is one for Keras on JAX.
        AttributeError: there is no such name.
    """
    if name in ("autocast", "blame", "calibrate", "enable_everywhere"):
        raise ArgumentError(
            f"duotone.keras.{name} is for Keras on JAX (KERAS_BACKEND=jax). On TensorFlow, "
            "duotone.enable_mixed_precision_graph_rewrite wraps optimizers, and duotone run wraps "
            "those of a whole script."
        )
    raise AttributeError(f"module 'duotone.keras' has no attribute {name!r}")


def check_optimizer(optimizer: Any) -> None:
    """Raises if an optimizer cannot be wrapped.

    Raises:
        ArgumentTypeError: it is not a Keras optimizer.
        ArgumentError: it scales the loss already.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        hint = ""
        if isinstance(optimizer, str):
            hint = f"; make one first: keras.optimizers.get({optimizer!r})"
        elif isinstance(optimizer, type) and issubclass(optimizer, keras.optimizers.Optimizer):
            hint = f"; make one first: keras.optimizers.{optimizer.__name__}(...)"
        raise ArgumentTypeError(
            f"{optimizer!r} of type {type(optimizer).__name__} is not a keras.optimizers.Optimizer"
            f"{hint}"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ArgumentError(
            f"the optimizer {optimizer.name!r} is {kind_of(optimizer)}, which scales the "
            "loss already; pass its inner optimizer (.inner_optimizer) instead"
        )
    if optimizer.loss_scale_factor is not None:
        raise ArgumentError(
            f"the optimizer {optimizer.name!r} has loss_scale_factor="
            f"{optimizer.loss_scale_factor}, and the loss would be scaled twice; make it without, "
            f"and pass loss_scale={optimizer.loss_scale_factor} to duotone if the scale is to be "
            "fixed"
        )


def inner_optimizer_of(config: dict[str, Any], custom_objects: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the inner optimizer of a saved config, and the rest of the config."""
    rest = dict(config)
    saved = rest.pop("inner_optimizer")
    return keras.saving.deserialize_keras_object(saved, custom_objects=custom_objects), rest


def check_global_policy() -> None:
    """Raises ArgumentError if Keras' global dtype policy is a mixed one."""
    policy = keras.config.dtype_policy()
    if _is_mixed(policy):
        raise ArgumentError(
            f"the global Keras dtype policy is {policy.name!r}, which casts by layer already; set "
            'keras.config.set_dtype_policy("float32") before the model is made, and duotone '
            "chooses by operation"
        )


def mixed_layer(model: Any) -> str | None:
    """Returns the path and policy of the first layer of mixed dtype, if any."""
    for layer in model._flatten_layers():
        if _is_mixed(layer.dtype_policy):
            path, policy = layer.path or layer.name, layer.dtype_policy.name
            return f"layer {path!r} has the dtype policy {policy!r}"
    return None


def check_model(model: Any) -> None:
    """Raises ArgumentError if a layer of a model has a mixed dtype policy."""
    check_global_policy()
    found = mixed_layer(model)
    if found is not None:
        raise ArgumentError(
            f"{found}, which casts to half already; make the model with dtype policies "
            '"float32" (leave dtype= out), and duotone chooses by operation'
        )


def is_plain(model: Any, wrapped: type) -> bool:
    """Checks if a model was compiled with an optimizer that may be wrapped; else logs why, once."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or isinstance(optimizer, wrapped):
        return False
    reason = mixed_layer(model)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor:
        reason = reason or f"its optimizer {optimizer.name!r} scales the loss already"
    if reason is not None and model not in _left_alone:
        _left_alone.add(model)
        logger.warning("model %r is not changed: %s", model.name, reason)
    return reason is None


def _is_mixed(policy: Any) -> bool:
    return "mixed_" in (policy.name or "")


def optimizers_of(model: Any) -> Iterator[Any]:
    """Yields all Keras optimizers in attributes of a model, also in lists and dicts there."""
    for attribute in list(vars(model).values()):
        if isinstance(attribute, keras.optimizers.Optimizer):
            yield attribute
        elif isinstance(attribute, (list, tuple, dict)):
            inside = attribute.values() if isinstance(attribute, dict) else attribute
            yield from (one for one in inside if isinstance(one, keras.optimizers.Optimizer))
