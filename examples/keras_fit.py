"""Train a Keras model in float16: one line around the optimizer.

KERAS_BACKEND=jax python examples/keras_fit.py
"""

# Keras ships no types.
# pyright: reportArgumentType=false

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import duotone.keras

rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 32)).astype("float32")
y = np.argmax(x[:, :8], axis=1).astype("int32")

model = keras.Sequential(
    [
        keras.layers.Input((32,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(8),
    ]
)
optimizer = keras.optimizers.Adam(1e-2)
optimizer = duotone.enable_mixed_precision_graph_rewrite(optimizer, dtype="float16")  # the one line
model.compile(
    optimizer=optimizer,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    x,
    y,
    batch_size=128,
    epochs=5,
    verbose=0,
    callbacks=[duotone.keras.LossScaleCallback()],
)
for epoch, (loss, accuracy) in enumerate(
    zip(history.history["loss"], history.history["accuracy"], strict=True), 1
):
    print(f"epoch {epoch}  loss {loss:.4f}  accuracy {accuracy:.3f}")
print(optimizer.metrics())
