# python -m benchmarks.tensorflow_live
"""Steps of training in TensorFlow on this CPU: float32, TensorFlow's own bfloat16 pass, duotone's.

::

    python -m benchmarks.tensorflow_live                 all models, a table
    python -m benchmarks.tensorflow_live dense lstm      some of them
    python -m benchmarks.tensorflow_live --rounds 20

Each model trains in a process of its own. The modes take turns in every round; a ratio is the
median over rounds of a mode's time over float32's in the same round. It needs TensorFlow, which the
environment of ``make test-tensorflow`` has.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks._common import Bar, Result, in_a_process, table, write

QUESTION = "How long does a step of training in TensorFlow take on this CPU?"
ROUNDS = 11
MODES = ("float32", "TensorFlow's pass", "tensorflow", "mincut", "duotone")
_FIRST_CALLS = (*MODES[:2], "duotone", "tensorflow", "mincut")
"""The order of first calls: duotone's share includes what a process loads for its first rewrite."""
_OWN_PASS = "auto_mixed_precision_onednn_bfloat16"


def _convnet(keras: Any) -> Any:
    layers = keras.layers
    blocks = [keras.Input((64, 64, 3)), layers.Conv2D(64, 3, padding="same")]
    for features in (64, 128, 256):
        blocks += [
            layers.Conv2D(features, 3, 2, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(features, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
        ]
    return keras.Sequential([*blocks, layers.GlobalAveragePooling2D(), layers.Dense(100)]), 16


def application(name: str, side: int, batch: int) -> Callable[[Any], Any]:
    """A model of ``keras.applications`` with random weights and 100 classes, without softmax."""

    def make(keras: Any) -> Any:
        settings = {"weights": None, "classes": 100, "classifier_activation": None}
        build = getattr(keras.applications, name)
        return build(input_shape=(side, side, 3), **settings), batch

    return make


def _dense(keras: Any) -> Any:
    layers = [keras.layers.Dense(2048, activation="relu") for _ in range(4)]
    return keras.Sequential([keras.Input((2048,)), *layers, keras.layers.Dense(100)]), 512


def _lstm(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32, 128)),
            layers.LSTM(512, return_sequences=True),
            layers.LSTM(512),
            layers.Dense(100),
        ]
    ), 64


def _transformer(keras: Any) -> Any:
    layers = keras.layers
    x = inputs = keras.Input((128,), dtype="int32")
    x = layers.Embedding(1000, 256)(x)
    for _ in range(4):
        h = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(8, 32)(h, h)])
        h = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.Dense(256)(layers.Dense(1024, activation="gelu")(h))])
    return keras.Model(inputs, layers.Dense(100)(layers.GlobalAveragePooling1D()(x))), 16


def _unet(keras: Any) -> Any:
    layers = keras.layers
    x = inputs = keras.Input((64, 64, 3))
    skips = []
    for features in (32, 64, 128):
        x = layers.Conv2D(features, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    for features in (128, 64, 32):
        x = layers.Conv2DTranspose(features, 3, 2, padding="same", activation="relu")(x)
        x = layers.Concatenate()([x, skips.pop()])
        x = layers.Conv2D(features, 3, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(100, 1)(x))
    return keras.Model(inputs, x), 8


def _mixer(keras: Any) -> Any:
    layers = keras.layers
    x = inputs = keras.Input((64, 64, 3))
    x = layers.Reshape((64, 256))(layers.Conv2D(256, 8, 8)(x))
    for _ in range(4):
        h = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        h = layers.Dense(64)(layers.Dense(256, activation="gelu")(h))
        x = layers.Add()([x, layers.Permute((2, 1))(h)])
        h = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.Dense(256)(layers.Dense(1024, activation="gelu")(h))])
    return keras.Model(inputs, layers.Dense(100)(layers.GlobalAveragePooling1D()(x))), 32


MODELS: dict[str, Callable[[Any], Any]] = {
    "convnet": _convnet,
    "resnet50": application("ResNet50", 96, 8),
    "mobilenet": application("MobileNetV3Small", 96, 16),
    "dense": _dense,
    "lstm": _lstm,
    "transformer": _transformer,
    "unet": _unet,
    "mixer": _mixer,
}


