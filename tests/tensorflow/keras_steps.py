"""Ten training steps of Keras and the graphs that TensorFlow runs for them, in one mode a process.

::

    python -m tests.tensorflow.keras_steps original|duotone

It prints a JSON object: by step, for each node its name, op and data types. TensorFlow's other
optimizers are off, since they run before its own mixed precision and after duotone's.
"""

# Keras ships no types.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

OTHERS = """layout_optimizer constant_folding shape_optimization remapping arithmetic_optimization
dependency_optimization loop_optimization function_optimization implementation_selector
disable_model_pruning debug_stripper scoped_allocator_optimization
auto_mixed_precision auto_mixed_precision_mkl""".split()
ORIGINAL = "auto_mixed_precision_onednn_bfloat16"
IMAGES, SERIES, TOKENS, VECTORS = (8, 16, 16, 3), (8, 12, 16), (8, 16), (8, 32)


def _conv(k: Any) -> Any:
    x = inputs = k.Input(IMAGES[1:])
    for features in (16, 32):
        x = k.layers.Conv2D(features, 3, 2, padding="same", use_bias=False)(x)
        x = k.layers.ReLU()(k.layers.BatchNormalization()(x))
    x = k.layers.Dropout(0.2, seed=1)(k.layers.Flatten()(k.layers.MaxPooling2D()(x)))
    return k.Model(inputs, k.layers.Dense(10)(x))


def _depthwise(k: Any) -> Any:
    x = inputs = k.Input(IMAGES[1:])
    x = k.layers.Conv2D(16, 3, 2, padding="same", activation="relu6")(x)
    x = k.layers.DepthwiseConv2D(3, padding="same", activation="hard_swish")(x)
    x = k.layers.SeparableConv2D(32, 3, padding="same", activation="silu")(x)
    return k.Model(inputs, k.layers.Dense(10)(k.layers.GlobalAveragePooling2D()(x)))


def _recurrent(name: str) -> Callable[[Any], Any]:
    def make(k: Any) -> Any:
        layer = getattr(k.layers, name)
        x = inputs = k.Input(SERIES[1:])
        x = layer(16)(k.layers.Bidirectional(layer(16, return_sequences=True))(x))
        return k.Model(inputs, k.layers.Dense(10)(x))

    return make


def _transformer(k: Any) -> Any:
    x = inputs = k.Input(TOKENS[1:], dtype="int32")
    x = k.layers.Embedding(64, 32)(x)
    for _ in range(2):
        x = k.layers.LayerNormalization()(x + k.layers.MultiHeadAttention(4, 8)(x, x))
        wide = k.layers.Dense(64, activation="gelu")(x)
        x = k.layers.LayerNormalization()(x + k.layers.Dense(32)(wide))
    return k.Model(inputs, k.layers.Dense(10)(k.layers.GlobalAveragePooling1D()(x)))


def _unet(k: Any) -> Any:
    x = inputs = k.Input(IMAGES[1:])
    first = k.layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    x = k.layers.Conv2D(32, 3, padding="same")(k.layers.MaxPooling2D()(first))
    x = k.layers.LeakyReLU(0.1)(k.layers.GroupNormalization(4)(x))
    x = k.layers.Conv2DTranspose(16, 3, 2, padding="same", activation="relu")(x)
    x = k.layers.Concatenate()([k.layers.UpSampling2D()(k.layers.MaxPooling2D()(x)), first])
    x = k.layers.GlobalAveragePooling2D()(k.layers.Conv2D(10, 3, padding="same")(x))
    return k.Model(inputs, x)


def _embedding(k: Any) -> Any:
    inputs = k.Input(TOKENS[1:], dtype="int32")
    x = k.layers.GlobalAveragePooling1D()(k.layers.Embedding(64, 32)(inputs))
    return k.Model(inputs, k.layers.Dense(10)(k.layers.Dense(64, activation="relu")(x)))


def _siamese(k: Any) -> Any:
    inputs = k.Input(VECTORS[1:])
    tower = k.Sequential([k.layers.Dense(64, activation="relu"), k.layers.Dense(16)])
    first = k.layers.UnitNormalization()(tower(inputs[:, :16]))
    second = k.layers.UnitNormalization()(tower(inputs[:, 16:]))
    joined = k.layers.Concatenate()([first, second, k.ops.absolute(first - second)])
    return k.Model(inputs, k.layers.Dense(10)(joined))


