"""Models with a wrapped optimizer are saved, loaded, cloned and pickled, and go on as they were."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest

import duotone
from duotone.adapters.keras import LossScaleOptimizer, enable
from duotone.errors import ArgumentError
from tests.adapters.keras.small import (
    bad,
    compiled,
    cross_entropy,
    data,
    dense,
    is_half,
    same_bits,
    values,
)

X, Y = data()
FIT, BATCH = (X, Y), (X, Y, None)  # what `fit` and `train_on_batch` hand to a step

RESUME = """
import json, sys
import numpy as np
import keras, duotone.keras
x, y = np.load("x.npy"), np.load("y.npy")
model = keras.saving.load_model("model.keras")
for _ in range(3):
    model.train_on_batch(x, y)
np.savez("after.npz", *[np.asarray(v.value) for v in model.variables + model.optimizer.variables])
print(json.dumps([type(model.optimizer).__name__, model.optimizer.half, model.optimizer.metrics()]))
"""


def test_a_fresh_process_resumes_bit_by_bit(tmp_path):
    """Weights, slots, moving averages and the loss scale; and it is rewritten there too.

    (Without dropout: Keras does not save the seeds of its layers.)
    """
    model = compiled(dense(batch_norm=True), keras.optimizers.Adam(0.01, use_ema=True))
    for x in (X, bad(X), X):
        model.train_on_batch(x, Y)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    for _ in range(3):
        model.train_on_batch(X, Y)
    run = subprocess.run(
        [sys.executable, "-c", RESUME], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == ["LossScaleOptimizer", "float16", model.optimizer.metrics()]
    assert model.optimizer.metrics()["skipped_steps"] == 1
    after = list(np.load(tmp_path / "after.npz").values())
    assert same_bits(after, values(model.variables + model.optimizer.variables))


def in_fresh_process(folder, code, **environ):
    """What a new process prints, in the folder."""
    environment = {**os.environ, **environ}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


LOAD = "print(type(keras.saving.load_model('model.keras').optimizer).__module__)"


@pytest.mark.parametrize(
    "imports", ["import duotone, keras", "import keras, duotone", "import duotone.keras, keras"]
)
def test_a_model_is_loaded_wherever_duotone_is_imported(tmp_path, imports):
    """Catches: "Could not locate class", because only ``duotone.keras`` named the class."""
    model = compiled()
    model.train_on_batch(X, Y)
    model.save(tmp_path / "model.keras")
    assert in_fresh_process(tmp_path, f"{imports}; {LOAD}") == LossScaleOptimizer.__module__


@pytest.mark.slow
def test_naming_the_class_does_not_load_it(tmp_path):
    code = """
import sys, duotone, keras
print("duotone>LossScaleOptimizer" in keras.saving.get_custom_objects())
print([name for name in ("duotone.adapters", "duotone.scale", "optax") if name in sys.modules])
"""
    assert in_fresh_process(tmp_path, code).splitlines() == ["True", "[]"]


@pytest.mark.slow
def test_a_machine_without_duotone_loads_the_model_without_its_optimizer(tmp_path):
    model = compiled()
    model.train_on_batch(X, Y)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    code = """
import sys, keras, numpy as np
model = keras.saving.load_model("model.keras", compile=False)
np.save("y.npy", model.predict(np.load("x.npy"), verbose=0))
print("duotone" in sys.modules)
"""
    assert in_fresh_process(tmp_path, code) == "False"
    plain = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), plain.predict(X, verbose=0), rtol=1e-5)


@pytest.mark.slow
def test_another_backend_cannot_load_the_optimizer_and_says_how(tmp_path):
    model = compiled()
    model.train_on_batch(X, Y)
    model.save(tmp_path / "model.keras")
    code = """
import duotone, keras
try:
    keras.saving.load_model("model.keras")
except ValueError as error:
    print(error)
