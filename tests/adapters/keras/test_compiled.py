"""Keras' steps are compiled with the device's compiler options where they gain."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import importlib
import logging
from typing import Any

import jax
import keras
import numpy as np
import pytest

import duotone
from duotone.adapters.keras import autocast, compiled
from duotone.policy.policy import Policy
from tests.adapters.keras.small import cross_entropy, half_dots, lowered

TRAINER = importlib.import_module(compiled._TRAINER)
takes_options = pytest.mark.skipif(
    getattr(TRAINER, "jit", None) is not jax.jit, reason="Keras 3.10, or with Flax NNX's variables"
)
ROWS = 4


def convolutional(wrapped: bool, policy: Policy | None = None) -> Any:
    model = keras.Sequential(
        [
            keras.Input((16, 16, 32)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(8),
        ]
    )
    optimizer: Any = keras.optimizers.SGD(0.1)
    if wrapped:
        optimizer = duotone.enable_mixed_precision_graph_rewrite(optimizer, policy=policy)
    model.compile(optimizer, loss=cross_entropy())
    return model


def images() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 16, 16, 32)).astype("float32")
    return x, np.arange(ROWS, dtype="int32")


def run(model: Any) -> list[int]:
    """The half products of what Keras compiles to train, evaluate and predict."""
    x, y = images()
    model.fit(x, y, batch_size=ROWS, verbose=0)
    model.evaluate(x, y, batch_size=ROWS, verbose=0)
    model.predict(x, batch_size=ROWS, verbose=0)
    batches = {"train": (x, y), "test": (x, y), "predict": (x,)}
    return [half_dots(lowered(model, kind, batch), "bf16") for kind, batch in batches.items()]


@takes_options
@pytest.mark.parametrize("way", ["optimizer", "autocast"])
def test_convolutions_are_half(way: str, on_fast_cpu: None) -> None:
    model = convolutional(wrapped=way == "optimizer")
    if way == "autocast":
        autocast(model)
    train, test, predict = run(model)
    assert train > 1
    assert (test, predict) == (1, 1)
    assert TRAINER.jit is jax.jit


@takes_options
def test_the_policy_switches_the_options_off(
    on_fast_cpu: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="duotone"):
        assert run(convolutional(True, Policy(compiler_options=False))) == [0, 0, 0]
    assert "duotone.compiler_options()" not in caplog.text


@takes_options
def test_a_model_without_a_plan_keeps_the_jit_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    convolutional(wrapped=True)  # hooks are in place
    monkeypatch.setattr(compiled, "own_jit", None)
    assert run(convolutional(wrapped=False)) == [0, 0, 0]


def test_an_error_while_keras_makes_a_function_leaves_its_jit() -> None:
    before = getattr(TRAINER, "jit", None)
    with pytest.raises(ZeroDivisionError), compiled.with_own_jit():
        raise ZeroDivisionError
    assert getattr(TRAINER, "jit", None) is before


def test_one_line_names_the_options_where_keras_takes_none(
    on_fast_cpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TRAINER, "jit", lambda *args, **kw: jax.jit(*args, **kw), raising=False)
    with caplog.at_level(logging.INFO, logger="duotone"):
        assert run(convolutional(wrapped=True))[0] == 0
    assert "compiler_options=duotone.compiler_options()" in caplog.text
