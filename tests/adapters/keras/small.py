"""Small models and data, and a look into what Keras compiled."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import inspect
import re
from typing import Any

import keras
import numpy as np

from duotone.adapters.keras import enable

WRAPPED = ("make_train_function", "make_test_function", "make_predict_function")


def data(rows=16, features=8, classes=8, seed=0):
    """Separable classes: float32[rows, features], int32[rows]."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype("float32")
    return x, np.argmax(x[:, :classes], axis=1).astype("int32")


def bad(x):
    """A batch whose first row no half type survives."""
    x = x.copy()
    x[0] = np.inf
    return x


def dense(batch_norm=False, dropout=0.0, classes=8, features=8) -> Any:
    layers = [keras.layers.Input((features,)), keras.layers.Dense(8, activation="relu")]
    if batch_norm:
        layers.append(keras.layers.BatchNormalization(momentum=0.5))
    if dropout:
        layers.append(keras.layers.Dropout(dropout))
    return keras.Sequential([*layers, keras.layers.Dense(classes)])


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(
    model: Any = None,
    inner: Any = None,
    *,
    wrap: bool = True,
    loss_scale: Any = "dynamic",
    dtype: Any = "float16",
    **settings: Any,
) -> Any:
    """A compiled model; ``settings`` are those of ``compile``."""
    model = dense() if model is None else model
    optimizer = keras.optimizers.SGD(0.1) if inner is None else inner
    if wrap:
        optimizer = enable(optimizer, loss_scale, dtype=dtype)
    model.compile(optimizer=optimizer, **({"loss": cross_entropy()} | settings))
    return model


def run_all(model):
    """Each way to run a model."""
    x, y = data()
    model.fit(x, y, batch_size=16, verbose=0)
    model.evaluate(x, y, batch_size=16, verbose=0)
    model.predict(x, batch_size=16, verbose=0)


def jitted(function):
    """The function under ``jax.jit`` inside one that Keras made."""
    seen, rest = [], [function]
    while rest:
        one = rest.pop()
        if hasattr(one, "lower"):
            return one
        if inspect.isfunction(one) and one not in seen:
            seen.append(one)
            rest += [cell.cell_contents for cell in one.__closure__ or ()]
    raise AssertionError("Keras compiled nothing")


def lowered(model, kind, batch):
    """The text of the program that Keras compiled for ``train``, ``test`` or ``predict``."""
    if hasattr(model, "_record_training_state_sharding_spec"):  # Keras 3.10
        model._record_training_state_sharding_spec()
    state = model._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        optimizer_variables=kind == "train",
        metrics_variables=kind != "predict",
    )
    return jitted(getattr(model, f"{kind}_function")).lower(state, batch).as_text()


def half_dots(text, half="f16"):
    """How many matrix products of a program take half operands."""
    dots = [line for line in text.splitlines() if re.search(r"dot_general|convolution\(", line)]
    assert dots, "a program without matrix products shows nothing"
    return sum(f"x{half}>" in line.rpartition("->")[0] for line in dots)


def is_half(model, kind, batch, half="f16"):
    return half_dots(lowered(model, kind, batch), half) > 0


def values(variables):
    return [np.asarray(variable.value) for variable in variables]


def same_bits(left, right):
    """Whether two lists of arrays are equal in every bit (NaN equals itself)."""
    assert len(left) == len(right)
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(left, right, strict=True)
    )
