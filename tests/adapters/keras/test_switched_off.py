"""A Keras layer whose ``call`` is switched off, in a model that its optimizer rewrites."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import keras
import numpy as np
import pytest

import duotone
from duotone.errors import ArgumentTypeError
from tests.adapters.keras.small import compiled, data

X, Y = data()


class Offset(keras.layers.Layer):
    """Rows of about 0 after a difference, which no half type keeps; what it learns is its scale."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.kernel = self.add_weight(
            shape=(shape[-1], 8), initializer=keras.initializers.Constant(100.0), name="kernel"
        )

    def call(self, x):
        return self.scale * ((x + 1000.0) @ self.kernel - x.shape[-1] * 1e5)


class Off(Offset):
    @duotone.autocast(enabled=False)
    def call(self, x):
        return super().call(x)


class Full(Offset):
    def call(self, x):
        with duotone.keep_full():
            return super().call(x)


def trained(layer, **settings):
    """Predictions before, the loss of two steps, and the weights after it."""
    model = keras.Sequential([keras.layers.Input((8,)), layer()])
    model = compiled(model, keras.optimizers.SGD(1e-7), **settings)
    before = model.predict(X, verbose=0)
    loss = model.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0).history["loss"]
    return before, np.asarray(loss), model.get_weights()[0]


def errors(got, want):
    return [
        np.max(np.abs(one - other)) / np.max(np.abs(other))
        for one, other in zip(got, want, strict=True)
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_layer_that_is_switched_off_trains_and_predicts_in_float32(dtype):
    want = trained(Offset, wrap=False)
    assert errors(trained(Offset, dtype=dtype), want)[0] > 0.01
    for layer in (Off, Full):
        assert max(errors(trained(layer, dtype=dtype), want)) < 1e-4


def test_a_layer_that_is_switched_off_while_a_model_is_built_is_refused():
    """The model calls the layer later, not the function that is switched off."""
    layer = keras.layers.Dense(8, name="head")
    with pytest.raises(ArgumentTypeError, match=r"KerasTensor.*keep_full=\['\*/NAME/\*'\]"):
        duotone.autocast(layer, enabled=False)(keras.Input((8,)))
