"""Rewritten graphs in TensorFlow itself: they load, run, and give the same within half precision.

``make test-tensorflow`` runs these in an environment of their own; elsewhere they are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from duotone.tensorflow import files, rewrite, rewrite_file
from tests.tensorflow import graphs
from tests.tensorflow.graphdefs import cases
from tests.tensorflow.in_tensorflow import graph_of, needs_tensorflow, run

pytestmark = needs_tensorflow

# Roundings to half on the way, relative to the largest element of the result.
TOLERANCE = {"float16": 0.01, "bfloat16": 0.06}
DTYPES = list(TOLERANCE)


def assert_close(half, full, dtype):
    half, full = np.asarray(half, np.float32), np.asarray(full, np.float32)
    assert half.shape == full.shape
    assert np.isfinite(half).all()
    assert np.abs(half - full).max() <= TOLERANCE[dtype] * np.abs(full).max()


def _random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_graph(tf, dtype):
    graph = graphs.chain()
    result = rewrite(graph, fetch=["result"], dtype=dtype)
    x = _random(256, 256)
    assert len(result.casts) == 3
    assert_close(
        run(tf, result.graph_def, ["result"], x=x)[0],
        run(tf, graph, ["result"], x=x)[0],
        dtype,
    )


@pytest.mark.parametrize("painter", ["duotone", "tensorflow", "mincut"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_convolutional_network_and_its_gradient(tf, dtype, painter):
    kernel, scale, weights = _random(3, 3, 3, 8) / 5, np.ones(8, np.float32), _random(8, 4)

    def step(x):
        k, w = tf.constant(kernel), tf.constant(weights)
        h = tf.nn.conv2d(x, k, 1, "SAME")
        zero = tf.zeros(8)
        h, _, _ = tf.compat.v1.nn.fused_batch_norm(h, tf.constant(scale), zero)
        h = tf.nn.relu(tf.nn.bias_add(h, zero + 0.1))
        h = tf.reduce_mean(tf.nn.max_pool2d(h, 2, 2, "SAME"), [1, 2])
        loss = tf.reduce_mean(tf.nn.softmax(h @ w)[:, 0])
        return [h @ w, *tf.gradients(loss, [k, w])]

    graph, fetch, feed = graph_of(tf, step, _random(2, 8, 8, 3))
    result = rewrite(graph, fetch=fetch, dtype=dtype, painter=painter)
    assert any(c != "f32" for precisions in result.painting.values() for c in precisions.values())
    got = run(tf, result.graph_def, fetch, **feed)
    for half, full in zip(got, run(tf, graph, fetch, **feed), strict=True):
        assert_close(half, full, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_while_loop_with_lists_of_tensors(tf, dtype):
    weights = _random(6, 6) / 3

    def recur(x):
        def body(i, h, out):
            h = tf.tanh(h @ tf.constant(weights))
            return i + 1, h, out.write(i, h)

        out = tf.TensorArray(tf.float32, 4)
        _, h, out = tf.while_loop(lambda i, *_: i < 4, body, (0, x, out))
        return [h, out.stack()]

    graph, fetch, feed = graph_of(tf, recur, _random(3, 6))
    result = rewrite(graph, fetch=fetch, dtype=dtype)
    got = run(tf, result.graph_def, fetch, **feed)
    for half, full in zip(got, run(tf, graph, fetch, **feed), strict=True):
        assert_close(half, full, dtype)


STATE = {"ReadVariableOp", "VariableV2"}
GRAPHS = {name: graphs.new_graph().FromString(text) for name, text, _ in cases()}
FETCH = {name: json.loads(answer)["fetch"] for name, _, answer in cases()}
STATELESS = [name for name, graph in GRAPHS.items() if not STATE & {node.op for node in graph.node}]


@pytest.mark.parametrize("painter", ["duotone", "tensorflow", "mincut"])
@pytest.mark.parametrize("name", STATELESS)
def test_observed_graphs_load_andrun(tf, tmp_path, name, painter):
    """In bfloat16, for which a CPU has all kernels; values are compared by the other tests."""
    graph, fetch = GRAPHS[name], FETCH[name]
    feed = {}
    for node in graph.node:
        if node.op == "Placeholder":
            shape = [d.size if d.size > 0 else 2 for d in node.attr["shape"].shape.dim]
            kind = tf.dtypes.as_dtype(node.attr["dtype"].type).as_numpy_dtype
            feed[node.name] = np.ones(shape, kind)
    files.write(tmp_path / "graph.pb", graph)
    done = rewrite_file(tmp_path / "graph.pb", fetch=fetch, dtype="bfloat16", painter=painter)
    # What has a value: no training operation, no list of tensors.
    painting = done.graphs[0].result.painting
    fetch = [n for n in fetch if n in painting and "element_dtype" not in painting[n]]
    got = run(tf, done.graphs[0].result.graph_def, fetch, **feed)
    for half, full in zip(got, run(tf, graph, fetch, **feed), strict=True):
        assert (half.shape, half.dtype) == (full.shape, full.dtype)


def _module(tf):
    class Net(tf.Module):
        """Two functions that share variables; one is called by the other."""

        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(_random(3, 3, 3, 4) / 3, name="kernel")
            self.weights = tf.Variable(_random(4, 5), name="weights")
            self.steps = tf.Variable(0, dtype=tf.int64)

        @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 3], tf.float32)])
        def features(self, x):
            return tf.reduce_max(tf.nn.relu(tf.nn.conv2d(x, self.kernel, 1, "SAME")), [1, 2])

        @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 3], tf.float32)])
        def predict(self, x):
            self.steps.assign_add(1)
            scores = self.features(x) @ self.weights
            return {"scores": scores, "shares": tf.nn.softmax(scores)}

    return Net()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saved_model_there_and_back(tf, tmp_path, dtype):
    net, x = _module(tf), _random(2, 6, 6, 3)
    tf.saved_model.save(net, str(tmp_path / "full"), signatures={"predict": net.predict})
    done = rewrite_file(tmp_path / "full", tmp_path / "half", dtype=dtype)
    assert done.graphs[0].result.functions
    loaded = tf.saved_model.load(str(tmp_path / "half"))
    full = net.predict(tf.constant(x))
    for got in (
        loaded.signatures["predict"](x=tf.constant(x)),
        loaded.predict(tf.constant(x)),
    ):
        for name in ("scores", "shares"):
            assert got[name].dtype == tf.float32
            assert_close(got[name], full[name], dtype)
    np.testing.assert_array_equal(loaded.kernel.numpy(), net.kernel.numpy())
    assert int(loaded.steps) == 2
    # It did run in half: the scores are those of rounded operands, not the same bits.
    assert np.abs(np.asarray(got["scores"]) - np.asarray(full["scores"])).max() > 0
    # TensorFlow saves what it loaded, and duotone finds nothing left to do in that.
    tf.saved_model.save(loaded, str(tmp_path / "again"), signatures=loaded.signatures)
    assert files.read(tmp_path / "again").kind == "SavedModel"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_keras_model_exported(tf, tmp_path, dtype):
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another backend")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((16, 8)),
            keras.layers.LSTM(12, return_sequences=True),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(6, activation="gelu"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.export(str(tmp_path / "full"), verbose=False)
    rewrite_file(tmp_path / "full", tmp_path / "half", dtype=dtype)
    x = _random(2, 16, 8)
    loaded = tf.saved_model.load(str(tmp_path / "half"))  # it owns the variables
    assert_close(loaded.serve(tf.constant(x)), model(x), dtype)


def test_a_saved_model_of_tensorflow_1(tf, tmp_path):
    v1, x = tf.compat.v1, _random(3, 4)
    with tf.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(tf.float32, [None, 4], "given")
        weights = v1.get_variable("weights", initializer=_random(4, 2), use_resource=False)
        scores = tf.matmul(given, weights)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "full"), {"x": given}, {"y": scores})
    rewrite_file(tmp_path / "full", tmp_path / "half")
    with tf.Graph().as_default(), v1.Session() as session:
        loaded = v1.saved_model.load(session, ["serve"], str(tmp_path / "half"))
        names = loaded.signature_def["serving_default"]
        feed = {names.inputs["x"].name: x}
        got = session.run(names.outputs["y"].name, feed)
    assert_close(got, x @ _random(4, 2), "float16")


def test_text_that_tensorflow_writes_and_reads(tf, tmp_path):
    graph = tf.compat.v1.GraphDef.FromString(graphs.chain().SerializeToString())
    tf.io.write_graph(graph, str(tmp_path), "graph.pbtxt")
    rewrite_file(tmp_path / "graph.pbtxt", tmp_path / "half.pbtxt")
    from google.protobuf import text_format

    message = tf.compat.v1.GraphDef()
    text_format.Parse(Path(tmp_path / "half.pbtxt").read_text(), message)
    assert len(message.node) == 8


def test_a_graph_of_tensorflows_own_class_is_welcome(tf):
    graph = tf.compat.v1.GraphDef.FromString(graphs.chain().SerializeToString())
    result = rewrite(graph, fetch=["result"])
    assert isinstance(result.graph_def, tf.compat.v1.GraphDef)
