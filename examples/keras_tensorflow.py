"""Train a Keras model on TensorFlow in mixed precision: ``model.fit``, one line at the optimizer.

It needs TensorFlow (``pip install 'duotone[tensorflow]'``). The images have the shape of CIFAR-10:
ten random textures and noise. It prints what was rewritten, and ``--save`` writes the model with
its loss scale.

    python examples/keras_tensorflow.py --precision bfloat16 --epochs 3
    python examples/keras_tensorflow.py --precision float16 --loss-scale 128 --save model.keras
"""

# Keras ships no types.
# pyright: reportArgumentType=false

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

os.environ["KERAS_BACKEND"] = "tensorflow"  # before Keras is imported

import keras
import numpy as np
import typer

import duotone

Precision = Literal["float32", "float16", "bfloat16", "mixed"]


def images(count, seed):
    """Noisy images ``[count, 32, 32, 3]`` of ten textures, and their classes."""
    textures = np.random.default_rng(0).normal(size=(10, 32, 32, 3)).astype("float32")
    random = np.random.default_rng(seed)
    classes = random.integers(10, size=count)
    noise = random.normal(size=(count, 32, 32, 3)).astype("float32")
    return 0.3 * textures[classes] + noise, classes


def build_model():
    """A convolutional network for images ``[n, 32, 32, 3]``; it gives scores ``[n, 10]``."""
    layers = [keras.layers.Input((32, 32, 3))]
    for channels in (32, 64, 128):
        layers += [
            keras.layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
        ]
    layers += [keras.layers.Flatten(), keras.layers.Dense(10)]
    return keras.Sequential(layers)


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    batch: Annotated[int, typer.Option(min=1)] = 128,
    count: Annotated[int, typer.Option(min=10)] = 4096,
    seed: int = 0,
    save: Path | None = None,
) -> float:
    """Trains a convolutional network on textures; gives the test accuracy."""
    keras.utils.set_random_seed(seed)
    model = build_model()
    optimizer = keras.optimizers.Adam(1e-3, clipnorm=1.0)
    scale = loss_scale if loss_scale == "dynamic" else float(loss_scale)
    dtype = None if precision == "mixed" else precision  # None: duotone asks the device
    optimizer = duotone.enable_mixed_precision_graph_rewrite(  # the one line
        optimizer, scale, dtype=dtype
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    model.fit(*images(count, seed + 1), batch_size=batch, epochs=epochs, verbose=2)
    reached = model.evaluate(*images(1000, seed + 2), verbose=0, return_dict=True)["accuracy"]
    if precision != "float32":
        print(optimizer.metrics())
        print(duotone.tensorflow.explain_last())
    if save is not None:
        model.save(save)
    print(f"accuracy {reached:.2%} in {precision}")
    return reached


if __name__ == "__main__":
    try:
        typer.run(train)
    except (ValueError, OSError, duotone.DuotoneError) as error:
        print("keras_tensorflow.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
