"""``Policy(heal=True)`` of a Keras optimizer: ``fit`` heals, and a saved model stays healed."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false, reportFunctionMemberAccess=false

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import duotone
import duotone.keras
from duotone.errors import ArgumentError
from tests.adapters.keras.small import compiled, cross_entropy, data, dense

X: Any
Y: Any
X, Y = data(rows=64)
HEAL = duotone.Policy(heal=True)
slow = pytest.mark.slow
PLANTED = [
    pytest.param(lambda h: jnp.exp(h * 20.0), id="exp"),
    pytest.param(lambda h: (h * 300.0) @ (h * 300.0).T @ h, id="logits", marks=slow),
    pytest.param(
        lambda h: jnp.broadcast_to((h * 900.0).var(-1, keepdims=True), h.shape),
        id="variance",
        marks=slow,
    ),
    pytest.param(lambda h: jnp.cumsum(jnp.abs(h) * 6e4, 0), id="sum", marks=slow),
]


@keras.saving.register_keras_serializable(package="tests")
class Plant(keras.layers.Layer):
    """A layer that overflows; what it computes is set on the class."""

    calculate: Any = None

    def call(self, x: Any) -> Any:
        return jnp.arcsinh(type(self).calculate(x) @ jnp.ones((8, 8))) / 10


def model_with(plant: Any) -> Any:
    Plant.calculate = staticmethod(plant)
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(8),
            Plant(name="planted"),
            keras.layers.Dense(8),
        ]
    )


def healing(model: Any, policy: Any = HEAL, **settings: Any) -> Any:
    optimizer = duotone.keras.enable(keras.optimizers.SGD(1e-3), dtype="float16", policy=policy)
    model.compile(optimizer, loss=cross_entropy(), **settings)
    return model


def fit(model: Any, epochs: int = 1) -> list[float]:
    losses = []
    for _ in range(epochs):
        losses += model.fit(X, Y, batch_size=16, epochs=1, verbose=0).history["loss"]
        jax.effects_barrier()
    return losses


def said(caplog: Any) -> list[str]:
    return [
        r.getMessage()
        for r in caplog.records
        if r.name == "duotone" and r.levelno == logging.WARNING
        if "skipped, because" not in r.getMessage()  # the count of skipped steps
    ]


@pytest.mark.parametrize("plant", PLANTED)
def test_fit_heals_and_a_loaded_model_need_not(plant: Any, tmp_path: Any, caplog: Any) -> None:
    model = healing(model_with(plant))
    first, *_, last = fit(model, 4)
    assert not np.isfinite(first)
    assert np.isfinite(last)
    assert model.optimizer.metrics()["last_finite"]
    (line,) = said(caplog)
    assert "planted/" in line
    assert "test_heal.py" in line
    assert model.optimizer.pins
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.pins == model.optimizer.pins
    assert loaded.optimizer.policy.heal == 3
    skipped = loaded.optimizer.metrics()["skipped_steps"]
    assert np.isfinite(fit(loaded)).all()
    assert loaded.optimizer.metrics()["skipped_steps"] == skipped
    assert len(said(caplog)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"jit_compile": False}, {"steps_per_execution": 2}])
def test_however_keras_runs_the_step(settings: Any) -> None:
    model = healing(model_with(lambda h: jnp.exp(h * 20.0)), **settings)
    assert np.isfinite(fit(model, 4)[-1])
    assert model.optimizer.pins


def test_a_loss_scale_that_comes_down_pins_nothing(caplog: Any) -> None:
    model = dense()
    scale = duotone.DynamicLossScale(2.0**24)
    optimizer = duotone.keras.enable(
        keras.optimizers.SGD(1e-3), scale, dtype="float16", policy=duotone.Policy(heal=1)
    )
    model.compile(optimizer, loss=cross_entropy())
    for _ in range(3):
        model.fit(X * 100, Y, batch_size=16, verbose=0)
        jax.effects_barrier()
    assert optimizer.metrics()["skipped_steps"] != 0
    assert optimizer.metrics()["last_finite"]
    assert optimizer.pins == ()
    assert not said(caplog)


def test_the_warning_of_the_callback_names_the_operation(caplog: Any) -> None:
    model = healing(model_with(lambda h: jnp.exp(h * 20.0)), None)
    model.optimizer.alarm.warn_after = 1
    for _ in range(6):
        fit(model)
        model.optimizer.metrics()
    warned, named = said(caplog)
    assert "a line will name the operation" in warned
    assert "planted/exp" in named
    assert "Policy(keep_full=[" in named
    assert model.optimizer.pins == ()


def test_a_model_that_no_optimizer_watches_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Wrap the optimizer"):
        duotone.keras.autocast(dense(), dtype="float16", policy=HEAL)
    model = compiled()
    model.compile(
        duotone.keras.enable(keras.optimizers.SGD(), dtype="float16", policy=HEAL),
        loss=cross_entropy(),
    )
    model.second = duotone.keras.enable(keras.optimizers.SGD(), dtype="float16", policy=HEAL)
    with pytest.raises(ArgumentError, match="needs exactly one wrapped optimizer"):
        fit(model)


@pytest.mark.parametrize("policy", [None, pytest.param(HEAL, marks=slow)])
def test_skips_of_a_loss_that_is_nan_in_float32_too_are_not_halfs_fault(
    policy: Any, caplog: Any
) -> None:
    """Attention over a row that is padding only; a skipped batch does not show in the loss."""

    def attend(h: Any) -> Any:
        padding = jnp.abs(h).max(-1, keepdims=True) < 0.02
        return jax.nn.softmax(jnp.where(padding, -jnp.inf, h), -1)

    model = healing(model_with(attend), policy)
    x = X.copy()
    x[0] = 0.0  # in the first batch of each epoch
    callback = duotone.keras.LossScaleCallback()
    history = model.fit(
        x, Y, batch_size=16, epochs=30, verbose=0, shuffle=False, callbacks=[callback]
    ).history
    jax.effects_barrier()
    assert np.isfinite(history["loss"]).all()
    assert history["skipped_steps"][-1] >= 18
    lines = [line for line in said(caplog) if "half type is not why the step is skipped" in line]
    assert len(lines) == 1
    assert "test_heal.py" in lines[0]
    assert model.optimizer.pins == ()
