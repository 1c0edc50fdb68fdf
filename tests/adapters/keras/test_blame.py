"""``duotone.keras.blame``: what overflows in the training step of a compiled model."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import duotone
import duotone.keras
from duotone.errors import ArgumentError, ArgumentTypeError
from tests.adapters.keras.small import compiled, data, dense
from tests.quick import slow_but

X: Any
Y: Any
X, Y = data()

PLANTED = {
    "exp": lambda h: jnp.exp(h * 20.0),
    "square": lambda h: jnp.square(h * 500.0),
    "product": lambda h: (h * 600.0) * (h * 600.0),
    "cube": lambda h: (h * 100.0) ** 3,
    "sum": lambda h: jnp.cumsum(jnp.abs(h) * 6e4, 0),
    "variance": lambda h: jnp.broadcast_to((h * 900.0).var(-1, keepdims=True), h.shape),
    "norm": lambda h: jnp.sum((h * 400.0) ** 2, -1, keepdims=True) * h,
    "logits": lambda h: (h * 400.0) @ (h * 400.0).T @ h,
    "product of many": lambda h: jnp.cumprod(jnp.abs(h) * 60.0, -1),
    "large constant": lambda h: h * 6e4 * 30.0,
}


class Planted(keras.layers.Layer):
    def __init__(self, plant: Any) -> None:
        super().__init__(name="planted")
        self.plant = plant

    def call(self, x: Any) -> Any:
        return self.plant(x)


def model_with(plant: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((8,)), keras.layers.Dense(8), Planted(plant)]
    model = keras.Sequential([*layers, keras.layers.Dense(8)])
    return compiled(model, keras.optimizers.SGD(1e-12))


@pytest.mark.parametrize("name", slow_but("exp product", PLANTED))
def test_what_was_planted_is_named(name: str) -> None:
    model = model_with(PLANTED[name])
    before = [np.asarray(v.value) for v in model.variables]
    found = duotone.keras.blame(model, X[:8] * 2, Y[:8])
    print(found)
    assert found.verdict == "overflow"
    assert found.first is not None
    assert found.first.scope.endswith("planted")
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, np.asarray(new.value))
    model.fit(X, Y, epochs=1, verbose=0)


def test_a_good_model_and_bad_input() -> None:
    model = dense()
    with pytest.raises(ArgumentTypeError, match=r"blame: the model is 3"):
        duotone.keras.blame(3, X, Y)
    plain = model_with(lambda h: h)
    assert duotone.keras.blame(plain, X[:8], Y[:8]).verdict in ("finite", "loss scale")
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    with pytest.raises(ArgumentError, match=r"blame: model .* is not in mixed precision"):
        duotone.keras.blame(model, X[:8], Y[:8])
