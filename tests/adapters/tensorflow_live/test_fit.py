"""Keras' ``fit`` with a wrapped optimizer: half operations, loss scales, skipped steps."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import logging

import numpy as np
import pytest

import duotone
from duotone.errors import ArgumentError
from duotone.tensorflow.live import switch
from tests.adapters.tensorflow_live.small import (
    BATCH,
    X,
    Y,
    bad,
    compiled,
    half_operations,
    model,
    same_bits,
    values,
    wrap,
)
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_fit_trains_in_half_and_updates_in_float32(tf, dtype):
    import keras

    trained = compiled(wrap(keras.optimizers.Adam(1e-2), dtype))
    loss = trained.fit(X, Y, batch_size=64, epochs=10, verbose=0).history["loss"]
    assert loss[-1] < loss[0] / 5
    half = half_operations()
    assert any("MatMul" in name for name in half)
    assert not [name for name in half if switch.FLOAT32_SCOPE in name]


def test_the_device_chooses_the_half_type(tf, monkeypatch, caplog):
    import keras

    from duotone.adapters.tensorflow import settings
    from duotone.devices.half_choice import HalfChoice

    monkeypatch.setattr(settings, "choose_for", lambda tf: HalfChoice("bfloat16", "fast"))
    opt = duotone.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD())
    assert opt.half == "bfloat16"
    assert switch.is_enabled()
    switch.disable()
    monkeypatch.setattr(settings, "choose_for", lambda tf: HalfChoice(None, "nothing is fast"))
    with caplog.at_level(logging.WARNING, "duotone"):
        opt = duotone.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD())
    assert "nothing is fast" in caplog.text
    assert opt.metrics()["dtype"] == "float32"
    assert not switch.is_enabled()


def test_without_a_word_a_loss_scale_is_only_for_float16(tf):
    import keras

    half = wrap(keras.optimizers.SGD(), "bfloat16")
    assert half.metrics()["loss_scale"] == 1.0
    switch.disable()
    assert wrap(keras.optimizers.SGD(), "float16").metrics()["loss_scale"] == 2**15


@pytest.mark.parametrize("jit", [False, True])
def test_a_skipped_step_changes_nothing(tf, jit):
    import keras

    trained = compiled(wrap(keras.optimizers.Adam(1e-2), loss_scale=1024), jit_compile=jit)
    for number in range(1, 10):
        skips = number in (1, 7, 8)
        trained.optimizer.build(trained.trainable_variables)
        before = values(trained)
        trained.train_on_batch(bad() if skips else BATCH[0], BATCH[1])
        assert same_bits(before, values(trained)) == skips
        assert trained.optimizer.metrics()["last_finite"] == (not skips)
    assert trained.optimizer.metrics()["skipped_steps"] == 3
    assert trained.optimizer.metrics()["loss_scale"] == 1024
    assert int(trained.optimizer.iterations) == 6


def test_the_scale_falls_and_grows(tf):
    import keras

    scale = duotone.dynamic_loss_scale(2.0**10, growth_interval=2)
    trained = compiled(wrap(keras.optimizers.SGD(1e-3), loss_scale=scale))
    seen = []
    for x in (bad(), BATCH[0], BATCH[0], BATCH[0]):
        trained.train_on_batch(x, BATCH[1])
        seen.append(trained.optimizer.metrics()["loss_scale"])
    assert seen == [2**9, 2**9, 2**10, 2**10]


def test_a_large_first_loss_lowers_the_scale_at_once(tf):
    import keras

    trained = compiled(wrap(keras.optimizers.SGD(1e-9)))
    trained.train_on_batch(BATCH[0], BATCH[1] + 3e3)
    metrics = trained.optimizer.metrics()
    assert metrics["skipped_steps"] == 1  # the gradient is half: 6e3 * 2**15 overflows
    assert (
        metrics["loss_scale"]
        == duotone.dynamic_loss_scale().fitted_to(9e6, False).adjust(False).value
    )


def test_many_bad_batches_and_a_good_one(tf):
    import keras

    trained = compiled(wrap(keras.optimizers.Adam(1e-2)))
    trained.fit(X[:64].repeat(200, 0) * np.nan, Y[:64].repeat(200, 0), batch_size=64, verbose=0)
    assert trained.optimizer.metrics()["skipped_steps"] == 200
    assert trained.optimizer.metrics()["loss_scale"] == 1.0
    trained.train_on_batch(*BATCH)
    assert int(trained.optimizer.iterations) == 1
    assert all(np.isfinite(value).all() for value in values(trained))


@pytest.mark.parametrize("steps", [1, 4])
def test_several_steps_in_one_call(tf, steps):
    import keras

    trained = compiled(wrap(keras.optimizers.Adam(1e-2), loss_scale=64), steps_per_execution=steps)
    trained.fit(X, Y, batch_size=64, verbose=0, shuffle=False)
    before = values(trained)
    trained.fit(X * np.inf, Y, batch_size=64, verbose=0, shuffle=False)
    assert same_bits(before, values(trained))
    assert trained.optimizer.metrics()["skipped_steps"] == 4


def test_gradient_accumulation_skips_single_batches(tf):
    import keras

    inner = keras.optimizers.SGD(1e-2, gradient_accumulation_steps=2)
    trained = compiled(wrap(inner, loss_scale=64))
    trained.train_on_batch(*BATCH)
    before = values(trained)
    trained.train_on_batch(bad(), BATCH[1])
    assert same_bits(before, values(trained))
    weights = trained.get_weights()[0]
    trained.train_on_batch(*BATCH)
    assert not np.array_equal(weights, trained.get_weights()[0])


def test_a_step_of_ones_own_is_guarded_too(tf):
    import keras

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.body = model()

        def call(self, x, training=False):
            return self.body(x, training=training)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    trained = Own()
    trained.compile(optimizer=wrap(keras.optimizers.Adam(1e-2), loss_scale=64), jit_compile=False)
    trained.fit(X, Y, batch_size=64, verbose=0)
    before = values(trained)
    trained.fit(bad(), BATCH[1], batch_size=64, verbose=0)
    assert same_bits(before, values(trained))
    assert "train_step" not in vars(trained)


def test_a_step_of_the_model_itself_is_guarded_too(tf):
    import keras

    trained = compiled(wrap(keras.optimizers.Adam(1e-2), loss_scale=64))
    keras_step = trained.train_step
    trained.train_step = own = lambda data: keras_step(data)
    trained.fit(X, Y, batch_size=64, verbose=0)
    before = values(trained)
    trained.fit(bad(), BATCH[1], batch_size=64, verbose=0)
    assert same_bits(before, values(trained))
    assert trained.train_step is own


def test_two_optimizers_of_one_model(tf):
    """Each skips its own steps; statistics are restored if one of them skips."""
    import keras

    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [model(), model()]
            self.opts = [wrap(keras.optimizers.SGD(1e-2), loss_scale=64) for _ in range(2)]

        def train_step(self, data):
            x, y, _ = data
            loss = 0.0
            for part, opt, inputs in zip(self.parts, self.opts, (x, BATCH[0]), strict=True):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((part(inputs, training=True) - y) ** 2)
                    scaled = opt.scale_loss(loss)
                gradients = tape.gradient(scaled, part.trainable_variables)
                opt.apply(gradients, part.trainable_variables)
            return {"loss": loss}

    trained = Two()
    trained.compile(jit_compile=False)
    trained.train_on_batch(*BATCH)
    before = [part.get_weights() for part in trained.parts]
    trained.train_on_batch(bad(), BATCH[1])
    after = [part.get_weights() for part in trained.parts]
    assert same_bits(before[0], after[0])
    assert not same_bits(before[1][:2], after[1][:2])
    assert [opt.metrics()["skipped_steps"] for opt in trained.opts] == [1, 0]


def test_layers_of_mixed_dtype_are_refused(tf):
    import keras

    layers = [keras.layers.Dense(1, dtype="mixed_float16")]
    mixed = keras.Sequential([keras.layers.Input((20,)), *layers])
    mixed.compile(optimizer=wrap(keras.optimizers.SGD()), loss="mse")
    with pytest.raises(ArgumentError, match="mixed_float16"):
        mixed.fit(X, Y, verbose=0)


def test_sparse_gradients_are_unscaled(tf):
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(0)

    def train(opt):
        keras.utils.set_random_seed(0)
        made = keras.Sequential([layers.Embedding(10, 4), layers.Flatten(), layers.Dense(1)])
        made.compile(optimizer=opt, loss="mse", jit_compile=False)
        made.fit(np.arange(8)[:, None] % 5, np.ones((8, 1)), verbose=0, epochs=3)
        return made.layers[0].embeddings.numpy()

    scaled = train(wrap(keras.optimizers.SGD(0.1), loss_scale=2**10))
    switch.disable()
    np.testing.assert_allclose(scaled, train(keras.optimizers.SGD(0.1)), atol=1e-3)


def test_fit_says_that_steps_were_skipped(tf, caplog):
    import keras

    trained = compiled(wrap(keras.optimizers.SGD(1e-3), loss_scale=64))
    with caplog.at_level(logging.WARNING, "duotone"):
        trained.fit(X, Y, batch_size=64, verbose=0)
        assert "skipped" not in caplog.text
        trained.fit(X * np.inf, Y, batch_size=64, verbose=0, epochs=8)
    lines = [record.message for record in caplog.records if "skipped" in record.message]
    assert [line.split(" skipped")[0] for line in lines] == ["4 steps"]


def test_running_eagerly_is_said(tf, caplog):
    import keras

    trained = compiled(wrap(keras.optimizers.SGD(1e-2), loss_scale=64), run_eagerly=True)
    with caplog.at_level(logging.WARNING, "duotone"):
        trained.fit(X, Y, batch_size=64, verbose=0)
    assert "run_eagerly=False" in caplog.text
    before = values(trained)
    trained.fit(bad(), BATCH[1], verbose=0, batch_size=64)
    assert same_bits(before, values(trained))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("jit", [False, True])
def test_a_model_in_float64_trains_and_is_said_to_stay_so(tf, dtype, jit, caplog):
    import keras

    keras.config.set_dtype_policy("float64")
    try:
        trained = compiled(wrap(keras.optimizers.SGD(1e-3), dtype), jit_compile=jit)
        with caplog.at_level(logging.WARNING, "duotone"):
            history = trained.fit(X, Y, batch_size=64, verbose=0, epochs=2).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    assert history[1] < history[0]
    lines = [r.getMessage() for r in caplog.records if "trained variables" in r.getMessage()]
    assert len(lines) == 1
    assert f"are float64, and duotone makes float32 operations {dtype}" in lines[0]
    assert not switch.rewritten_graphs()
