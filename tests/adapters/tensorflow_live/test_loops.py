"""Loops of one's own, and distribution strategies: all replicas take a step, or none."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import duotone
from duotone.errors import ArgumentError
from tests.adapters.tensorflow_live.small import (
    BATCH,
    X,
    Y,
    bad,
    half_operations,
    model,
    same_bits,
    step_of,
    wrap,
)
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow

WORKER = Path(__file__).with_name("workers.py")
SMALL = duotone.dynamic_loss_scale(2.0**10)
"""A scale at which the first steps do not overflow."""


def loop(tf, opt, trained):
    """A compiled step of one's own."""

    return tf.function(step_of(opt, trained))


def _all(trained, opt):
    return [v.numpy() for v in (*trained.variables, *opt.inner_optimizer.variables)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_loop_trains_in_half(tf, dtype):
    import keras

    opt, trained = wrap(keras.optimizers.Adam(1e-2), dtype), model()
    step = loop(tf, opt, trained)
    first = float(step(X, Y))
    last = min(float(step(X, Y)) for _ in range(60))
    assert last < first / 5
    assert any("MatMul" in name for name in half_operations())


def test_a_skipped_step_of_a_loop_changes_nothing(tf):
    """The loss scale may be read before the variables of the optimizer exist."""
    import keras

    opt, trained = wrap(keras.optimizers.Adam(1e-2), loss_scale=SMALL), model()
    step = loop(tf, opt, trained)
    step(bad(), BATCH[1])
    for number in range(2, 10):
        skips = number in (7, 8)
        before = _all(trained, opt)
        step(bad() if skips else BATCH[0], BATCH[1])
        assert same_bits(before, _all(trained, opt)) == skips
    assert opt.metrics()["loss_scale"] == 2**7
    assert int(opt.iterations) == 6


def test_the_gradients_are_those_of_the_loss(tf):
    """The scale that multiplies and the one that divides are the same after it has changed."""
    import keras

    def weights(opt):
        trained = model()
        step = loop(tf, opt, trained)
        for x in (BATCH[0], bad(), BATCH[0], BATCH[0]):
            step(x, BATCH[1])
        return trained.layers[0].kernel.numpy()

    scaled = weights(wrap(keras.optimizers.SGD(1e-2), loss_scale=SMALL))
    same = weights(wrap(keras.optimizers.SGD(1e-2), loss_scale=None))
    np.testing.assert_allclose(scaled, same, atol=1e-3)
    assert not np.array_equal(scaled, model().layers[0].kernel.numpy())


def test_a_tape_outside_of_the_graph(tf):
    import keras

    opt, trained = wrap(keras.optimizers.Adam(1e-2), loss_scale=SMALL), model()

    @tf.function
    def loss_of(x, y):
        return tf.reduce_mean((trained(x, training=True) - y) ** 2)

    def step(x):
        with tf.GradientTape() as tape:
            scaled = opt.scale_loss(loss_of(x, BATCH[1]))
        opt.apply(tape.gradient(scaled, trained.trainable_variables), trained.trainable_variables)

    step(BATCH[0])
    before = [v.numpy() for v in trained.trainable_variables]
    step(bad())
    assert same_bits(before, [v.numpy() for v in trained.trainable_variables])
    assert opt.metrics()["skipped_steps"] == 1
    assert any("MatMul" in name for name in half_operations())


def test_a_bare_tape_is_refused(tf):
    import keras

    opt, w = wrap(keras.optimizers.SGD(0.1)), tf.Variable(1.0)
    with pytest.raises(ArgumentError, match=r"optimizer\.scale_loss\(loss\)"):
        opt.apply([tf.constant(1.0)], [w])


def two_replicas(tf):
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _replicas(variables):
    """The values of variables in all replicas."""
    tensors = [getattr(v, "value", v) for v in variables]
    return [t.numpy() for v in tensors for t in getattr(v, "values", (v,))]


@pytest.mark.parametrize("row", [0, -1], ids=["first", "second"])
def test_an_overflow_in_one_replica_skips_the_step_of_all(tf, row):
    import keras

    with two_replicas(tf).scope():
        trained = model()
        trained.compile(optimizer=wrap(keras.optimizers.Adam(1e-2)), loss="mse", jit_compile=False)
    trained.fit(X, Y, batch_size=64, verbose=0, epochs=2)
    assert any("MatMul" in name for name in half_operations())
    opt = trained.optimizer
    everything = [*trained.variables, *opt.inner_optimizer.variables]
    before, scale = _replicas(everything), opt.dynamic_scale.value.values[0].numpy()
    assert len(before) == 2 * len(everything)
    trained.fit(bad(row=row), BATCH[1], batch_size=64, verbose=0, shuffle=False)
    assert same_bits(before, _replicas(everything))
    assert _replicas([opt.dynamic_scale]) == [scale / 2] * 2
    assert opt.metrics()["skipped_steps"] >= 1
    trained.fit(X, Y, batch_size=64, verbose=0)
    assert not same_bits(before, _replicas(everything))
    assert np.isfinite(np.concatenate([np.ravel(v) for v in _replicas(everything)])).all()


@pytest.mark.parametrize("row", [0, -1], ids=["first", "second"])
def test_a_loop_in_a_strategy(tf, row):
    import keras

    strategy = two_replicas(tf)
    with strategy.scope():
        opt, trained = wrap(keras.optimizers.Adam(1e-2), loss_scale=SMALL), model()
        opt.build(trained.trainable_variables)
    step = loop(tf, opt, trained)

    @tf.function
    def all_replicas(batch):
        return strategy.run(step, args=batch)

    def run(x):
        batches = tf.data.Dataset.from_tensor_slices((x, BATCH[1])).batch(64)
        for batch in strategy.experimental_distribute_dataset(batches):
            all_replicas(batch)

    everything = [*trained.variables, *opt.inner_optimizer.variables]
    for number in range(1, 10):
        skips = number in (1, 7, 8)
        before = _replicas(everything)
        run(bad(row=row) if skips else BATCH[0])
        assert same_bits(before, _replicas(everything)) == skips
    assert opt.metrics()["skipped_steps"] == 3


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def test_an_overflow_in_one_worker_skips_the_step_of_both():
    ports = [_free_port(), _free_port()]
    environment = {**os.environ, "PYTHONPATH": str(WORKER.parents[3])}
    processes = [
        subprocess.Popen(
            [sys.executable, WORKER, str(number), *ports],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in (0, 1)
    ]
    try:
        results = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for out, err in results:
        assert out, err[-2000:]
        assert json.loads(out.splitlines()[-1]) == [[1, 7, 8], 3]
