"""``duotone compare`` of graphs and SavedModels in TensorFlow.

``make test-tensorflow`` runs these in an environment of their own; elsewhere they are skipped.
"""

from __future__ import annotations

import doctest
import importlib
import math

import numpy as np
import pytest
from typer.testing import CliRunner

import duotone.tensorflow
from conftest import IN_TENSORFLOW
from duotone.cli.main import app
from duotone.errors import ArgumentError, GraphDefError
from duotone.tensorflow import files, rewrite_file
from tests.tensorflow import graphs
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow
WEIGHTS = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


@pytest.mark.parametrize("file", IN_TENSORFLOW)
def test_the_examples_run(tf, file):
    """Where there is no TensorFlow, pytest does not collect them."""
    del tf
    name = file.removesuffix(".py").replace("/", ".")
    done = doctest.testmod(importlib.import_module(name))
    assert (done.attempted > 0, done.failed) == (True, 0)


def written(tf, tmp_path, function, shape):
    """The file of a frozen graph and that of the rewritten one."""
    with tf.Graph().as_default() as graph:
        function(tf.compat.v1.placeholder(tf.float32, shape, "x"))
        message = graph.as_graph_def().SerializeToString()
    files.write(tmp_path / "full.pb", graphs.new_graph().FromString(message))
    rewrite_file(tmp_path / "full.pb", tmp_path / "half.pb")
    return tmp_path / "full.pb", tmp_path / "half.pb"


def squared(tf, x):
    """A square that overflows half where x is large, and is small again in the result."""
    h = tf.matmul(x, WEIGHTS, name="h")
    return tf.identity(tf.matmul(h * 1e-3, WEIGHTS, name="z"), name="y")


def test_a_graph(tf, tmp_path):
    pair = written(tf, tmp_path, lambda x: squared(tf, x), (None, 8))
    found = duotone.tensorflow.compare(*pair)
    assert found.inputs == {"x": "float32[1, 8]"}
    assert [value.name for value in found.outputs] == ["y:0"]
    assert {"h:0", "z:0"} <= {value.name for value in found.nodes}
    assert 0 < found.error < 1e-2
    assert found.parts is None
    assert duotone.tensorflow.compare(*pair, shapes={"x": (5, 8)}).inputs == {"x": "float32[5, 8]"}


def test_inputs_are_checked(tf, tmp_path):
    pair = written(tf, tmp_path, lambda x: squared(tf, x), (None, 8))
    with pytest.raises(ArgumentError, match="asks for the input 'x'; given are 'y'"):
        duotone.tensorflow.compare(*pair, {"y": np.ones((1, 8))})
    with pytest.raises(ArgumentError, match=r"takes float32\[\?, 8\] as input 'x'"):
        duotone.tensorflow.compare(*pair, {"x": np.ones((1, 9))})
    assert duotone.tensorflow.compare(*pair, {"x": np.ones((1, 8))}).error < 1e-2


def test_an_overflow_is_an_infinite_error(tf, tmp_path):
    full, half = written(tf, tmp_path, lambda x: squared(tf, x), (4, 8))
    data = {"x": np.full((4, 8), 6e4, np.float32)}
    found = duotone.tensorflow.compare(full, half, data)
    assert found.error == math.inf
    assert found.outputs[0].operation == "Identity"
    assert found.parts is not None
    assert found.parts.name == "h:0"
    np.savez(tmp_path / "x.npz", x=data["x"])
    words = ["compare", str(full), str(half), "--data", str(tmp_path / "x.npz")]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 1
    assert "they first differ at h:0 (MatMul)" in said.output
    assert CliRunner().invoke(app, words[:3]).exit_code == 0


def test_open_sides_do_not_collapse(tf, tmp_path):
    def network(x):
        kernel = np.full((3, 3, 1, 1), 0.1, np.float32)
        p = tf.nn.conv2d(x, kernel, 4, "SAME")
        q = tf.nn.conv2d(tf.nn.conv2d(p, kernel, 4, "SAME"), kernel, 2, "SAME")
        size = tf.shape(p)[1:3]
        return tf.concat([tf.image.resize(q, size, method="nearest"), p], 3, name="y")

    pair = written(tf, tmp_path, network, (None, None, None, 1))
    found = duotone.tensorflow.compare(*pair)
    assert found.inputs == {"x": "float32[1, 64, 64, 1]"}
    assert any("open sides: 64" in note for note in found.notes)


