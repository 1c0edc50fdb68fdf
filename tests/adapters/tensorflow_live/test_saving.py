"""Models with a wrapped optimizer are saved and loaded, in the same process and in new ones."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false, reportFunctionMemberAccess=false

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import duotone
from duotone.tensorflow.live import switch
from tests.adapters.tensorflow_live.small import BATCH, X, Y, bad, compiled, same_bits, values, wrap
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow

SCALE = duotone.dynamic_loss_scale(2.0**10, growth_interval=100)
ROOT = str(Path(duotone.__file__).parent.parent)

RESUME = """
import json, sys
import keras, duotone
import numpy as np
model = keras.saving.load_model("model.keras")
x, y = np.load("x.npy"), np.load("y.npy")
for _ in range(3):
    model.train_on_batch(x, y)
from duotone.tensorflow.live import switch
print(json.dumps([model.optimizer.metrics(), int(model.optimizer.iterations), switch.is_enabled()]))
"""
BARE = """
import keras, sys
try:
    keras.saving.load_model("model.keras")
except TypeError as error:
    print(error)
model = keras.saving.load_model("model.keras", compile=False)
assert model.predict(__import__("numpy").ones((2, 20)), verbose=0).shape == (2, 1)
"""
SERVE = """
import numpy as np, sys
import tensorflow as tf
served = tf.saved_model.load("served")
print(served.serve(np.ones((2, 20), np.float32)).shape)
assert "duotone" not in sys.modules
"""


def in_fresh_process(folder, code, *, path=ROOT):
    """What a new process prints, in the folder."""
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", code]
    run = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def _trained():
    import keras

    made = compiled(wrap(keras.optimizers.Adam(1e-2), "bfloat16", loss_scale=SCALE))
    made.fit(X, Y, batch_size=64, verbose=0)
    made.train_on_batch(bad(), BATCH[1])
    return made


def test_a_model_is_saved_with_its_loss_scale(tf, tmp_path):
    import keras

    made = _trained()
    made.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.metrics() == made.optimizer.metrics()
    assert loaded.optimizer.get_config() == made.optimizer.get_config()
    assert same_bits(values(loaded), values(made))


@pytest.mark.parametrize("backends", [("jax", "tensorflow"), ("tensorflow", "jax")], ids=str)
def test_the_other_backend_loads_the_model(tf, tmp_path, backends):
    """The weights, the slots and the loss scale; the half type stays the saved one."""
    save = """
    import keras, duotone
    layers = [keras.layers.Input((20,)), keras.layers.Dense(8), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer = duotone.enable_mixed_precision_graph_rewrite(optimizer, dtype="float16")
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(x, y, batch_size=32, epochs=3, verbose=0)
    model.save(path)
    """
    load = """
    import duotone, keras
    model = keras.saving.load_model(path)
    """
    said = []
    for backend, code in zip(backends, (save, load), strict=True):
        start = f"path = {str(tmp_path / 'model.keras')!r}\nimport numpy as np\n"
        start += "x = np.random.default_rng(0).normal(size=(64, 20)).astype('float32')\n"
        end = "print(model.optimizer.metrics(), int(model.optimizer.iterations), "
        end += "float(np.sum(np.abs(model.get_weights()[0]))))"
        program = start + "y = x[:, :1]\n" + textwrap.dedent(code) + end
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={**os.environ, "KERAS_BACKEND": backend},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        said.append(done.stdout.splitlines()[-1])
    assert said[0] == said[1]
    assert "'good_steps': 6" in said[0]


def test_the_state_of_another_loss_scale(tf):
    """A fixed scale is the program's; one saved in bfloat16 starts at 2**15 in float16."""
    import keras

    made = compiled(wrap(keras.optimizers.SGD(1e-3), "bfloat16"))
    made.train_on_batch(*BATCH)
    switch.disable()
    for loss_scale, first in ((8, 8), ("dynamic", 2**15)):
        opt = wrap(keras.optimizers.SGD(1e-3), loss_scale=loss_scale)
        opt.build(made.trainable_variables)
        for ours, theirs in zip(opt.variables, made.optimizer.variables, strict=True):
            ours.assign(theirs)
        assert opt.metrics()["loss_scale"] == first
        assert float(opt.scale_loss(tf.constant(1.0))) == first


def test_a_checkpoint_has_the_loss_scale(tf, tmp_path):
    made = _trained()
    before = made.optimizer.metrics()
    path = tf.train.Checkpoint(model=made).save(str(tmp_path / "checkpoint"))
    made.train_on_batch(bad(), BATCH[1])
    assert made.optimizer.metrics() != before
    tf.train.Checkpoint(model=made).restore(path)
    assert made.optimizer.metrics() == before


def test_a_fresh_process_goes_on(tf, tmp_path):
    made = _trained()
    made.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", BATCH[0])
    np.save(tmp_path / "y.npy", BATCH[1])
    metrics, iterations, enabled = json.loads(in_fresh_process(tmp_path, RESUME))
    assert metrics == {**made.optimizer.metrics(), "good_steps": 3, "last_finite": True}
    assert iterations == int(made.optimizer.iterations) + 3
    assert enabled


def test_without_duotone(tf, tmp_path):
    """Loading names duotone; without the optimizer, and as a SavedModel, the model runs."""
    made = _trained()
    made.save(tmp_path / "model.keras")
    assert "duotone" in in_fresh_process(tmp_path, BARE, path="")
    made.export(tmp_path / "served", verbose=False)
    assert in_fresh_process(tmp_path, SERVE, path="").strip() == "(2, 1)"
