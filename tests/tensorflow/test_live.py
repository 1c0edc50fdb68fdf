"""Graphs of a running TensorFlow: each program in a process of its own.

A registration with Grappler is permanent, so no two programs share a process. ``make
test-tensorflow`` runs these in an environment of their own; elsewhere they are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow
ROOT = Path(__file__).parents[2]
START = """
import logging, sys, threading
import numpy as np
import tensorflow as tf
import duotone.tensorflow
from duotone import Policy
from duotone.tensorflow.live import graphs, jit, plugin, switch
from duotone.tensorflow.live.graphs import LiveSettings

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
W = tf.constant(np.random.default_rng(0).standard_normal((256, 256)).astype("f") / 16)
X = tf.constant(np.random.default_rng(1).standard_normal((256, 256)).astype("f"))

def net(x):
    return tf.nn.relu(x @ W) @ W

def recur(x):
    out = tf.TensorArray(tf.float32, 6)
    h = x
    for i in tf.range(6):
        h = tf.tanh(h @ W)
        out = out.write(i, h)
    return out.stack()

def on(dtype="bfloat16", **given):
    any_device = given.pop("any_device", dtype == "float16")
    switch.enable(LiveSettings(dtype, Policy(**given), any_device=any_device))

def half_ops():
    return {d.op for g in switch.rewritten_graphs() for d in g.result.decisions
            if d.precision != "f32"}
