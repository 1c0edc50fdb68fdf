# python -m benchmarks.tensorflow_training
"""Does training in TensorFlow end where float32's ends? Ten Keras models, three seeds, three modes.

::

    python -m benchmarks.tensorflow_training                 all models, a table
    python -m benchmarks.tensorflow_training lstm gru        some of them

float16 is painted as for a GPU and runs on this CPU's kernels. A figure is the final loss on data
that the model has not seen, the mean over seeds; "noise" is how far float32's seeds are apart. Each
model trains in a process of its own. It needs TensorFlow, which the environment of ``make
test-tensorflow`` has.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._common import Bar, Result, in_a_process, table, write

QUESTION = "Does training in TensorFlow end where float32's ends?"
SEEDS = (0, 1, 2)
MODES = ("float32", "float16", "bfloat16")
_LEAST_NOISE = 0.005
"""A loss that no seed changes may still differ by this."""
_COUNT, _BATCH, _EPOCHS = 768, 64, 6


def _images(rng: Any, side: int = 16) -> tuple[Any, Any]:
    y = rng.integers(0, 10, _COUNT)
    means = rng.normal(size=(10, side, side, 3))
    return means[y] + 2.0 * rng.normal(size=(_COUNT, side, side, 3)), y


def _series(rng: Any) -> tuple[Any, Any]:
    y = rng.integers(0, 4, _COUNT)
    time = np.arange(24)[None, :, None]
    waves = np.sin(time * (0.3 + 0.2 * y[:, None, None]) + rng.normal(size=(_COUNT, 1, 4)))
    return waves + 0.5 * rng.normal(size=(_COUNT, 24, 4)), y


def _tokens(rng: Any) -> tuple[Any, Any]:
    y = rng.integers(0, 4, _COUNT)
    return (y[:, None] * 8 + rng.integers(0, 20, (_COUNT, 16))).astype("int32"), y


def _vectors(rng: Any) -> tuple[Any, Any]:
    x = rng.normal(size=(_COUNT, 32))
    return x, np.argmax(x[:, :5] + 0.3 * rng.normal(size=(_COUNT, 5)), axis=1)


def _mlp(k: Any, x: Any) -> Any:
    h = k.layers.Dense(128, activation="relu")(k.layers.Dense(128, activation="gelu")(x))
    return k.layers.Dense(10)(h)


def _convnet(k: Any, x: Any) -> Any:
    h = x
    for features in (16, 32):
        h = k.layers.Conv2D(features, 3, 2, padding="same", use_bias=False)(h)
        h = k.layers.ReLU()(k.layers.BatchNormalization()(h))
    return k.layers.Dense(10)(k.layers.GlobalAveragePooling2D()(h))


def _depthwise(k: Any, x: Any) -> Any:
    h = k.layers.Conv2D(24, 3, 2, padding="same")(x)
    h = k.layers.DepthwiseConv2D(3, padding="same", activation="relu6")(h)
    h = k.layers.Conv2D(48, 1, activation="hard_swish")(h)
    return k.layers.Dense(10)(k.layers.GlobalAveragePooling2D()(h))


def _unet(k: Any, x: Any) -> Any:
    first = k.layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    h = k.layers.Conv2D(32, 3, padding="same", activation="relu")(k.layers.MaxPooling2D()(first))
    h = k.layers.Conv2DTranspose(16, 3, 2, padding="same", activation="relu")(h)
    h = k.layers.Conv2D(16, 3, padding="same")(k.layers.Concatenate()([h, first]))
    return k.layers.Dense(10)(k.layers.GlobalAveragePooling2D()(h))


def _lstm(k: Any, x: Any) -> Any:
    h = k.layers.LSTM(32, return_sequences=True)(x)
    return k.layers.Dense(10)(k.layers.LSTM(32)(h))


def _gru(k: Any, x: Any) -> Any:
    return k.layers.Dense(10)(k.layers.Bidirectional(k.layers.GRU(32))(x))


def _transformer(k: Any, x: Any) -> Any:
    h = k.layers.Embedding(64, 32)(x)
    for _ in range(2):
        h = k.layers.LayerNormalization()(h + k.layers.MultiHeadAttention(4, 8)(h, h))
        f = k.layers.Dense(32)(k.layers.Dense(64, activation="gelu")(h))
        h = k.layers.LayerNormalization()(h + f)
    return k.layers.Dense(10)(k.layers.GlobalAveragePooling1D()(h))


def _embedding(k: Any, x: Any) -> Any:
    h = k.layers.GlobalAveragePooling1D()(k.layers.Embedding(64, 32)(x))
    return k.layers.Dense(10)(k.layers.Dense(64, activation="relu")(h))


def _siamese(k: Any, x: Any) -> Any:
    tower = k.Sequential([k.layers.Dense(64, activation="relu"), k.layers.Dense(16)])
    first = k.layers.UnitNormalization()(tower(x[:, :16]))
    second = k.layers.UnitNormalization()(tower(x[:, 16:]))
    return k.layers.Dense(10)(k.layers.Concatenate()([first, second, first * second]))


def _wavenet(k: Any, x: Any) -> Any:
    h = k.layers.Conv1D(32, 1)(x)
    for rate in (1, 2, 4):
        gate = k.layers.Conv1D(32, 2, padding="causal", dilation_rate=rate, activation="sigmoid")
        tanh = k.layers.Conv1D(32, 2, padding="causal", dilation_rate=rate, activation="tanh")
        h = h + k.layers.Conv1D(32, 1)(gate(h) * tanh(h))
    return k.layers.Dense(10)(k.layers.GlobalAveragePooling1D()(h))


MODELS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], tuple[Any, Any]]]] = {
    "mlp": (_mlp, _vectors),
    "convnet": (_convnet, _images),
    "depthwise": (_depthwise, _images),
    "unet": (_unet, _images),
    "lstm": (_lstm, _series),
    "gru": (_gru, _series),
    "wavenet": (_wavenet, _series),
    "transformer": (_transformer, _tokens),
    "embedding": (_embedding, _tokens),
    "siamese": (_siamese, _vectors),
}


def measure(name: str) -> dict[str, list[float]]:
    """The final losses of one model, by mode, in this process."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")
    keras = importlib.import_module("keras")

    import duotone
    from duotone.tensorflow.live import switch

    network, data = MODELS[name]
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    half: dict[str, int] = {}
    for seed in SEEDS:
        x, y = data(np.random.default_rng(seed))
        x = x if x.dtype == np.int32 else x.astype(np.float32)
        for mode in MODES:
            switch.disable()
            keras.utils.set_random_seed(seed)
            inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
            model = keras.Model(inputs, network(keras, inputs))
            optimizer = keras.optimizers.Adam(3e-3)
            if mode != "float32":
                policy = duotone.Policy(ignore_performance=True)
                optimizer = duotone.enable_mixed_precision_graph_rewrite(
                    optimizer, dtype=mode, policy=policy
                )
                settings = switch.settings()
                assert settings is not None
                switch.enable(dataclasses.replace(settings, any_device=True))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
            kept = _COUNT - 2 * _BATCH
            model.fit(x[:kept], y[:kept], batch_size=_BATCH, epochs=_EPOCHS, verbose=0)
            half[mode] = max((graph.half for graph in switch.rewritten_graphs()), default=0)
            found[mode].append(float(model.evaluate(x[kept:], y[kept:], verbose=0)))
    assert half["float16"] > 0
    return found


