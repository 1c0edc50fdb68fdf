"""``duotone.keras.autocast``: one model, and no class of Keras is touched."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import copy
import logging

import keras
import numpy as np
import pytest

import duotone.keras
from duotone.adapters.keras import autocast, enable, steps
from duotone.errors import ArgumentError, ArgumentTypeError
from tests.adapters.keras.small import (
    WRAPPED,
    bad,
    compiled,
    data,
    dense,
    half_dots,
    is_half,
    lowered,
    run_all,
    values,
)
from tests.adapters.keras.test_models import Subclassed, functional

X, Y = data()
FIT, BATCH = (X, Y), (X, Y, None)  # what `fit` and `train_on_batch` hand to a step


@pytest.mark.parametrize("build", [dense, functional, Subclassed], ids=lambda f: f.__name__)
def test_fit_evaluate_and_predict_run_in_half(build):
    model = autocast(compiled(build(), wrap=False), dtype="bfloat16")
    run_all(model)
    assert is_half(model, "train", FIT, "bf16")
    assert is_half(model, "test", FIT, "bf16")
    assert is_half(model, "predict", X, "bf16")


def test_before_compile_and_after_fit():
    model = dense()
    assert autocast(model, dtype="float16") is model
    compiled(model, wrap=False).train_on_batch(X, Y)
    assert is_half(model, "train", BATCH)

    trained = compiled(wrap=False)
    run_all(trained)
    autocast(trained, dtype="float16")
    run_all(trained)
    assert is_half(trained, "train", BATCH)
    assert is_half(trained, "predict", (X,))


def test_no_class_of_keras_is_touched():
    def methods():
        return {
            (kind, name): vars(kind)[name]
            for kind in (*keras.Model.__mro__, keras.Sequential)
            for name in (*WRAPPED, *steps.STEPS)
            if name in vars(kind)
        }

    before = methods()
    model = autocast(compiled(wrap=False), dtype="float16")
    run_all(model)
    assert methods() == before
    other = compiled(wrap=False)
    run_all(other)
    assert not is_half(other, "train", FIT)


def test_a_step_of_the_users_own():
    class Own(Subclassed):
        def train_step(self, state, data):
            logs, state = super().train_step(state, data)
            return logs | {"mine": logs["loss"]}, state

    model = autocast(compiled(Own(), wrap=False), dtype="float16")
    assert "mine" in model.fit(X, Y, verbose=0).history
    assert half_dots(lowered(model, "train", FIT)) == 5


def test_it_is_still_of_its_class_for_all_who_ask(tmp_path):
    """Copies are plain models of the old class, in full precision until they are passed as well."""
    model = autocast(compiled(wrap=False), dtype="float16")
    model.train_on_batch(X, Y)
    assert model.__class__ is keras.Sequential
    assert isinstance(model, keras.Sequential)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    for copied in (loaded, copy.deepcopy(model), compiled(clone, wrap=False)):
        assert type(copied) is keras.Sequential
        copied.train_on_batch(X, Y)
        assert not is_half(copied, "train", BATCH)
    autocast(loaded, dtype="float16").train_on_batch(X, Y)
    assert is_half(loaded, "train", BATCH)


def test_loss_scaling_is_the_optimizers():
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    model = autocast(compiled(wrap=False, inner=scaling), dtype="float16")
    model.fit(X, Y, epochs=2, verbose=0)
    assert float(scaling.dynamic_scale.value) == 8.0
    assert is_half(model, "train", FIT)


def test_compiled_later_with_a_wrapped_optimizer():
    """Its own dtype stays, and the optimizer scales and skips."""
    model = autocast(dense(batch_norm=True), dtype="bfloat16")
    compiled(model, loss_scale=8.0)
    model.train_on_batch(X, Y)
    before = values(model.variables)[:6]
    model.train_on_batch(bad(X), Y)
    assert all(
        np.array_equal(a, b) for a, b in zip(before, values(model.variables)[:6], strict=True)
    )
    assert model.optimizer.metrics()["skipped_steps"] == 1
    assert is_half(model, "train", BATCH, "bf16")
    assert not is_half(model, "train", BATCH, "f16")


def test_eager_and_slow_devices_say_so(caplog, monkeypatch):
    from duotone.devices import half_type as device

    monkeypatch.setattr(device, "cpu_flags", frozenset)
    with caplog.at_level(logging.WARNING, "duotone"):
        run_all(autocast(compiled(wrap=False)))
        assert len(caplog.records) == 1
        assert "not rewritten" in caplog.records[0].getMessage()
        caplog.clear()
        eager = autocast(compiled(dense(), wrap=False, run_eagerly=True), dtype="float16")
        eager.predict_on_batch(X)
        assert "run_eagerly" in caplog.records[0].getMessage()


def test_misuse():
    with pytest.raises(ArgumentTypeError, match=r"duotone\.autocast"):
        autocast(lambda x: x)
    with pytest.raises(ArgumentTypeError, match=r"keras\.Model"):
        autocast(keras.layers.Dense(2))
    model = autocast(dense(), dtype="float16")
    with pytest.raises(ArgumentError, match="already"):
        autocast(model)
    with pytest.raises(ArgumentError, match="leave autocast out"):
        autocast(compiled())
    mixed = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(2, dtype="mixed_float16")]
    )
    with pytest.raises(ArgumentError, match="mixed_float16"):
        autocast(mixed)
    with pytest.raises(ArgumentError, match="float32"):
        autocast(dense(), dtype="float32")
    with pytest.raises(ArgumentTypeError, match="policy"):
        autocast(dense(), policy=3)  # pyright: ignore[reportArgumentType]
    assert duotone.keras.autocast is autocast
    assert enable is duotone.keras.enable