"""


def run(program: str, *, fails: bool = False) -> str:
    """Runs a program after :data:`START`; returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("DUOTONE_TEST_TENSORFLOW", None)
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(START + textwrap.dedent(program))  # AutoGraph reads the source of a function
    done = subprocess.run(
        [sys.executable, file.name],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    Path(file.name).unlink()
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout + (done.stderr if fails else "")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_function_is_half_and_float32_again(dtype):
    out = run(f"""
    f = tf.function(net)
    full = f(X).numpy()
    on("{dtype}")
    half = f(X).numpy()
    assert not np.array_equal(half, full)
    np.testing.assert_allclose(half, full, atol=0.05)
    assert {{"MatMul", "Relu"}} <= half_ops()
    duotone.tensorflow.disable_mixed_precision_graph_rewrite()
    np.testing.assert_array_equal(f(X).numpy(), full)
    on("{dtype}")
    np.testing.assert_array_equal(f(X).numpy(), half)
    """)
    assert "rewrote a graph of" in out
    assert f"in {dtype}, " in out


@pytest.mark.parametrize("painter", ["duotone", "tensorflow", "mincut"])
def test_a_session(painter):
    run(f"""
    v1 = tf.compat.v1
    on(painter="{painter}")
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (None, 256), "x")
        w = v1.get_variable("w", initializer=W.numpy() if tf.executing_eagerly() else
                            np.random.default_rng(0).standard_normal((256, 256)).astype("f") / 16)
        y = tf.nn.relu(x @ w) @ w
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            found = session.run(y, {{x: np.ones((256, 256), "f")}})
    assert found.dtype == np.float32
    assert "MatMul" in half_ops()
    """)


def test_a_loop_and_lists_of_tensors():
    run("""
    f = tf.function(lambda x: tf.reduce_sum(recur(x) @ W))
    full = float(f(X))
    on()
    half = float(f(X))
    assert half != full
    assert abs(half - full) < 0.02 * abs(full) + 1
    assert "MatMul" in half_ops()
    """)


def test_jit_compile():
    """Catches: float32 without a word, since Grappler sees a compiled function as one call."""
    run("""
    full = tf.function(net, jit_compile=True)(X).numpy()
    on()
    f = tf.function(net, jit_compile=True)
    half = f(X).numpy()
    assert not np.array_equal(half, full)
    np.testing.assert_allclose(half, full, atol=0.05)
    text = f.experimental_get_compiler_ir(X)("hlo")
    assert "bf16[256,256]" in text and "dot(" in text
    """)


def test_jit_compile_with_functions_inside():
    """Catches: a nested function that is rewritten for its other callers too."""
    run("""
    inner = tf.function(lambda x: tf.nn.relu(x @ W) @ W)
    outer = lambda x: inner(inner(x))
    full, plain = tf.function(outer, jit_compile=True)(X).numpy(), inner(X).numpy()
    on()
    half = tf.function(lambda x: inner(inner(x)), jit_compile=True)(X).numpy()
    assert not np.array_equal(half, full)
    switch.disable()
    np.testing.assert_array_equal(inner(X).numpy(), plain)
    """)


def test_jit_compile_with_a_recurrent_loop():
    run("""
    total = lambda x: tf.reduce_sum(recur(x))
    full = float(tf.function(total, jit_compile=True)(X))
    on()
    half = float(tf.function(total, jit_compile=True)(X))
    assert half != full and abs(half - full) < 0.05 * abs(full) + 1
    """)


def test_a_bias_that_is_no_vector():
    """Catches: a BiasAdd of [1, 1, 1, n], which the remapper takes for one, and its kernel not."""
    run("""
    w = tf.Variable(tf.random.normal((7, 7, 64, 1)) / 56)
    b = tf.Variable([1.0])
    x = tf.random.normal((16, 32, 32, 64))

    @tf.function
    def f(x):
        return tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") + tf.reshape(b, (1, 1, 1, 1)))

    full = f(x).numpy()
    on()
    half = f(x).numpy()
    assert "Conv2D" in half_ops() and not np.array_equal(half, full)
    np.testing.assert_allclose(half, full, atol=0.5)
    """)


def test_an_input_pipeline_stays_float32():
    run("""
    on()
    data = tf.data.Dataset.from_tensor_slices(X).batch(32).map(net)
    for _ in data:
        pass
    assert switch.rewritten_graphs() == ()
    """)


def test_a_scope_stays_float32():
    run("""
    on(keep_full=(f"*{switch.FLOAT32_SCOPE}*",))

    @tf.function
    def f(x):
        with tf.name_scope(switch.FLOAT32_SCOPE):
            kept = x @ W
        return kept, (2.0 * x) @ W  # TensorFlow computes what is equal once

    kept, half = f(X)
    np.testing.assert_allclose(kept.numpy(), X.numpy() @ W.numpy(), rtol=1e-5, atol=1e-5)
    """)


def test_a_failure_is_no_silent_float32():
    """Catches: Grappler, which runs the graph as it was if its optimizer fails."""
    out = run("""
    on()
    def broken(*args, **kwargs):
        raise RuntimeError("planted")
    graphs.rewrite_nodes = broken
    try:
        tf.function(net)(X)
    except tf.errors.InvalidArgumentError as error:
        assert "duotone could not rewrite this graph: planted" in str(error)
    else:
        raise SystemExit("it ran")
    """)
    assert "duotone could not rewrite a graph of TensorFlow: planted" in out


def test_a_plug_in_that_is_not_called_is_an_error():
    out = run(
        """
        plugin._optimize = lambda api, callback, report: __import__(
            "duotone.tensorflow.live.c_api", fromlist=["Optimize"]
        ).Optimize(lambda _, graph, item, made, status: api.fill(made[0], __import__(
            "ctypes").string_at(graph[0].data, graph[0].length)))
        on()
        """,
        fails=True,
    )
    assert "does not call duotone's plug-in" in out


@pytest.mark.parametrize("device_type", ["CPU", "GPU"])
def test_another_plug_in_for_a_device_type_is_an_error(device_type):
    """Catches: a second registration, with which TensorFlow ends the process."""
    run(f"""
    from duotone.errors import TensorFlowError
    from duotone.tensorflow.live import c_api

    api = c_api.Api(tf)
    other = plugin._optimize(api, lambda data, preserved: None, print)
    plugin._register(api, b"{device_type}", other)
    others = [*plugin._alive]  # it is not duotone's
    plugin._alive.clear()
    for _ in range(2):
        try:
            on()
        except TensorFlowError as error:
            assert "another plug-in is registered for CPU or GPU" in str(error), error
        else:
            raise AssertionError
        assert not switch.is_enabled()
    tf.function(net)(X)
    """)


def test_another_version_of_the_api_is_an_error():
    out = run(
        """
        from duotone.tensorflow.live import c_api
        c_api.VERSION = (1, 0)
        on()
        """,
        fails=True,
    )
    assert "the version of its plug-in API is 0.0" in out


def test_many_threads_trace_at_once():
    run("""
    on()
    found, errors = [], []

    def work(n):
        try:
            f = tf.function(lambda x: net(x) * (n + 1.0))
            found.append(f(X).numpy() / (n + 1.0))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    [t.start() for t in threads]
    [t.join(120) for t in threads]
    assert not errors and len(found) == 16
    for one in found:
        np.testing.assert_allclose(one, found[0], rtol=1e-2, atol=1e-2)
    """)


def test_what_was_rewritten_is_explained():
    run("""
    assert "no graph was rewritten" in str(duotone.tensorflow.explain_last())
    on()
    tf.function(net)(X)
    explained = duotone.tensorflow.explain_last()
    assert "MatMul" in str(explained) and "half" in str(explained)
    assert "on the allow list" in explained.nodes("*")
    assert len(explained.graphs) == 1
    assert "matches no node" not in str(explained)
    """)


@pytest.mark.parametrize("jit", [False, True])
def test_half_nodes_that_are_not_safe_are_named(jit, tmp_path):
    """A filter bank of a power spectrum, of which a logarithm is taken."""
    out = run(f"""
    def features(x):
        return tf.math.log(tf.square(x @ W) @ tf.abs(W) + 1e-6)

    def unsafe(**given):
        on(**given)
        tf.function(features, jit_compile={jit})(X)
        return duotone.tensorflow.explain_last()

    found = unsafe(painter="tensorflow", log_path={str(tmp_path)!r})
    assert found.unsafe and all("matmul" in name.lower() for name in found.unsafe), found.unsafe
    assert "logarithm" in next(iter(found.unsafe.values()))
    assert "duotone's safety rules, such as" in str(found)
    found = unsafe()
    assert not found.unsafe and "safety rules" not in str(found)
    """)
    assert "makes half against a safety rule" in out
    assert len(list(tmp_path.glob("graphdef_AutoMixedPrecision_*.pb"))) == 1


def test_the_largest_graph_is_compared_with_its_original():
    """Catches: figures of a graph that TensorFlow's remapper fused before the rewrite."""
    run("""
    from duotone.errors import ArgumentError

    def refused(words):
        try:
            duotone.tensorflow.compare_last()
        except ArgumentError as error:
            assert words in str(error), error
        else:
            raise AssertionError

    refused("no graph was rewritten")
    on()
    bias = tf.constant(np.ones(256, "f"))
    tf.function(lambda x: tf.nn.relu(tf.nn.bias_add(x @ W, bias)) @ W)(X)
    tf.function(lambda x: x @ W)(X)
    found = duotone.tensorflow.compare_last()
    big = max(switch.rewritten_graphs(), key=lambda graph: graph.nodes)
    assert len(switch.rewritten_graphs()) == found.graphs == 2
    before, after = found.before, found.after
    assert (before.half, before.casts, before.cast_bytes) == (0, 0, 0)
    assert (after.half, after.casts) == (big.half, len(big.result.casts))
    assert after.cast_bytes == big.result.cast_bytes
    assert after.nodes == before.nodes + after.casts
    assert before.products == after.products == after.half_products == 2
    assert before.flops == after.half_flops == 2 * 2 * 256 ** 3
    value = 4 * 256 * 256
    assert found.changes["MatMul"] == (6 * value, 3 * value)
    shown = str(found)
    assert "the largest of 2 graphs in bfloat16" in shown and "2 of 2" in shown
    assert '"half_products": 2' in found.to_json()
    graphs.LARGEST_TEXT = switch.LARGEST_TEXT = 10
    on()
    tf.function(net)(X)
    refused("are not kept")
    """)


def test_a_compiled_function_is_compared_without_its_call():
    run("""
    on()
    tf.function(net, jit_compile=True)(X)
    found, (graph,) = duotone.tensorflow.compare_last(), switch.rewritten_graphs()
    assert found.before.nodes == graph.nodes
    assert found.after.nodes == graph.nodes + len(graph.result.casts)
    assert found.after.half == graph.half > 0
    """)


def test_patterns_that_match_nothing_are_named_where_graphs_are_explained():
    run("""
    on(keep_full=("*nowhere*", "*matmul_1*"))
    tf.function(net)(X)
    lines = str(duotone.tensorflow.explain_last()).splitlines()
    (line,) = [line for line in lines if "matches no node" in line]
    assert "keep_full=['*nowhere*']" in line
    """)


def test_comparing_a_step_logs_no_pattern():
    """Catches: a line about a pattern of duotone's own, which a wrapped optimizer adds."""
    said = run("""
    on(keep_full=("*duotone_float32*", "*nowhere*"))
    print(len(duotone.tensorflow.compare_step(tf.function(net), X).outputs))
    """)
    assert "1" in said.splitlines()
    assert "matches no node" not in said


def test_node_for_node_as_the_original():
    """The painter ``tensorflow`` against TensorFlow's own bfloat16 pass: the same half nodes."""
    run("""
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(W)
            loss = tf.reduce_mean(tf.nn.softmax(net(x)) ** 2)
        return tape.gradient(loss, W)

    # TensorFlow's other passes run before its own mixed precision and after ours, or around both.
    others = dict.fromkeys(
        "layout_optimizer constant_folding shape_optimization remapping arithmetic_optimization "
        "dependency_optimization loop_optimization function_optimization".split(), False
    )
    options = tf.config.optimizer.set_experimental_options
    own = "auto_mixed_precision_onednn_bfloat16"
    options({**others, own: True, "use_plugin_optimizers": False, "min_graph_nodes": -500})
    theirs = tf.function(step)(X).numpy()
    options({own: False, "min_graph_nodes": -501})
    full = tf.function(step)(X).numpy()
    on(painter="tensorflow")
    ours = tf.function(step)(X).numpy()
    assert not np.array_equal(full, theirs)
    np.testing.assert_array_equal(ours, theirs)
    """)


def test_options_that_call_no_plugin_are_named():
    """Catches: a Session or a process that runs in float32 without a word."""
    out = run("""
    v1 = tf.compat.v1

    def session(*args, **given):
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, (None, W.shape[0]))
            y = net(x)
            with v1.Session(*args, **given) as session:
                session.run(y, {x: given_x})

    given_x, W = X.numpy(), W.numpy()
    on()
    options = v1.ConfigProto()
    session(config=options)
    assert "MatMul" in half_ops()
    print("-- nothing before")
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    session("", None, options)
    options = v1.ConfigProto()
    options.graph_options.rewrite_options.use_plugin_optimizers = 2
    session(config=options)
    print("-- off")
    switch.disable()
    session(config=options)
    print("-- the process")
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    on()
    """)
    before, after = out.split("-- nothing before")
    sessions, after = after.split("-- off")
    off, process = after.split("-- the process")
    said = "run in float32"
    assert [part.count(said) for part in (before, sessions, off, process)] == [0, 2, 0, 1]
    assert "its config sets disable_meta_optimizer=True" in sessions
    assert "its config sets use_plugin_optimizers=OFF" in sessions


def test_a_check_that_fails_leaves_the_rewrite_off():
    run("""
    def fails(tf):
        raise RuntimeError("no device")

    switch._check = fails
    try:
        on()
    except RuntimeError:
        assert not switch.is_enabled()
    else:
        raise AssertionError
    """)


def test_a_graph_around_a_rewritten_one_is_rewritten_once():
    """Catches: casts of a rewritten file, for which the graph around them stays float32."""
    run("""
    v1, weights = tf.compat.v1, W.numpy()

    def inside(x):
        w = tf.constant(weights)
        return tf.nn.relu(x @ w) @ w

    def in_a_graph(build):
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, (None, weights.shape[0]), "x")
            build(x)
            return graph, x

    inner, _ = in_a_graph(lambda x: tf.identity(inside(x), "y"))
    file = duotone.tensorflow.rewrite(inner.as_graph_def(), fetch=["y"], dtype="bfloat16")
    assert file.casts
    definition = v1.GraphDef.FromString(file.graph_def.SerializeToString())

    def around(x):
        (y,) = tf.import_graph_def(definition, {"x": x}, ["y:0"], name="inner")
        tf.identity(inside(tf.exp(y)), "out")

    outer, x = in_a_graph(around)
    on()
    with v1.Session(graph=outer) as session:
        session.run("out:0", {x: np.ones((32, len(weights)), "f")})
    (found,) = switch.rewritten_graphs()
    half = {d.node for d in found.result.decisions if d.precision != "f32" and d.op == "MatMul"}
    assert any(not name.startswith("inner/") for name in half), half
    """)
