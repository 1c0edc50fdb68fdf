"""Small models and data for the tests of optimizers on TensorFlow."""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import duotone
from duotone.tensorflow.live import switch

_random = np.random.default_rng(0)
X = _random.normal(size=(256, 20)).astype(np.float32)
Y = (X @ _random.normal(size=(20, 1))).astype(np.float32)
BATCH = (X[:64], Y[:64])


def bad(x: Any = BATCH[0], row: int = -1) -> Any:
    """Returns inputs with an infinity in one row."""
    x = x.copy()
    x[row, 0] = np.inf
    return x


def wrap(opt: Any, dtype: str = "float16", **arguments: Any) -> Any:
    """Returns a wrapped optimizer; every node counts as one on the device of the half type."""
    opt = duotone.enable_mixed_precision_graph_rewrite(opt, dtype=dtype, **arguments)
    settings = switch.settings()
    assert settings is not None
    switch.enable(dataclasses.replace(settings, any_device=True))
    return opt


def model() -> Any:
    """Returns a dense network with BatchNormalization, always with the same weights."""
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((20,)),
            layers.Dense(64),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dense(1),
        ]
    )


def step_of(opt: Any, trained: Any) -> Any:
    """Returns a step of one's own: it takes a batch, updates the model and returns the loss."""
    import tensorflow as tf

    def step(x: Any, y: Any) -> Any:
        with opt.guard(trained):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((trained(x, training=True) - y) ** 2)
                scaled = opt.scale_loss(loss)
            gradients = tape.gradient(scaled, trained.trainable_variables)
            opt.apply(gradients, trained.trainable_variables)
        return loss

    return step


def compiled(opt: Any, **arguments: Any) -> Any:
    """Returns the network, compiled."""
    made = model()
    made.compile(optimizer=opt, loss="mse", **{"jit_compile": False, **arguments})
    return made


def values(made: Any) -> list[Any]:
    """Returns weights, statistics, slots and iterations of a model."""
    inner = made.optimizer.inner_optimizer
    return [variable.numpy() for variable in [*made.variables, *inner.variables]]


def same_bits(left: list[Any], right: list[Any]) -> bool:
    """Returns True if two lists of arrays are equal bit by bit."""
    return [a.tobytes() for a in left] == [b.tobytes() for b in right]


def half_operations() -> set[str]:
    """Returns the names of all half nodes since the rewrite was switched on."""
    return {
        name
        for graph in switch.rewritten_graphs()
        for name, types in graph.result.painting.items()
        if any(precision != "f32" for precision in types.values())
    }
