"""``duotone run`` of TensorFlow scripts that say nothing of mixed precision."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow
ROOT = Path(__file__).parents[3]
KERAS = """
import keras, numpy as np
layers = [keras.layers.Dense(512, activation="relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((256,)), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer="adam", loss=loss, jit_compile=JIT)
x = np.random.default_rng(0).normal(size=(512, 256)).astype("f")
model.fit(x, x[:, :10].argmax(1), batch_size=128, epochs=2, verbose=0)
print(type(model.optimizer).__module__)
"""
V1 = """
import numpy as np, tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
v1.set_random_seed(0)
x = v1.placeholder(tf.float32, (128, 256))
w, u = v1.get_variable("w", (256, 512)), v1.get_variable("u", (512, 1))
loss = tf.reduce_mean((tf.nn.relu(x @ w) @ u - 1.0) ** 2)
train = v1.train.AdamOptimizer(1e-4).minimize(loss)
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    losses = [session.run([loss, train], {x: np.ones((128, 256), "f")})[0] for _ in range(20)]
assert losses[-1] < losses[0]
"""


def run(tmp_path: Path, script: str, *options: str) -> str:
    """Runs a script by ``duotone run``; returns what it prints."""
    (tmp_path / "train.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow"}
    environment.pop("DUOTONE_TEST_TENSORFLOW", None)
    done = subprocess.run(
        [sys.executable, "-m", "duotone", "run", *options, str(tmp_path / "train.py")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("jit", [False, True])
def test_a_keras_script(tmp_path, jit):
    out = run(tmp_path, KERAS.replace("JIT", str(jit)), "--dtype", "bfloat16")
    assert "rewrote a graph of" in out
    assert "duotone.adapters.tensorflow.keras" in out


def test_a_script_for_tensorflow_1(tmp_path):
    assert "rewrote a graph of" in run(tmp_path, V1, "--dtype", "bfloat16")


def test_float16_without_a_gpu_is_said(tmp_path):
    out = run(tmp_path, V1, "--dtype", "float16")
    assert "float16 is for operations on GPUs" in out
    assert "rewrote" not in out