print(keras.saving.load_model("model.keras", compile=False).compiled)
"""
    said = in_fresh_process(tmp_path, code, KERAS_BACKEND="numpy")
    assert all(word in said for word in ("numpy backend", "KERAS_BACKEND=jax", "compile=False"))
    assert said.endswith("False")


# Keras says so of every optimizer that was saved before it had its variables.
UNBUILT = "ignore:Skipping variable loading for optimizer:UserWarning"


@pytest.mark.filterwarnings(UNBUILT)
def test_a_loaded_model_is_rewritten(tmp_path):
    compiled().save(tmp_path / "model.keras")  # saved before a step was ever taken
    model = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(model.optimizer, LossScaleOptimizer)
    model.train_on_batch(X, Y)
    model.predict_on_batch(X)
    assert model.optimizer.metrics()["good_steps"] == 1
    assert is_half(model, "train", BATCH)
    assert is_half(model, "predict", (X,))


@pytest.mark.filterwarnings(UNBUILT)
def test_weights_alone(tmp_path):
    model = compiled()
    model.fit(X, Y, epochs=2, verbose=0)
    model.save_weights(tmp_path / "w.weights.h5")
    other = compiled(dense())
    other.load_weights(tmp_path / "w.weights.h5")
    assert same_bits(values(model.weights), values(other.weights))
    other.train_on_batch(X, Y)


def test_weights_of_a_model_that_was_not_trained_yet(tmp_path):
    model, other = compiled(), compiled()
    path = str(tmp_path / "first.weights.h5")
    model.save_weights(path)
    other.load_weights(path)
    assert same_bits(values(model.variables), values(other.variables))
    other.fit(X, Y, verbose=0)
    assert other.optimizer.metrics()["good_steps"] == 1


def test_clone_and_compile():
    model = compiled()
    model.train_on_batch(X, Y)
    clone = keras.models.clone_model(model)
    clone.compile(LossScaleOptimizer.from_config(model.optimizer.get_config()), cross_entropy())
    clone.train_on_batch(X, Y)
    assert is_half(clone, "train", BATCH)
    assert clone.optimizer is not model.optimizer
    plain = compiled(keras.models.clone_model(model), wrap=False)
    plain.train_on_batch(X, Y)
    assert not is_half(plain, "train", BATCH)


def test_pickle():
    model = compiled()
    for x in (X, bad(X)):
        model.train_on_batch(x, Y)
    other = pickle.loads(pickle.dumps(model))
    assert other.optimizer.metrics() == model.optimizer.metrics()
    for one in (model, other):
        one.train_on_batch(X, Y)
    assert same_bits(values(model.variables), values(other.variables))
    assert is_half(other, "train", BATCH)


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.layer = keras.layers.Dense(8)

    def call(self, x):
        return self.layer(x)

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return logs | {"mine": logs["loss"]}, state


def test_a_subclassed_model_with_its_own_step(tmp_path):
    model = compiled(Subclassed())
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    other = keras.saving.load_model(tmp_path / "model.keras")
    assert "mine" in other.fit(X, Y, verbose=0).history
    assert is_half(other, "train", FIT)
    assert other.optimizer.metrics()["good_steps"] == 2


def test_settings_are_saved(tmp_path):
    policy = duotone.Policy(deny_add={"tanh"}, keep_full=["*/head/*"])
    scale = duotone.DynamicLossScale(64, growth_interval=2, cap=128)
    model = dense()
    model.compile(enable(keras.optimizers.SGD(0.1), scale, dtype="float16", policy=policy), "mse")
    y = np.zeros((16, 8), "float32")
    for _ in range(3):
        model.train_on_batch(X, y)
    model.save(tmp_path / "model.keras")
    optimizer = keras.saving.load_model(tmp_path / "model.keras").optimizer
    assert optimizer.policy == policy
    assert optimizer.half == "float16"
    assert optimizer.metrics()["loss_scale"] == 128.0
    assert optimizer.get_config()["loss_scale"]["cap"] == 128.0


@pytest.mark.parametrize("damage", [np.nan, np.inf, 0.0, -8.0, 0.25])
def test_a_damaged_scale_is_refused_and_the_advice_helps(tmp_path, damage):
    model = compiled()
    model.train_on_batch(X, Y)
    position = next(
        i for i, v in enumerate(model.optimizer.variables) if v is model.optimizer.dynamic_scale
    )
    store = {str(i): np.asarray(v.value) for i, v in enumerate(model.optimizer.variables)}
    store[str(position)] = np.float32(damage)
    with pytest.raises(ArgumentError, match="compile=False") as error:
        model.optimizer.load_own_variables(store)
    assert repr(float(damage)) in str(error.value)

    if not np.isfinite(damage):
        model.optimizer.dynamic_scale.assign(damage)
        model.save(tmp_path / "model.keras")
        with pytest.raises(ValueError, match="which must be finite and at least 1"):
            keras.saving.load_model(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
        assert np.isfinite(float(compiled(loaded).train_on_batch(X, Y)))


@pytest.mark.parametrize(
    ("scale", "taken"),
    [
        (duotone.DynamicLossScale(1, floor=0.25), True),
        (duotone.FixedLossScale(8), True),
        ("dynamic", False),
    ],
)
def test_a_saved_scale_below_one_is_taken_where_the_floor_is_lower(scale, taken):
    def built(scale):
        optimizer = enable(keras.optimizers.SGD(0.5), scale, dtype="float16")
        optimizer.build([keras.Variable([1.0])])
        return optimizer

    saved = built(duotone.DynamicLossScale(0.5, floor=0.25))
    store = {str(i): np.asarray(v.value) for i, v in enumerate(saved.variables)}
    with contextlib.nullcontext() if taken else pytest.raises(ArgumentError, match="at least 1"):
        built(scale).load_own_variables(store)


def test_backup_and_restore(tmp_path):
    """A run that is broken off goes on at the next epoch with the loss scale that it had."""

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def fit(model, *callbacks):
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        model.fit(
            X, Y, batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=[backup, *callbacks]
        )

    model = compiled(
        inner=keras.optimizers.Adam(0.01), loss_scale=duotone.DynamicLossScale(2.0**30, cap=2.0**30)
    )
    with pytest.raises(KeyboardInterrupt):
        fit(model, Stop())
    assert model.optimizer.metrics()["skipped_steps"] == 4
    again = compiled(
        dense(),
        inner=keras.optimizers.Adam(0.01),
        loss_scale=duotone.DynamicLossScale(2.0**30, cap=2.0**30),
    )
    fit(again)
    assert again.optimizer.metrics()["skipped_steps"] == 8
    assert again.optimizer.metrics()["loss_scale"] == 2.0**22


def test_a_file_of_weights_holds_the_state_once(tmp_path):
    model = compiled()
    model.train_on_batch(X, Y)
    model.save(tmp_path / "model.keras")
    import zipfile

    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        archive.extract("model.weights.h5", tmp_path)
    with h5py.File(tmp_path / "model.weights.h5") as file:
        assert len(file["optimizer/vars"]) == len(model.optimizer.variables)
