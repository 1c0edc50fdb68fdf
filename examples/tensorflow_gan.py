"""Train a GAN in TensorFlow in mixed precision: two optimizers, two loss scales, one tf.function.

It needs TensorFlow (``pip install 'duotone[tensorflow]'``). The images are digits of scikit-learn's
shape, 8 by 8, drawn from ten random strokes. It prints both losses and both loss scales.

    python examples/tensorflow_gan.py --precision bfloat16 --steps 200
    python examples/tensorflow_gan.py --precision float16 --loss-scale 128
"""

# Keras ships no types.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

import os
import sys
from typing import Annotated, Literal

os.environ["KERAS_BACKEND"] = "tensorflow"  # before Keras is imported

import keras
import numpy as np
import tensorflow as tf
import typer

import duotone

Precision = Literal["float32", "float16", "bfloat16", "mixed"]
NOISE = 64


def images(count, seed):
    """Images ``[count, 64]`` between -1 and 1: ten strokes, each moved and blurred a little."""
    strokes = np.random.default_rng(0).normal(size=(10, 8, 8))
    strokes = np.tanh(2.0 * np.apply_along_axis(np.convolve, 2, strokes, np.ones(3) / 3, "same"))
    random = np.random.default_rng(seed)
    chosen = strokes[random.integers(10, size=count)].reshape(count, 64)
    return np.clip(chosen + 0.1 * random.normal(size=chosen.shape), -1, 1).astype("float32")


def network(outputs, activation=None):
    """Three dense layers; the output layer has the given activation."""
    layers = [keras.layers.Dense(512) for _ in range(2)]
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers[0],
            keras.layers.LeakyReLU(0.2),
            layers[1],
            keras.layers.LeakyReLU(0.2),
            keras.layers.Dense(outputs, activation=activation),
        ]
    )


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    steps: Annotated[int, typer.Option(min=1)] = 300,
    batch: Annotated[int, typer.Option(min=2)] = 256,
    seed: int = 0,
) -> float:
    """Trains a generator against a discriminator; gives the last loss of the generator."""
    keras.utils.set_random_seed(seed)
    generator, discriminator = network(64, "tanh"), network(1)
    scale = loss_scale if loss_scale == "dynamic" else float(loss_scale)
    dtype = None if precision == "mixed" else precision  # None: duotone asks the device
    of_generator, of_discriminator = (
        duotone.enable_mixed_precision_graph_rewrite(  # the one line, for each optimizer
            keras.optimizers.Adam(2e-4, beta_1=0.5), scale, dtype=dtype
        )
        for _ in range(2)
    )
    is_wrapped = precision != "float32"
    is_real = keras.losses.BinaryCrossentropy(from_logits=True)

    def minimize(optimizer, tape, loss, scaled, model):
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def scaled_by(optimizer, loss):
        return optimizer.scale_loss(loss) if is_wrapped else loss

    @tf.function
    def train_step(real):
        noise = tf.random.normal((batch, NOISE))
        with tf.GradientTape() as tape:
            made = discriminator(generator(noise, training=True), training=True)
            seen = discriminator(real, training=True)
            loss_d = is_real(tf.ones_like(seen), seen) + is_real(tf.zeros_like(made), made)
            scaled = scaled_by(of_discriminator, loss_d)
        minimize(of_discriminator, tape, loss_d, scaled, discriminator)
        with tf.GradientTape() as tape:
            made = discriminator(generator(noise, training=True), training=True)
            loss_g = is_real(tf.ones_like(made), made)
            scaled = scaled_by(of_generator, loss_g)
        minimize(of_generator, tape, loss_g, scaled, generator)
        return loss_d, loss_g

    data = tf.data.Dataset.from_tensor_slices(images(4096, seed + 1))
    batches = data.shuffle(4096, seed).repeat().batch(batch, drop_remainder=True).take(steps)
    losses = (0.0, 0.0)
    for number, real in enumerate(batches, 1):
        losses = tuple(map(float, train_step(real)))
        if number % 100 == 0 or number == steps:
            shown = f"step {number}: discriminator {losses[0]:.3f}, generator {losses[1]:.3f}"
            if is_wrapped:
                scales = [o.metrics()["loss_scale"] for o in (of_discriminator, of_generator)]
                shown += f", loss scales {scales[0]:g} and {scales[1]:g}"
            print(shown)
    print(f"trained {steps} steps in {precision}")
    return losses[1]


if __name__ == "__main__":
    try:
        typer.run(train)
    except (ValueError, OSError, duotone.DuotoneError) as error:
        print("tensorflow_gan.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
