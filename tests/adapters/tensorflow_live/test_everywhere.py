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
LOOP = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(0)
layers = [keras.layers.Dense(512, activation="relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((256,)), *layers])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
opt = OPTIMIZER
x = np.random.default_rng(0).normal(size=(128, 256)).astype("f")

@tf.function(jit_compile=JIT)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
        scaled = opt.scale_loss(loss)
    opt.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
    return loss

losses = [float(step(x, x[:, :10].argmax(1))) for _ in range(20)]
assert losses[-1] < losses[0], losses
"""
V1 = """
import numpy as np, tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
v1.set_random_seed(0)
x = v1.placeholder(tf.float32, (128, 256))
w, u = v1.get_variable("w", (256, 512)), v1.get_variable("u", (512, 1))
loss = tf.reduce_mean((tf.nn.relu(x @ w) @ u - 1.0) ** 2)
opt = v1.train.AdamOptimizer(1e-4)
STEP
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    losses = [session.run([loss, train], {x: np.ones((128, 256), "f")})[0] for _ in range(20)]
assert losses[-1] < losses[0]
"""


UPDATE_IS_FULL = """
from duotone.tensorflow.live import switch
nodes = [d for g in switch.rewritten_graphs() for d in g.result.decisions]
updates = {d.precision for d in nodes if "duotone_float32" in d.node}
assert updates == {"f32"}, updates
"""
SCALED = """
from duotone.adapters.tensorflow.everywhere import _wrappers
(wrapper,) = _wrappers.values()
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    feeds = [np.ones((128, 256), "f"), np.full((128, 256), np.inf, "f")]
    for feed in feeds:
        session.run(train, {x: feed})
    found = session.run(wrapper.metrics() | {"dtype": tf.constant("")})
    assert np.isfinite(session.run(w)).all()
assert found["skipped_steps"] == 1 and found["loss_scale"] == 2.0**14, found
"""
MINIMIZE = "train = opt.minimize(loss)"
STEPS = {
    "minimize": MINIMIZE,
    "clipped": """pairs = [(tf.clip_by_norm(g, 1.0), v) for g, v in opt.compute_gradients(loss)]
train = opt.apply_gradients(pairs)""",
    "tf.gradients": "train = opt.apply_gradients(zip(tf.gradients(loss, [w, u]), [w, u]))",
}


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


@pytest.mark.parametrize("jit", [False, True])
def test_a_loop_of_the_script(tmp_path, jit):
    """Catches: float32 without a word, where no model is compiled."""
    script = LOOP.replace("JIT", str(jit)).replace("OPTIMIZER", "keras.optimizers.Adam(1e-3)")
    script += UPDATE_IS_FULL
    assert "rewrote a graph of" in run(tmp_path, script, "--dtype", "bfloat16")


def test_a_loop_that_needs_a_loss_scale_is_said_to_stay_float32(tmp_path):
    script = LOOP.replace("JIT", "True").replace("OPTIMIZER", "keras.optimizers.Adam(1e-3)")
    out = run(tmp_path, script, "--dtype", "float16")
    assert "a loop that applies gradients by optimizer 'adam' is not changed: float16" in out
    assert "rewrote" not in out
    assert "rewrote" in run(tmp_path, script, "--dtype", "float16", "--loss-scale", "none")


def test_a_loop_with_a_loss_scale_optimizer_of_its_own_is_left_alone(tmp_path):
    optimizer = "keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-3))"
    script = LOOP.replace("JIT", "False").replace("OPTIMIZER", optimizer)
    assert "rewrote" not in run(tmp_path, script, "--dtype", "bfloat16")


@pytest.mark.parametrize("step", STEPS)
def test_a_script_for_tensorflow_1(tmp_path, step):
    """Catches: float32 without a word, where a script computes and applies gradients itself."""
    script = V1.replace("STEP", STEPS[step])
    assert "rewrote a graph of" in run(tmp_path, script, "--dtype", "bfloat16")


def test_gradients_of_a_script_are_scaled_and_unscaled_by_one_wrapper(tmp_path):
    """Catches: another wrapper, which finds no gradients that were checked, for the second call."""
    script = V1.replace("STEP", STEPS["clipped"]) + SCALED
    run(tmp_path, script, "--dtype", "float16", "--loss-scale", "dynamic")


def test_float16_without_a_gpu_is_said(tmp_path):
    out = run(tmp_path, V1.replace("STEP", MINIMIZE), "--dtype", "float16")
    assert "float16 is for operations on GPUs" in out
    assert "rewrote" not in out