def _multi_output(k: Any) -> Any:
    inputs = k.Input(VECTORS[1:])
    x = k.layers.Dense(64, activation="tanh")(inputs)
    heads = [k.layers.Dense(10)(x), k.layers.Dense(1, activation="sigmoid")(x)]
    return k.Model(inputs, [*heads, k.layers.Dense(4, activation="softplus")(x)])


MODELS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "conv": (_conv, IMAGES),
    "depthwise": (_depthwise, IMAGES),
    "lstm": (_recurrent("LSTM"), SERIES),
    "gru": (_recurrent("GRU"), SERIES),
    "transformer": (_transformer, TOKENS),
    "unet": (_unet, IMAGES),
    "embedding": (_embedding, TOKENS),
    "siamese": (_siamese, VECTORS),
    "multi-output": (_multi_output, VECTORS),
}
STEPS = (*MODELS, "gan")


def _step(keras: Any, tf: Any, name: str) -> Callable[[], Any]:
    """A step of one model with Adam."""
    make, shape = MODELS[name]
    model, optimizer = make(keras), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    integers = model.inputs[0].dtype.startswith("int")
    x = tf.ones(shape, tf.int32) if integers else tf.random.stateless_normal(shape, (1, 2))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step() -> Any:
        with tf.GradientTape() as tape:
            results = model(x, training=True)
            results = results if isinstance(results, list) else [results]
            loss = loss_of(tf.ones(shape[0]), results[0])
            loss += sum(tf.reduce_mean((other - 1.0) ** 2) for other in results[1:])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def _gan_step(keras: Any, tf: Any) -> Callable[[], Any]:
    """A step of a generator and of a discriminator, each with an optimizer of its own."""
    layers = keras.layers
    generator = keras.Sequential(
        [layers.Input((16,)), layers.Dense(64), layers.LeakyReLU(), layers.Dense(32, "tanh")]
    )
    critic = keras.Sequential([layers.Input((32,)), layers.Dense(64, "elu"), layers.Dense(1)])
    pairs = [(model, keras.optimizers.Adam(1e-3)) for model in (critic, generator)]
    for model, optimizer in pairs:
        optimizer.build(model.trainable_variables)
    noise = tf.random.stateless_normal((8, 16), (1, 2))
    real = tf.random.stateless_normal((8, 32), (3, 4))
    is_real = keras.losses.BinaryCrossentropy(from_logits=True)

    def step() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            made, seen = critic(generator(noise)), critic(real)
            of_critic = is_real(tf.ones((8, 1)), seen) + is_real(tf.zeros((8, 1)), made)
            of_generator = is_real(tf.ones((8, 1)), made)
        for (model, optimizer), loss in zip(pairs, (of_critic, of_generator), strict=True):
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return of_critic

    return step


def _nodes(graph: Any) -> list[list[Any]]:
    """The name, op and data types of each node, by name."""
    nodes = sorted(graph.node, key=lambda node: node.name)
    return [[node.name, node.op, dict(sorted(_types(node)))] for node in nodes]


def _types(node: Any) -> Iterator[tuple[str, Any]]:
    for name, value in node.attr.items():
        if types := value.type or [*value.list.type]:
            yield name, types


def main(mode: str) -> None:
    """Runs the steps in a mode and prints their graphs."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")
    keras, tf = (importlib.import_module(library) for library in ("keras", "tensorflow"))
    context = importlib.import_module("tensorflow.python.eager.context").context()

    from duotone import Policy
    from duotone.tensorflow.live import switch
    from duotone.tensorflow.live.graphs import LiveSettings

    steps = {}
    for name in STEPS:  # traced before the mode is on: names of nodes contain TensorFlow's counter
        keras.utils.set_random_seed(0)
        steps[name] = tf.function(_gan_step(keras, tf) if name == "gan" else _step(keras, tf, name))
        steps[name].get_concrete_function()
    if mode == "duotone":
        switch.enable(LiveSettings("bfloat16", Policy(painter="tensorflow")))
    options = {**dict.fromkeys(OTHERS, False), "disable_model_pruning": True}
    options |= {ORIGINAL: mode == "original", "use_plugin_optimizers": mode == "duotone"}
    tf.config.optimizer.set_experimental_options({**options, "min_graph_nodes": -500})
    found = {}
    for name, step in steps.items():
        context.enable_run_metadata()
        float(step())
        graphs = context.export_run_metadata().function_graphs
        context.disable_run_metadata()
        ran = [run.post_optimization_graph for run in graphs]
        found[name] = _nodes(max(ran, key=lambda graph: len(graph.node)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
