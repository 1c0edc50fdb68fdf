# python -m benchmarks._peers_keras
"""The process of one way of ``peers_cpu.py`` in Keras on JAX, as a user trains: ``fit``'s step.

Keras' own layers have other numbers of parameters than the zoo's, so these models are compared with
one another only: float32, the dtype policy ``mixed_bfloat16``, and duotone's line around the
optimizer of a float32 model.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"  # read when Keras is imported

import keras
import numpy as np

import duotone
from benchmarks._keras_models import encoder
from benchmarks._peers import Made, draw, serve


def _application(name: str) -> Callable[[dict[str, Any]], Any]:
    def make(shape: dict[str, Any]) -> Any:
        build: Any = getattr(keras.applications, name)
        side, classes = shape["image"], shape["classes"]
        return build(
            weights=None, input_shape=(side, side, 3), classes=classes, classifier_activation=None
        )

    return make


def _transformer(shape: dict[str, Any]) -> Any:
    return encoder(**{key: size for key, size in shape.items() if key != "image"})


def _lstm(shape: dict[str, Any]) -> Any:
    """Two LSTM layers that classify."""
    tokens = keras.Input((shape["length"],), dtype="int32")
    x = keras.layers.Embedding(shape["vocabulary"], shape["width"])(tokens)
    x = keras.layers.LSTM(shape["width"], return_sequences=True)(x)
    x = keras.layers.LSTM(shape["width"])(x)
    return keras.Model(tokens, keras.layers.Dense(shape["classes"])(x))


MODELS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "keras ResNet50V2": _application("ResNet50V2"),
    "keras MobileNetV2": _application("MobileNetV2"),
    "keras transformer": _transformer,
    "keras LSTM": _lstm,
}
"""By name: each makes the model of a shape."""


def made(case: dict[str, Any], way: str, task: str, batch: int) -> Made:
    """Prepares a prediction or a training step; see ``peers_cpu.Peer`` for ``case``."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16" if way.endswith("mixed_bfloat16") else "float32")
    model = MODELS[case["name"]](case["shape"])
    optimizer: Any = keras.optimizers.AdamW(1e-4, weight_decay=1e-4)
    if way.endswith("duotone"):
        optimizer = duotone.enable_mixed_precision_graph_rewrite(optimizer, dtype="bfloat16")
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, entropy)
    inputs, wanted = (draw([spec], batch)[0] for spec in (case["inputs"][0], case["target"]))
    count = sum(int(np.prod(leaf.shape)) for leaf in model.trainable_variables)
    if task == "predict":
        return lambda: model.predict_on_batch(inputs), count
    return lambda: model.train_on_batch(inputs, wanted), count


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    serve(lambda **task: made(settings["case"], settings["way"], **task))
