"""Keras' distribution API, and Keras with Flax NNX variables; each in a process of its own."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import json
import os
import subprocess
import sys

import keras
import pytest

ROOT = __file__.rsplit("/tests/", 1)[0]


def run(*command, **environment):
    settings = os.environ | {"PYTHONPATH": ROOT, "KERAS_BACKEND": "jax"} | environment
    done = subprocess.run(
        [sys.executable, *command], env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow  # a process, three compilations for eight devices
def test_data_parallel_and_model_parallel():
    """Shardings are those of Keras; all devices agree on the step that is skipped."""
    data, model = run(
        "-m",
        "tests.adapters.keras.distributed_program",
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
        JAX_PLATFORMS="cpu",
    )
    assert (data["kind"], model["kind"]) == ("data", "model")
    assert (data["devices"], model["devices"]) == (8, 8)
    assert data["sharding"].replace("None,", "") == "PartitionSpec()" or "None" in data["sharding"]
    assert "'model'" in model["sharding"]
    for result in (data, model):
        assert result["half"] == 5
        assert result["metrics"] == {
            "loss_scale": 2.0**14,
            "good_steps": 1,
            "skipped_steps": 1,
            "last_finite": True,
        }
        assert result["weights"] < 2e-3
        assert result["predictions"] < 2e-2


NNX = """
import json
import keras
from duotone.adapters.keras import autocast
from tests.adapters.keras.small import bad, compiled, data, dense, half_dots, jitted
from keras.src.backend.config import is_nnx_enabled
assert is_nnx_enabled()
x, y = data()
for way in ("optimizer", "model"):
    model = compiled(dense(batch_norm=True), wrap=way == "optimizer")
    if way == "model":
        autocast(model, dtype="float16")
    from duotone.adapters.keras import steps
    import duotone
    made = []
    steps.autocast = lambda step, **k: made.append(step.__name__) or duotone.autocast(step, **k)
    for batch in (x, bad(x)):
        model.fit(batch, y, verbose=0)
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    print(json.dumps([way, made, model.optimizer.metrics() if way == "optimizer" else None]))
"""


@pytest.mark.slow  # a process
def test_with_variables_of_flax_nnx():
    """Keras then passes by whatever is set on the model itself."""
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 11):
        assert not hasattr(
            keras.src.backend.config, "is_nnx_enabled"
        )  # Keras 3.10 has no such mode
        return
    optimizer, model = run("-c", NNX, KERAS_NNX_ENABLED="true", JAX_PLATFORMS="cpu")
    names = ["train_step", "test_step", "predict_step"]
    assert optimizer[:2] == ["optimizer", names]
    assert optimizer[2]["skipped_steps"] == 1
    assert model[:2] == ["model", names]
