"""Keras models whose whole training step is a function: what ``mixed_float16`` makes of them.

The ResNet-50 of ``keras.applications``, as in the zoo, and a small encoder of Keras' own layers.
Each is called with the name of a dtype policy and gives ``step(state, batch)`` and its arguments'
shapes. Loss scaling is left out, as in the zoo.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported

import jax
import jax.numpy as jnp

Step = tuple[Callable[[Any, Any], Any], tuple[Any, Any]]


def _resnet50() -> tuple[Any, tuple[int, ...], Any]:
    import keras

    settings: dict[str, Any] = {"weights": None, "classifier_activation": None}
    model = keras.applications.ResNet50(**settings)
    return model, (64, 224, 224, 3), jnp.float32


def encoder(
    *, width: int, heads: int, length: int, layers: int, vocabulary: int, classes: int
) -> Any:
    """A post-norm encoder that classifies (batch, length) tokens."""
    import keras

    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, width)(tokens)
    for _ in range(layers):
        attention = keras.layers.MultiHeadAttention(heads, width // heads, flash_attention=False)
        x = keras.layers.LayerNormalization()(x + attention(x, x))
        y = keras.layers.Dense(4 * width, activation="gelu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(width)(y))
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, keras.layers.Dense(classes)(x))


def _transformer() -> tuple[Any, tuple[int, ...], Any]:
    """An encoder of BERT-small's size: 4 layers of width 512."""
    model = encoder(width=512, heads=8, length=512, layers=4, vocabulary=30522, classes=1000)
    return model, (32, 512), jnp.int32


def _step(make: Callable[[], tuple[Any, tuple[int, ...], Any]], policy: str) -> Step:
    import keras

    keras.config.set_dtype_policy(policy)
    model, shape, kind = make()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    optimizer.build(model.trainable_variables)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float32")

    def loss(trainable: Any, other: Any, batch: Any) -> Any:
        data, labels = batch
        logits, other = model.stateless_call(trainable, other, data, training=True)
        return entropy(labels, logits.astype(jnp.float32)), other

    def step(state: Any, batch: Any) -> Any:
        trainable, other, moved = state
        (value, other), gradient = jax.value_and_grad(loss, has_aux=True)(trainable, other, batch)
        trainable, moved = optimizer.stateless_apply(moved, gradient, trainable)
        return (trainable, other, moved), value

    def shapes(variables: Any) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct(tuple(v.shape), jnp.dtype(v.dtype)) for v in variables]

    state = (
        shapes(model.trainable_variables),
        shapes(model.non_trainable_variables),
        shapes(optimizer.variables),
    )
    labels = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
    return step, (state, (jax.ShapeDtypeStruct(shape, kind), labels))


STEPS: dict[str, Callable[[str], Step]] = {
    "keras_resnet50": lambda policy: _step(_resnet50, policy),
    "keras_transformer": lambda policy: _step(_transformer, policy),
}
"""By name: each is called with the name of a dtype policy."""
