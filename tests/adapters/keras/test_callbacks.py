"""Callbacks of Keras work as ever, and LossScaleCallback shows the loss scale."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import logging
import re

import jax
import keras
import numpy as np
import pytest

import duotone.keras
from duotone.adapters.keras_callback import LossScaleCallback
from duotone.blaming.findings import Verdict
from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.scale import DynamicLossScale
from duotone.scale.monitor import LossScaleMonitor
from duotone.transforms import mixed_function as mixed
from tests.adapters.keras.small import bad, compiled, data, dense, is_half, values
from tests.quick import in_turns

X, Y = data()


def fit(model, *callbacks, epochs=3, x=X, **kwargs):
    settings = {"batch_size": 16, "verbose": 0, "callbacks": list(callbacks)} | kwargs
    return model.fit(x, Y, epochs=epochs, **settings).history


def test_callbacks_that_stop_save_and_change_the_rate(tmp_path):
    model = compiled(metrics=["accuracy"])
    path = tmp_path / "best.keras"
    history = fit(
        model,
        keras.callbacks.EarlyStopping("val_loss", mode="max", patience=1),  # stops at once
        keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        epochs=6,
        validation_data=(X, Y),
    )
    assert len(history["loss"]) == 2
    assert history["learning_rate"] == pytest.approx([0.05, 0.025])
    best = keras.saving.load_model(path)
    assert best.optimizer.metrics()["good_steps"] == 2
    assert float(best.optimizer.learning_rate) == pytest.approx(0.025)
    assert is_half(model, "test", (X, Y, None))


def test_reduce_learning_rate_on_plateau():
    model = compiled(inner=keras.optimizers.SGD(0.0))
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1.0)
    model.optimizer.learning_rate = 0.5
    assert float(model.optimizer.inner_optimizer.learning_rate) == 0.5
    fit(model, plateau, epochs=3)
    assert float(model.optimizer.learning_rate) < 0.5


def test_swap_ema_weights():
    """Evaluation runs on the averaged weights of the inner optimizer, training on its own."""
    model = compiled(inner=keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9))
    seen = {}

    class Look(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            seen["test"] = values(self.model.trainable_variables)

        def on_epoch_begin(self, epoch, logs=None):
            seen["train"] = values(self.model.trainable_variables)

    fit(model, keras.callbacks.SwapEMAWeights(), Look(), validation_data=(X, Y), epochs=3)
    average = values(model.optimizer.inner_optimizer._model_variables_moving_average)
    assert not np.array_equal(seen["test"][0], seen["train"][0])
    # After training Keras leaves the averages in the model.
    np.testing.assert_allclose(values(model.trainable_variables)[0], seen["test"][0], rtol=1e-6)
    assert len(average) == len(seen["test"])


def test_the_scale_is_in_the_logs(tmp_path):
    model = compiled(loss_scale=DynamicLossScale(2.0**30, cap=2.0**30))
    csv = tmp_path / "log.csv"
    history = fit(model, LossScaleCallback(), keras.callbacks.CSVLogger(csv), epochs=3)
    assert history["loss_scale"] == [2.0**29, 2.0**28, 2.0**27]
    assert history["skipped_steps"] == [1, 2, 3]
    assert "loss_scale" in csv.read_text().splitlines()[0]


def test_it_says_what_changed_and_nothing_else(caplog, monkeypatch):
    monkeypatch.setattr(mixed, "_LINES", set())  # of another test, whose model was alike
    model = compiled(loss_scale=DynamicLossScale(8, growth_interval=2))
    with caplog.at_level(logging.INFO, "duotone"):
        fit(model, LossScaleCallback(), epochs=3)
    begin, first, change = [r.getMessage() for r in caplog.records if r.name == "duotone"]
    assert "FLOPs in half" in first
    assert begin.startswith("step 0: loss scale 8")
    assert change.startswith("step 2: loss scale 16, 0 steps skipped")


def test_tensorboard(tmp_path):
    """Event files, written without TensorFlow; and any writer of scalars."""
    model = compiled(loss_scale=DynamicLossScale(2.0**30, cap=2.0**30))
    fit(model, LossScaleCallback(logdir=tmp_path), epochs=2)
    (file,) = tmp_path.glob("events*")
    assert b"duotone/loss_scale" in file.read_bytes()

    seen = []

    class Writer:
        def add_scalar(self, tag, value, step):
            seen.append((tag, value, step))

    fit(compiled(model, loss_scale=4.0), LossScaleCallback(writer=Writer()), epochs=2)
    scales = [(value, step) for tag, value, step in seen if tag == "duotone/loss_scale"]
    assert scales == [(4.0, 0), (4.0, 1), (4.0, 2)]


def test_one_warning_when_the_scale_is_stuck_at_its_floor(caplog):
    model = compiled(loss_scale=DynamicLossScale(2))
    with caplog.at_level(logging.WARNING, "duotone"):
        fit(model, LossScaleCallback(warn_after=3), x=bad(X), epochs=3)
        jax.effects_barrier()  # the step that is looked at calls the host
        skipped, lost, named = [r.getMessage() for r in caplog.records]
        assert skipped.startswith("1 step skipped, because gradients were not finite")
        assert lost.startswith("the loss of 1 batch in this epoch was not finite")
        caplog.clear()
        callback = LossScaleCallback(warn_after=3)
        fit(model, callback, x=bad(X), epochs=2)
        fit(model, callback, x=bad(X), epochs=2)
    lines = [r.getMessage() for r in caplog.records]
    (line,) = [line for line in lines if "nothing is learnt" in line]
    for said in (named, line):
        assert "the arguments of the step contain NaN or infinity" in said
    assert "3 steps in a row" in line


def test_several_optimizers_have_a_name_each():
    from duotone.adapters.keras import enable
    from tests.adapters.keras.test_models import Gan

    model = Gan()
    optimizers = [
        enable(keras.optimizers.SGD(0.01, name=name), scale, dtype="float16")
        for name, scale in (("sgd_g", 4.0), ("sgd_d", 8.0))
    ]
    for optimizer, name in zip(optimizers, ("g", "d"), strict=True):
        optimizer.name = name
    model.compile(*optimizers)
    history = model.fit(X, batch_size=16, verbose=0, callbacks=[LossScaleCallback()]).history
    assert history["g_loss_scale"] == [4.0]
    assert history["d_loss_scale"] == [8.0]
    assert history["d_skipped_steps"] == [0]


def test_a_model_without_a_wrapped_optimizer_is_refused():
    model = compiled(wrap=False)
    with pytest.raises(ArgumentError, match="enable_mixed_precision_graph_rewrite"):
        fit(model, LossScaleCallback())
    fit(compiled(dense()), LossScaleCallback(), epochs=1)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"warn_after": 0}, ArgumentError),
        ({"warn_after": 2.5}, ArgumentTypeError),
        ({"warn_after": True}, ArgumentTypeError),
        ({"writer": 3}, ArgumentTypeError),
        ({"logdir": "runs", "writer": 3}, ArgumentError),
        ({"logdir": 3}, ArgumentTypeError),
    ],
    ids=str,
)
def test_bad_settings(settings, error):
    with pytest.raises(error, match=next(iter(settings))):
        LossScaleCallback(**settings)


def test_the_monitor_takes_the_optimizer(caplog):
    """Outside ``fit``, in a loop over ``train_on_batch``."""
    model = compiled()
    monitor = LossScaleMonitor(model.optimizer, every=1)
    with caplog.at_level(logging.INFO, "duotone"):
        monitor(model.optimizer, 0)
        model.train_on_batch(bad(X), Y)
        monitor(model.optimizer, 1)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("step ")]
    assert lines == [
        "step 0: loss scale 32768, 0 steps skipped since the last line, 0 in all",
        "step 1: loss scale 16384, 1 step skipped since the last line, 1 in all",
    ]


def test_metrics_warn_once_of_a_scale_that_is_stuck(caplog):
    model = compiled(loss_scale=1)
    model.optimizer.alarm.warn_after = 2
    with caplog.at_level(logging.WARNING, "duotone"):
        for _ in range(4):
            model.train_on_batch(bad(X), Y)
            model.optimizer.metrics()
    assert len([r for r in caplog.records if "not finite for a reason" in r.getMessage()]) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_metrics_name_the_dtype(dtype):
    assert compiled(dtype=dtype).optimizer.metrics()["dtype"] == dtype


def test_one_line_at_the_first_step_says_how_it_runs(capsys):
    """Catches: a training that says nothing, whether anything is half or not."""
    callback = LossScaleCallback()
    model = compiled()
    fit(model, callback, epochs=2)
    fit(model, callback, epochs=1)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("duotone:")]
    assert "Sequential.train_step" in line
    assert re.search(
        r"float16 on cpu.*: \d+ of \d+ operations and [\d.]+% of .*FLOPs in half", line
    )


def test_the_line_is_not_shown_twice_where_info_is_logged(capsys, caplog, monkeypatch):
    monkeypatch.setattr(mixed, "_LINES", set())  # of another test, whose model was alike
    with caplog.at_level(logging.INFO, "duotone"):
        fit(compiled(), LossScaleCallback(), epochs=1)
    assert len([r for r in caplog.records if "FLOPs in half" in r.getMessage()]) == 1
    assert "duotone:" not in capsys.readouterr().err


def attention(mask):
    """Self-attention over tokens, where ``mask`` makes the bias of the scores."""

    class Attention(keras.layers.Layer):
        def call(self, embedded, tokens):
            scores = embedded @ keras.ops.transpose(embedded, (0, 2, 1))
            return keras.ops.softmax(mask(scores, tokens[:, None] != 0)) @ embedded

    tokens = keras.Input((8,), dtype="int32")
    attended = Attention(name="attention")(keras.layers.Embedding(9, 8)(tokens), tokens)
    scores = keras.layers.Dense(8)(keras.layers.GlobalAveragePooling1D()(attended))
    return keras.Model(tokens, scores)


def padded(rows):
    """Batches of 16 rows of tokens; those that are named hold padding only."""
    tokens = np.random.default_rng(0).integers(1, 9, (64, 8))
    tokens[list(rows)] = 0
    return tokens.astype("int32"), (np.arange(64) % 8).astype("int32")


@pytest.mark.parametrize("dtype", in_turns(["float16", "bfloat16"]))
def test_it_says_that_a_loss_is_not_finite_in_float32_either(dtype, caplog):
    """A softmax of a row that is all -inf is NaN in plain Keras too; the epoch's loss hides it."""

    def masked(scores, real):
        return keras.ops.where(real, scores, -np.inf)

    model = compiled(attention(masked), dtype=dtype)
    callback = LossScaleCallback()
    with caplog.at_level(logging.WARNING, "duotone"):
        history = model.fit(
            *padded([24, 40]),
            batch_size=16,
            epochs=3,
            shuffle=False,
            verbose=0,
            callbacks=[callback],
        ).history
        jax.effects_barrier()
    assert np.isfinite(history["loss"]).all()
    assert history["skipped_steps"] == [2, 4, 6]
    _, counted, named = [r.getMessage() for r in caplog.records if r.name == "duotone"]
    assert "the loss of 2 batches" in counted
    assert "attention/" in named
    assert "not finite in float32 either" in named

    # The advice, and a mask that keeps float32 finite.
    assert duotone.keras.blame(model, *(a[:16] for a in padded([3]))).verdict is Verdict.FLOAT32
    caplog.clear()
    model = compiled(attention(lambda s, real: keras.ops.where(real, s, -1e9)), dtype=dtype)
    with caplog.at_level(logging.WARNING, "duotone"):
        model.fit(*padded([24, 40]), batch_size=16, epochs=2, verbose=0, callbacks=[callback])
    assert model.optimizer.metrics()["skipped_steps"] == 0
    assert not [r for r in caplog.records if r.name == "duotone"]


