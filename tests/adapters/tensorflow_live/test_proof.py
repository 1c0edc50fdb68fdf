"""Half in TensorFlow's own words: the log of oneDNN's kernels, and the graphs that a Session runs.

What XLA is given is in ``tests/tensorflow/test_live.py``.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from duotone.devices.half_choice import FAST_CPU_FLAGS, cpu_flags
from tests.adapters.tensorflow_live.small import wrap
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow
ROOT = Path(__file__).parents[3]
HALF_OPERAND = re.compile(r"\bsrc[a-z_]*:?:?(bf16|f16):")
FIT = """
import sys
import keras
import numpy as np
import duotone

keras.utils.set_random_seed(0)
layers = keras.layers
model = keras.Sequential([
    keras.Input((16, 16, 64)), layers.Conv2D(64, 3), layers.ReLU(), layers.Flatten(),
    layers.Dense(64),
])
optimizer = keras.optimizers.SGD(1e-3)
if sys.argv[1] == "on":
    optimizer = duotone.enable_mixed_precision_graph_rewrite(optimizer, dtype="bfloat16")
model.compile(optimizer, "mse", jit_compile=False)
x, y = np.ones((32, 16, 16, 64), "f"), np.ones((32, 64), "f")
model.fit(x, y, batch_size=32, epochs=2, verbose=0)
"""


def kernels(mode: str, tmp_path: Path) -> dict[str, set[bool]]:
    """By kind of oneDNN's kernels, whether their operands are half, in a training step."""
    program = tmp_path / "fit.py"
    program.write_text(FIT)
    given = {"ONEDNN_VERBOSE": "1", "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, str(program), mode],
        capture_output=True,
        text=True,
        env={**os.environ, **given},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(",") for line in done.stdout.splitlines() if ",primitive,exec," in line]
    found: dict[str, set[bool]] = {}
    for line in lines:
        kind, descriptors = line[5], ",".join(line[8:])
        found.setdefault(kind, set()).add(bool(HALF_OPERAND.search(descriptors)))
    return found


@pytest.mark.skipif(
    FAST_CPU_FLAGS.isdisjoint(cpu_flags()), reason="a CPU without bfloat16 instructions"
)
def test_onednn_runs_bfloat16_kernels(tmp_path):
    """Catches: half in duotone's record, and float32 in the kernels."""
    plain, mixed = (kernels(mode, tmp_path) for mode in ("off", "on"))
    assert plain["convolution"] == {False}
    assert not any(True in halves for halves in plain.values())
    assert mixed["convolution"] == mixed["matmul"] == {True}


@pytest.mark.parametrize("mode", ["off", "bfloat16", "float16"])
def test_the_graphs_that_a_session_runs(tf, mode):
    """Catches: a graph that Grappler is given and does not take."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (64, 256), "x")
        w = v1.get_variable("w", (256, 256))
        loss = tf.reduce_mean(tf.square(x @ w - 1.0))
        opt = v1.train.AdamOptimizer(1e-2)
        train = (opt if mode == "off" else wrap(opt, mode)).minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            ran = v1.RunMetadata()
            options = v1.RunOptions(output_partition_graphs=True)
            feed = {x: np.ones((64, 256), "f")}
            session.run(train, feed, options=options, run_metadata=ran)
    nodes = [node for graph in ran.partition_graphs for node in graph.node]
    types = {tf.as_dtype(n.attr["T"].type).name for n in nodes if "MatMul" in n.op}
    assert types == {"float32" if mode == "off" else mode}
    updates = [node for node in nodes if "ApplyAdam" in node.op]
    assert updates
    assert {tf.as_dtype(node.attr["T"].type).name for node in updates} == {"float32"}
