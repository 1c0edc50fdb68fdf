"""The switch for a whole process: plain models as if their optimizers had been wrapped."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest

from duotone.adapters.keras import LossScaleOptimizer, enable_everywhere
from duotone.devices import choose_half
from duotone.errors import ArgumentError
from tests.adapters.keras.small import bad, compiled, data, dense, is_half, same_bits, values

X, Y = data()
BATCH = (X, Y, None)


@pytest.fixture(autouse=True)
def fast_device(monkeypatch):
    """A device on which float16 is fast."""
    choice = choose_half("gpu", compute_capability="7.5")
    monkeypatch.setattr("duotone.transforms.mixed_function.current_choice", lambda: choice)


@pytest.mark.slow
def test_both_switches():
    enable_everywhere(rewrite=True, loss_scaling=True)
    model = compiled(inner=keras.optimizers.Adam(0.01), wrap=False)
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    model.predict(X, verbose=0)
    assert isinstance(model.optimizer, LossScaleOptimizer)
    assert model.optimizer.metrics()["loss_scale"] == 2.0**15
    assert int(model.optimizer.iterations.value) == 4
    before = values(model.trainable_variables)
    model.train_on_batch(bad(X), Y)
    assert same_bits(before, values(model.trainable_variables))
    assert is_half(model, "train", BATCH)
    assert is_half(model, "predict", (X,))


@pytest.mark.parametrize("rewrite", [True, False])
def test_a_loss_scale_of_ones_own(rewrite):
    enable_everywhere(rewrite=rewrite, loss_scaling=True, loss_scale=64)
    model = compiled(wrap=False)
    model.train_on_batch(X, Y)
    assert model.optimizer.metrics()["loss_scale"] == 64
    with pytest.raises(ArgumentError, match="the only string accepted"):
        enable_everywhere(rewrite=rewrite, loss_scaling=True, loss_scale="fast")


def test_rewriting_alone():
    enable_everywhere(rewrite=True, loss_scaling=False)
    optimizer = keras.optimizers.SGD(0.1)
    model = compiled(inner=optimizer, wrap=False)
    model.train_on_batch(X, Y)
    model.predict_on_batch(X)
    assert model.optimizer is optimizer
    assert is_half(model, "train", BATCH)
    assert is_half(model, "predict", (X,))


def test_loss_scaling_alone():
    enable_everywhere(rewrite=False, loss_scaling=True)
    model = compiled(wrap=False)
    model.fit(X, Y, verbose=0)
    assert model.optimizer.metrics()["loss_scale"] == 2.0**15
    assert not is_half(model, "train", BATCH)
    model.train_on_batch(bad(X), Y)
    assert model.optimizer.metrics()["skipped_steps"] == 1


def test_the_optimizer_that_the_source_holds_stays_in_use():
    enable_everywhere(rewrite=True, loss_scaling=True)
    optimizer = keras.optimizers.SGD(0.1)
    model = compiled(inner=optimizer, wrap=False)
    model.fit(X, Y, verbose=0)
    optimizer.learning_rate = 0.0
    before = values(model.trainable_variables)
    model.fit(X, Y, verbose=0)
    assert same_bits(before, values(model.trainable_variables))
    assert int(optimizer.iterations.value) == 2


def test_saved_and_loaded(tmp_path):
    """What is saved is a model with a wrapped optimizer, its state included."""
    enable_everywhere(rewrite=True, loss_scaling=True)
    model = compiled(inner=keras.optimizers.Adam(0.01), wrap=False)
    for x in (X, bad(X)):
        model.train_on_batch(x, Y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.metrics() == model.optimizer.metrics()
    for one in (model, loaded):
        one.train_on_batch(X, Y)
    assert same_bits(values(model.variables), values(loaded.variables))


def test_the_half_type_can_be_named():
    enable_everywhere(rewrite=True, loss_scaling=True, dtype="bfloat16")
    model = compiled(wrap=False)
    model.train_on_batch(X, Y)
    assert is_half(model, "train", BATCH, "bf16")
    assert model.optimizer.metrics()["loss_scale"] == 1.0
    with pytest.raises(ValueError, match="float32"):
        enable_everywhere(rewrite=True, loss_scaling=True, dtype="float32")
    with pytest.raises(TypeError, match="enable_everywhere: rewrite is 'no'; pass True or False"):
        enable_everywhere(rewrite="no", loss_scaling=True)  # pyright: ignore[reportArgumentType]


def test_switched_off_again():
    enable_everywhere(rewrite=True, loss_scaling=True)
    enable_everywhere(rewrite=False, loss_scaling=False)
    optimizer = keras.optimizers.SGD(0.1)
    model = compiled(inner=optimizer, wrap=False)
    model.train_on_batch(X, Y)
    assert model.optimizer is optimizer
    assert not is_half(model, "train", BATCH)


def test_models_in_mixed_precision_already_are_left_alone_with_a_line_each(caplog):
    enable_everywhere(rewrite=True, loss_scaling=True)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    mixed = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(8, dtype="mixed_bfloat16", name="low")]
    )
    own = compiled()
    with caplog.at_level(logging.WARNING, "duotone"):
        models = [
            compiled(dense(), scaled, wrap=False),
            compiled(mixed, wrap=False),
            compiled(dense(), keras.optimizers.SGD(0.1, loss_scale_factor=4.0), wrap=False),
        ]
        for model in models:
            held = model.optimizer
            model.fit(X, Y, batch_size=8, verbose=0)
            model.evaluate(X, Y, verbose=0)
            assert model.optimizer is held
        own.train_on_batch(X, Y)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "scales the loss already" in lines[0]
    assert "low'" in lines[1]
    assert "mixed_bfloat16" in lines[1]
    assert own.optimizer.metrics()["good_steps"] == 1


def test_models_that_were_never_compiled():
    enable_everywhere(rewrite=True, loss_scaling=True)
    assert np.isfinite(dense().predict(X, verbose=0)).all()
