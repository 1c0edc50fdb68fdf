"""Optimizers of TensorFlow 1 in Sessions and in ``tf.function``."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import logging

import numpy as np
import pytest

from duotone.errors import ArgumentError
from duotone.tensorflow.live import switch
from tests.adapters.tensorflow_live.small import BATCH, X, Y, bad, half_operations, wrap
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow


class Program:
    """A network in a graph of its own, with a step."""

    def __init__(self, tf, opt, *, resource=True, norm=False):
        v1 = tf.compat.v1
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, (None, 20))
            self.y = v1.placeholder(tf.float32, (None, 1))
            self.count = v1.train.get_or_create_global_step()
            first = _weights(v1, "first", (20, 64), resource)
            second = _weights(v1, "second", (64, 1), resource)
            hidden = tf.nn.relu(self.x @ first)
            if norm:
                hidden = _normalized(tf, hidden, resource)
            self.loss = tf.reduce_mean((hidden @ second - self.y) ** 2)
            updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
            with tf.control_dependencies(updates):
                self.step = opt.minimize(self.loss, global_step=self.count)
            self.metrics = {n: t for n, t in opt.metrics().items() if n != "dtype"}
            self.values = v1.global_variables()
            self.values = [v for v in self.values if "/loss_scale/" not in v.name]
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def run(self, x, y):
        return self.session.run([self.step, self.loss], {self.x: x, self.y: y})[1]

    def read(self):
        return self.session.run(self.values)

    def read_metrics(self):
        return self.session.run(self.metrics)


def _weights(v1, name, shape, resource):
    initial = v1.glorot_uniform_initializer(seed=1)
    return v1.get_variable(name, shape, initializer=initial, use_resource=resource)


def _normalized(tf, x, resource):
    """Batch normalization with moving statistics, as TensorFlow 1 wrote it."""
    v1 = tf.compat.v1
    mean, variance = tf.nn.moments(x, [0])
    for name, new in (("mean", mean), ("variance", variance)):
        moving = v1.get_variable(
            name,
            new.shape,
            initializer=v1.zeros_initializer,
            trainable=False,
            use_resource=resource,
        )
        update = v1.assign_sub(moving, (moving - new) * 0.1)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


@pytest.fixture(params=[True, False], ids=["resource", "reference"])
def resource(request, tf):
    """Whether variables are resources; references need the control flow of TensorFlow 1."""
    if not request.param:
        tf.compat.v1.disable_control_flow_v2()
    yield request.param
    tf.compat.v1.enable_control_flow_v2()


def _same(before, after):
    return all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_session_trains_in_half(tf, dtype, resource):
    opt = wrap(tf.compat.v1.train.AdamOptimizer(1e-2), dtype)
    program = Program(tf, opt, resource=resource)
    first = program.run(X, Y)
    last = min(program.run(X, Y) for _ in range(60))
    assert last < first / 5
    half = half_operations()
    assert any("MatMul" in name for name in half)
    assert not [name for name in half if switch.FLOAT32_SCOPE in name]


def test_a_skipped_step_changes_nothing(tf, resource):
    opt = wrap(tf.compat.v1.train.AdamOptimizer(1e-2), loss_scale=1024)
    program = Program(tf, opt, resource=resource, norm=True)
    for number in range(1, 10):
        skips = number in (1, 7, 8)
        before = program.read()
        program.run(bad() if skips else BATCH[0], BATCH[1])
        assert _same(before, program.read()) == skips
    assert program.session.run(program.count) == 6
    metrics = program.read_metrics()
    assert metrics["skipped_steps"] == 3
    assert metrics["loss_scale"] == 1024


def test_the_scale_falls_and_is_in_the_checkpoint(tf, tmp_path):
    opt = wrap(tf.compat.v1.train.GradientDescentOptimizer(1e-3))
    program = Program(tf, opt)
    program.run(bad(), BATCH[1])
    assert program.read_metrics()["loss_scale"] == 2**14
    with program.graph.as_default():
        saver = tf.compat.v1.train.Saver()
        path = saver.save(program.session, str(tmp_path / "model"))
        program.run(bad(), BATCH[1])
        saver.restore(program.session, path)
    assert program.read_metrics()["loss_scale"] == 2**14


def test_a_loaded_graph_has_the_whole_step_as_its_train_op(tf, resource, tmp_path):
    v1 = tf.compat.v1
    opt = wrap(v1.train.GradientDescentOptimizer(1e-3), loss_scale=1024)
    program = Program(tf, opt, resource=resource)
    with program.graph.as_default():
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [program.step]
        path = v1.train.Saver().save(program.session, str(tmp_path / "model"))
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.import_meta_graph(path + ".meta").restore(session, path)
        (step,) = v1.get_collection(v1.GraphKeys.TRAIN_OP)
        weights = next(v for v in v1.trainable_variables() if v.op.name == "first")
        for x, moves in ((BATCH[0], True), (bad(), False)):
            before = session.run(weights)
            session.run(step, {program.x.name: x, program.y.name: BATCH[1]})
            assert np.any(session.run(weights) != before) == moves


def test_clipping_by_value_does_not_hide_an_overflow(tf):
    v1 = tf.compat.v1
    opt = wrap(v1.train.GradientDescentOptimizer(1e-2), loss_scale=2.0**126)
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", (), initializer=v1.zeros_initializer)
        ((gradient, _),) = opt.compute_gradients(w * 1e5)
        step = opt.apply_gradients([(tf.clip_by_value(gradient, -1.0, 1.0), w)])
        session.run(v1.global_variables_initializer())
        assert session.run([gradient, step])[0] == np.inf
        assert session.run(w) == 0.0


def test_two_groups_of_variables_overflow_separately(tf):
    """Gradients of both are computed before the first step, as in a GAN."""
    v1 = tf.compat.v1
    opt = wrap(v1.train.GradientDescentOptimizer(1e-2), loss_scale=2.0)
    with tf.Graph().as_default(), v1.Session() as session:
        sizes = [v1.placeholder(tf.float32, ()) for _ in range(2)]
        variables = [v1.get_variable(name, (), initializer=v1.ones_initializer) for name in "ab"]
        pairs = [opt.compute_gradients(v * s, [v]) for v, s in zip(variables, sizes, strict=True)]
        steps = [opt.apply_gradients(pair) for pair in pairs]
        session.run(v1.global_variables_initializer())
        session.run(steps[0], {sizes[0]: 1.0})  # needs no gradient of the other group
        session.run(steps[1], {sizes[1]: np.inf})
        assert session.run(variables) == [np.float32(0.99), 1.0]


@pytest.mark.parametrize("replica", [0, 1])
def test_an_overflow_in_one_replica_skips_the_step_of_all(tf, replica):
    v1, strategy = tf.compat.v1, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with tf.Graph().as_default(), strategy.scope():
        opt = wrap(v1.train.MomentumOptimizer(1e-2, 0.9), loss_scale=64)
        w = v1.get_variable("w", (20, 1), initializer=v1.ones_initializer())
        count = v1.train.get_or_create_global_step()
        size = v1.placeholder(tf.float32, ())

        def step():
            here = tf.distribute.get_replica_context().replica_id_in_sync_group
            x = tf.ones((4, 20)) * tf.where(tf.equal(here, replica), size, 1.0)
            return opt.minimize(tf.reduce_mean((x @ w) ** 2), global_step=count)

        train = strategy.group(strategy.run(step))
        slots = [opt.get_slot(variable, "momentum") for variable in w.values]
        kept = [*w.values, *slots, *count.values]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {size: 1.0})
            before = session.run(kept)
            session.run(train, {size: 1e38})
            assert _same(before, session.run(kept))
            session.run(train, {size: 1.0})
            assert not _same(before, session.run(kept))


def test_a_function_minimizes(tf):
    opt = wrap(tf.compat.v1.train.MomentumOptimizer(1e-3, 0.9), loss_scale=64)
    w = tf.Variable(np.full((20, 1), 0.1, np.float32))

    @tf.function
    def step(x, y):
        opt.minimize(lambda: tf.reduce_mean((x @ w - y) ** 2), var_list=[w])

    step(*BATCH)
    before = w.numpy()
    assert not np.array_equal(before, np.full((20, 1), 0.1, np.float32))
    step(bad(), BATCH[1])
    assert np.array_equal(before, w.numpy())
    assert opt.metrics()["skipped_steps"] == 1
    assert opt.get_slot(w, "momentum") is not None


def test_a_graph_in_float64_is_said_to_stay_so(tf, caplog):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), caplog.at_level(logging.WARNING, "duotone"):
        w = v1.get_variable("w", (20, 1), tf.float64)
        loss = tf.reduce_mean((tf.constant(BATCH[0], tf.float64) @ w - BATCH[1]) ** 2)
        step = wrap(v1.train.AdamOptimizer(1e-2)).minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            first = session.run(loss)
            session.run(step)
            assert session.run(loss) < first
    assert "the trained variables are float64" in caplog.text


def test_eager_steps_are_refused(tf):
    opt = wrap(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    w = tf.Variable(1.0)
    with pytest.raises(ArgumentError, match=r"tf\.function"):
        opt.minimize(lambda: w * w, var_list=[w])
    with pytest.raises(ArgumentError, match=r"tf\.function"):
        opt.apply_gradients([(tf.constant(1.0), w)])