def _row(name: str, found: dict[str, list[float]]) -> tuple[list[Any], float]:
    """A line of the table, and the largest difference from float32 in units of its noise."""
    means = [statistics.mean(found[mode]) for mode in MODES]
    differences = [
        statistics.mean(a - b for a, b in zip(found[mode], found["float32"], strict=True))
        for mode in MODES[1:]
    ]
    noise = max(statistics.stdev(found["float32"]), _LEAST_NOISE)
    worst = max(map(abs, differences)) / noise
    shown = [f"{mean:.4f}" for mean in means] + [f"{value:+.4f}" for value in differences]
    return [name, *shown, f"{noise:.4f}"], worst


def main() -> None:
    """Measures, prints and, of all models, writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    rows, figures, bars = [], {}, []
    for name in arguments.models or MODELS:
        command = (sys.executable, "-m", "benchmarks.tensorflow_training", "--one", name)
        figures[name] = in_a_process(*command)
        row, worst = _row(name, figures[name])
        rows.append(row)
        bars.append(Bar(f"{name}: difference from float32 over its noise", worst, 1.0, "x"))
        print(*row, flush=True)
    text = table(["model", *MODES, "f16-f32", "bf16-f32", "noise"], rows)
    command = "python -m benchmarks.tensorflow_training"
    result = Result("tensorflow_training", QUESTION, command, bars, text, figures)
    if arguments.models:
        print(text)
    else:
        write(result)


if __name__ == "__main__":
    main()