def _options(mode: str) -> dict[str, Any]:
    """TensorFlow's options for a mode; another number for each keeps their functions apart."""
    return {
        "use_plugin_optimizers": mode in MODES[2:],
        _OWN_PASS: mode == MODES[1],
        "min_graph_nodes": -100 - MODES.index(mode),
    }


def measure(name: str, rounds: int) -> dict[str, Any]:
    """The steps of one model in all modes, in this process."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")
    keras, tf = (importlib.import_module(library) for library in ("keras", "tensorflow"))

    from duotone import Policy
    from duotone.tensorflow.live import switch
    from duotone.tensorflow.live.graphs import LiveSettings

    keras.utils.set_random_seed(0)
    model, batch = MODELS[name](keras)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    shape = (batch, *model.input_shape[1:])
    integers = model.inputs[0].dtype.startswith("int")
    x = tf.random.uniform(shape, 0, 1000, tf.int32) if integers else tf.random.normal(shape)
    y = tf.random.uniform((batch,), 0, 100, tf.int32)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        with tf.name_scope(switch.FLOAT32_SCOPE):
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    found: dict[str, Any] = {mode: {"times": []} for mode in MODES}
    steps = {mode: tf.function(step) for mode in MODES}
    for mode in _FIRST_CALLS:
        switch.disable()
        if mode in MODES[2:]:
            policy = Policy(painter=mode, keep_full=(f"*{switch.FLOAT32_SCOPE}*",))
            switch.enable(LiveSettings("bfloat16", policy))
        tf.config.optimizer.set_experimental_options(_options(mode))
        steps[mode].get_concrete_function()
        start = time.perf_counter()
        float(steps[mode]())
        found[mode]["first"] = time.perf_counter() - start
        if switch.is_enabled():
            done = max(switch.rewritten_graphs(), key=lambda graph: graph.nodes)
            found[mode] |= {
                "nodes": done.nodes,
                "half": done.half,
                "casts": len(done.result.casts),
                "seconds": done.seconds,
            }
    for _ in range(rounds):
        for mode in MODES:
            tf.config.optimizer.set_experimental_options(_options(mode))
            start = time.perf_counter()
            float(steps[mode]())
            found[mode]["times"].append(time.perf_counter() - start)
    return found


def _row(name: str, found: dict[str, Any]) -> tuple[list[Any], list[float]]:
    base = found[MODES[0]]["times"]
    ratios = [
        statistics.median(a / b for a, b in zip(found[mode]["times"], base, strict=True))
        for mode in MODES
    ]
    ours = found["duotone"]
    counts = [ours["nodes"], ours["half"], ours["casts"], ours["seconds"] / ours["first"]]
    shown = [f"{ratio:.3f}" for ratio in ratios[1:]]
    return [name, f"{statistics.median(base) * 1e3:.1f}", *shown, *counts], ratios


def _bars(every: dict[str, list[float]], shares: list[float]) -> list[Bar]:
    means = [statistics.geometric_mean(column) for column in zip(*every.values(), strict=True)]
    ours = {name: ratios[-1] for name, ratios in every.items()}
    return [
        Bar("duotone, geometric mean of time over float32's", means[-1], 0.80, "x"),
        Bar("duotone over TensorFlow's pass, geometric mean", means[-1] / means[1], 1.0, "x"),
        *(Bar(f"duotone, {name}", ratio, 1.03, "x") for name, ratio in ours.items()),
        Bar("rewrite, largest share of the first call", max(shares), 0.15, "of it"),
    ]


def main() -> None:
    """Measures, prints and, of all models, writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.rounds)))
        return
    rows, every, figures = [], {}, {}
    for name in arguments.models or MODELS:
        command = (sys.executable, "-m", "benchmarks.tensorflow_live", "--one", name)
        figures[name] = in_a_process(*command, "--rounds", str(arguments.rounds))
        row, every[name] = _row(name, figures[name])
        rows.append(row)
        print(*row, flush=True)
    head = ["model", "f32 ms", *MODES[1:], "nodes", "half", "casts", "rewrite/first"]
    bars = _bars(every, [row[-1] for row in rows])
    command, text = "python -m benchmarks.tensorflow_live", table(head, rows)
    result = Result("tensorflow_live", QUESTION, command, bars, text, figures)
    if arguments.models:
        print(result.text)
    else:
        write(result)


if __name__ == "__main__":
    main()
