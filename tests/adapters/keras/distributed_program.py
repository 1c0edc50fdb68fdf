"""Keras' distribution API on eight devices of the host; run by test_distribution in a process.

Prints one JSON object per case: how the model was sharded, how many products are half, what was
skipped, and how far the weights are from those of one device.
"""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import json
import re
import sys

import jax
import keras
import numpy as np

from duotone.adapters.keras import enable
from tests.adapters.keras.small import bad, half_dots, values

keras.config.disable_traceback_filtering()
RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 8)).astype("float32")
Y = np.argmax(X[:, :4], axis=1).astype("int32")


def distribution(kind):
    devices = keras.distribution.list_devices()
    assert len(devices) == 8
    if kind == "data":
        return keras.distribution.DataParallel(devices=devices)
    if kind == "model":
        mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
        layout = keras.distribution.LayoutMap(mesh)
        layout[".*dense.*kernel"] = (None, "model")
        layout[".*dense.*bias"] = ("model",)
        return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    return None


def train(kind):
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    keras.distribution.set_distribution(distribution(kind))
    stack = [keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu", name="dense_a")]
    model = keras.Sequential(
        [*stack, keras.layers.BatchNormalization(), keras.layers.Dense(4, name="dense_b")]
    )
    optimizer = enable(keras.optimizers.Adam(0.01), dtype="float16")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    texts = []
    original = jax.jit

    def spy(function, **settings):
        compiled = original(function, **settings)
        if getattr(function, "__name__", "") == "train_step":
            seen = []

            def call(*args):
                if not seen:
                    seen.append(compiled.lower(*args).as_text())
                    texts.append(seen[0])
                return compiled(*args)

            return call
        return compiled

    trainer = sys.modules[keras.Model.__mro__[1].__module__]
    held = getattr(trainer, "jit", None)
    jax.jit = spy
    if held is not None:
        trainer.jit = spy
    try:
        for x in (X, bad(X), X):
            model.fit(x, Y, batch_size=16, shuffle=False, verbose=0)
    finally:
        jax.jit = original
        if held is not None:
            trainer.jit = held
    predictions = model.predict(X, batch_size=16, verbose=0)
    kernel = model.layers[0].kernel.value
    return {
        "kind": kind,
        "sharding": re.sub(r"\s", "", str(kernel.sharding.spec)) if kind != "none" else "",
        "devices": len(kernel.sharding.device_set),
        "half": half_dots(texts[0]),
        "metrics": optimizer.metrics(),
        "weights": [w.tolist() for w in values(model.trainable_variables)],
        "predictions": predictions.tolist(),
    }


if __name__ == "__main__":
    results = [train(kind) for kind in ("none", "data", "model")]
    (alone, *others) = results
    for result in others:
        for name in ("weights", "predictions"):
            pairs = zip(alone[name], result.pop(name), strict=True)
            result[name] = max(float(np.max(np.abs(np.subtract(a, b)))) for a, b in pairs)
        print(json.dumps(result))