def test_calls_are_inlined(tf, tmp_path):
    @tf.function
    def inner(x):
        return tf.matmul(x, WEIGHTS, name="inside")

    pair = written(tf, tmp_path, lambda x: tf.identity(inner(x), name="y"), (4, 8))
    found = duotone.tensorflow.compare(*pair)
    assert any("inside" in value.name for value in found.nodes)
    assert 0 < found.error < 1e-2


def test_a_saved_model(tf, tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.w = tf.Variable(WEIGHTS)

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
        def __call__(self, x):
            return {"y": tf.nn.softmax(tf.matmul(x, self.w, name="h"))}

    model = Model()
    folders = tmp_path / "full", tmp_path / "half"
    tf.saved_model.save(model, str(folders[0]), {"serving_default": model.__call__})
    rewrite_file(*folders)
    found = duotone.tensorflow.compare(*folders)
    assert [value.name for value in found.outputs] == ["y"]
    assert any(value.name.endswith("/h:0") for value in found.nodes)
    assert 0 < found.error < 1e-2
    data = {"x": np.full((3, 8), 6e4, np.float32)}
    assert duotone.tensorflow.compare(*folders, data).error == math.inf


def test_variables_without_values(tf, tmp_path):
    with tf.Graph().as_default() as graph:
        w = tf.compat.v1.get_variable("w", initializer=WEIGHTS, use_resource=True)
        tf.matmul(w, w)
        message = graph.as_graph_def().SerializeToString()
    files.write(tmp_path / "g.pb", graphs.new_graph().FromString(message))
    with pytest.raises(GraphDefError, match=r"'w' is a variable.*compare SavedModel folders"):
        duotone.tensorflow.compare(tmp_path / "g.pb", tmp_path / "g.pb")


def test_other_results(tf, tmp_path):
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        written(tf, folder, lambda x, name=name: tf.identity(x, name), (4, 8))
    with pytest.raises(ArgumentError, match="different results"):
        duotone.tensorflow.compare(tmp_path / "a/full.pb", tmp_path / "b/full.pb")


def test_branches_that_do_not_run_are_not_compared(tf, tmp_path):
    """Catches: the dead branch of ``is_training`` is fetched, and no inputs are found."""

    def function(x):
        v1 = tf.compat.v1
        v1.disable_control_flow_v2()
        trains = tf.constant(False)
        h = tf.matmul(x, WEIGHTS, name="h")
        h = v1.cond(trains, lambda: tf.matmul(h, WEIGHTS, name="train"), lambda: h * 2.0)
        return tf.identity(tf.matmul(h, WEIGHTS, name="z"), name="y")

    found = duotone.tensorflow.compare(*written(tf, tmp_path, function, (None, 8)))
    tf.compat.v1.enable_control_flow_v2()
    assert [value.name for value in found.outputs] == ["y:0"]
    names = {value.name for value in found.nodes}
    assert {"h:0", "z:0"} <= names
    assert not any("train" in name for name in names)
    assert 0 < found.error < 1e-2


def test_values_that_nothing_reads_are_not_compared(tf, tmp_path):
    """Catches: the reserved results of a norm, in which kernels leave anything."""
    ones = np.ones(8, np.float32)

    def network(x):
        h, *_ = tf.compat.v1.nn.fused_batch_norm(x, ones, ones, ones, ones, is_training=False)
        return tf.identity(h, name="y")

    pair = written(tf, tmp_path, network, (1, 2, 2, 8))
    names = [value.name for value in duotone.tensorflow.compare(*pair).nodes]
    assert [name for name in names if name.startswith("FusedBatchNorm")] == ["FusedBatchNormV3:0"]


def test_a_kernel_that_the_machine_does_not_have(tf, tmp_path):
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float16, (1, 4, 4, 4, 2), "x")
        tf.nn.max_pool3d(x, 2, 2, "SAME", name="y")
        message = graph.as_graph_def().SerializeToString()
    path = tmp_path / "g.pb"
    files.write(path, graphs.new_graph().FromString(message))
    with pytest.raises(ArgumentError, match="no kernel of MaxPool3D for a dtype of the graph"):
        duotone.tensorflow.compare(path, path)