def test_steps_skipped_for_their_scale_are_no_loss_that_is_not_finite(caplog):
    model = compiled(loss_scale=DynamicLossScale(2.0**30, cap=2.0**30))
    with caplog.at_level(logging.WARNING, "duotone"):
        assert fit(model, LossScaleCallback())["skipped_steps"] == [1, 2, 3]
    (line,) = [r.getMessage() for r in caplog.records if r.name == "duotone"]
    assert line.startswith("1 step skipped, because")


def test_fit_says_that_steps_are_skipped_and_then_rarely(caplog):
    """Catches: ``loss: nan`` in the progress bar and not a word."""
    model = compiled()
    with caplog.at_level(logging.WARNING, "duotone"):
        fit(model, epochs=2)
        assert not caplog.records
        fit(model, x=bad(X), epochs=40, batch_size=16)
    lines = [r.getMessage() for r in caplog.records if "skipped, because" in r.getMessage()]
    assert len(lines) == 2
    first, second = (int(line.split()[0]) for line in lines)
    assert second >= 10 * first
    assert model.optimizer.metrics()["skipped_steps"] == 40


def test_one_class_warns_of_losses_and_of_steps(caplog):
    """Catches: two lines that say of the same batches that they were not finite."""
    alarm = compiled().optimizer.alarm
    with caplog.at_level(logging.WARNING, "duotone"):
        alarm.lost(0)
        assert not alarm.said
        alarm.lost(3)
        alarm.lost(3)
    (line,) = [r.getMessage() for r in caplog.records]
    assert "the loss of 3 batches in this epoch was not finite" in line
    assert alarm.said
