"""``duotone.keras.calibrate``: what is measured of a model holds for its training step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import duotone
import duotone.keras
from duotone.adapters.keras.steps import MEASURED
from duotone.errors import ArgumentError, ArgumentTypeError, CalibrationError
from tests.adapters.keras.small import compiled, data, dense

X: Any
Y: Any
X, Y = data()


def weights(model: Any) -> list[Any]:
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(v.value) for v in variables if "seed" not in v.path]


@keras.saving.register_keras_serializable(package="duotone tests")
class Cube(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x * x * x


def cubed(**settings: Any) -> Any:
    layers = [keras.layers.Input((8,)), keras.layers.Dense(8), Cube(name="cube")]
    model = keras.Sequential([*layers, keras.layers.Dense(8)])
    return compiled(model, keras.optimizers.SGD(1e-12), **settings)


def test_the_step_that_is_measured_is_the_one_that_fit_paints(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = cubed()
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    before = weights(model)
    measured = duotone.keras.calibrate(model, X[:8] * 1e3, Y[:8])
    for old, new in zip(before, weights(model), strict=True):
        np.testing.assert_array_equal(old, new)
    assert measured.batches == 1
    assert any(v.name == "sequential/cube/mul" or v.name == "cube/mul" for v in measured.values)
    assert "overflows" in str(measured)
    more = duotone.keras.calibrate(model, X[8:], Y[8:], np.ones(8))
    assert more.batches == 1  # with sample weights it is another program
    again = duotone.keras.calibrate(model, X[8:], Y[8:])
    assert again.batches == 2

    uninformed = cubed()
    uninformed.fit(X * 1e3, Y, batch_size=8, epochs=1, verbose=0, shuffle=False)
    assert uninformed.optimizer.metrics()["skipped_steps"] == 2

    skipped = model.optimizer.metrics()["skipped_steps"]
    history = model.fit(X * 1e3, Y, batch_size=8, epochs=1, verbose=0, shuffle=False)
    assert np.isfinite(history.history["loss"]).all()
    assert model.optimizer.metrics()["skipped_steps"] == skipped
    assert not any("painted without" in message for message in caplog.messages)
    model.evaluate(X, Y, verbose=0)  # another program, which is not measured, and need not be
    assert not any("painted without" in message for message in caplog.messages)


def test_dropout_batch_statistics_and_steps_in_python() -> None:
    model = compiled(dense(batch_norm=True, dropout=0.5), jit_compile=False)
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    before = weights(model)
    measured = duotone.keras.calibrate(model, X, Y)
    for old, new in zip(before, weights(model), strict=True):
        np.testing.assert_array_equal(old, new)
    assert MEASURED[model].calibrations == (measured,)
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)


def test_an_autocast_model() -> None:
    model = duotone.keras.autocast(dense(), dtype="bfloat16")
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    measured = duotone.keras.calibrate(model, X, np.zeros((16, 8), "float32"))
    assert measured.values
    model.fit(X, np.zeros((16, 8), "float32"), verbose=0)


def test_what_cannot_be_measured() -> None:
    plain = compiled(wrap=False)
    with pytest.raises(ArgumentError, match="not in mixed precision"):
        duotone.keras.calibrate(plain, X, Y)
    with pytest.raises(ArgumentTypeError, match="pass a Keras model"):
        duotone.keras.calibrate(3, X, Y)
    with pytest.raises(ArgumentError, match="run_eagerly=True"):
        duotone.keras.calibrate(compiled(run_eagerly=True), X, Y)
    model = compiled()
    with pytest.raises(CalibrationError, match="NaN"):
        duotone.keras.calibrate(model, X * np.nan, Y)
    model.fit(X, Y, verbose=0)  # as if nothing had been
