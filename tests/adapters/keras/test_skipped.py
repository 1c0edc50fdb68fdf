"""A skipped step leaves everything as it was, bit by bit, and is counted."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import keras
import numpy as np
import pytest

from duotone.adapters.keras import skipped
from tests.adapters.keras.small import bad, compiled, cross_entropy, data, dense, same_bits, values

X, Y = data()
INNER = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam with everything": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        weight_decay=0.1,
        global_clipnorm=0.5,
        use_ema=True,
        ema_overwrite_frequency=3,
    ),
    "accumulation": lambda: keras.optimizers.Adam(
        0.1, gradient_accumulation_steps=2, use_ema=True, clipvalue=0.1
    ),
}


def state_of(model):
    """All that training changes, but for the seeds, the metrics and the loss scale itself."""
    kept = [v for v in model.variables if v.name != "seed_generator_state"]
    inner = model.optimizer.inner_optimizer.variables
    return values([v for v in kept if not any(v is m for m in model.metrics_variables)] + inner)


@pytest.mark.parametrize(
    ("inner", "jit_compile"), [*((inner, True) for inner in INNER), ("accumulation", False)]
)
def test_a_skipped_step_changes_no_bit(inner, jit_compile):
    """Variables, slots, iterations, moving averages, accumulators and BatchNormalization."""
    model = compiled(dense(batch_norm=True, dropout=0.5), INNER[inner](), jit_compile=jit_compile)
    for _ in range(3):
        model.train_on_batch(X, Y)
    before = state_of(model)
    model.train_on_batch(bad(X), Y)
    assert same_bits(before, state_of(model))
    assert model.optimizer.metrics()["skipped_steps"] == 1
    assert model.optimizer.metrics()["last_finite"] is False
    model.train_on_batch(X, Y)
    assert not same_bits(before, state_of(model))
    assert model.optimizer.metrics()["skipped_steps"] == 1


def test_a_step_skipped_for_its_scale_is_taken_later():
    """The loss is finite, its scaled gradients are not: what loss scaling is there for."""
    model = compiled(loss_scale=2.0**30)
    losses = [float(model.train_on_batch(X, Y)) for _ in range(3)]
    assert losses[0] == losses[2]
    assert model.optimizer.metrics()["skipped_steps"] == 3
    from duotone.scale import DynamicLossScale

    model = compiled(loss_scale=DynamicLossScale(2.0**24))
    losses = [float(model.train_on_batch(X, Y)) for _ in range(40)]
    assert 0 < model.optimizer.metrics()["skipped_steps"] < 20
    assert losses[-1] < losses[0]
    assert int(model.optimizer.iterations.value) == 40 - model.optimizer.metrics()["skipped_steps"]


def test_schedules_and_iterations_do_not_count_a_skipped_step():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    model = compiled(inner=keras.optimizers.SGD(schedule))
    for x in (X, bad(X), bad(X), X):
        model.train_on_batch(x, Y)
    assert int(model.optimizer.iterations.value) == 2
    assert float(model.optimizer.learning_rate) == 0.125


def test_the_same_batches_without_the_bad_one_give_the_same_weights():
    """Also what a skipped batch would leave in accumulators comes to light here."""
    x, y = data(64)
    batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 64, 8)]

    def train(with_bad):
        model = compiled(dense(batch_norm=True), INNER["accumulation"](), loss_scale=64.0)
        for i, batch in enumerate(batches):
            if with_bad and i in (0, 3):
                model.train_on_batch(bad(batch[0]), batch[1])
            model.train_on_batch(*batch)
        return state_of(model)

    keras.utils.set_random_seed(3)
    clean = train(with_bad=False)
    keras.utils.set_random_seed(3)
    assert same_bits(clean, train(with_bad=True))


def test_without_settling_batch_normalization_is_poisoned(monkeypatch):
    """The fault itself: a running mean that has seen one infinity never recovers."""

    def moving(model):
        return values(model.non_trainable_variables)

    for run_step, finite in ((skipped.run_step, True), (_not_restored, False)):
        monkeypatch.setattr(skipped, "run_step", run_step)
        model = compiled(dense(batch_norm=True))
        for x in (X, bad(X), X, X):
            model.train_on_batch(x, Y)
        assert all(np.isfinite(v).all() for v in moving(model)) is finite


def _not_restored(model, optimizer, step, *args):
    return step(*args)


def test_seeds_advance_in_a_skipped_step():
    model = compiled(dense(dropout=0.5))
    model.train_on_batch(X, Y)
    (seed,) = [v for v in model.variables if v.name == "seed_generator_state"]
    before = np.asarray(seed.value)
    model.train_on_batch(bad(X), Y)
    assert not np.array_equal(before, np.asarray(seed.value))


def batches_of(*kinds):
    """Good and bad batches in turn, as a fixed order for ``fit``."""
    x = np.concatenate([X if kind == "good" else bad(X) for kind in kinds])
    return x, np.concatenate([Y] * len(kinds))


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_metrics_of_an_epoch_leave_out_a_batch_that_is_not_finite(steps_per_execution):
    model = compiled(
        metrics=["accuracy", "sparse_categorical_crossentropy"],
        inner=keras.optimizers.SGD(0.0),
        steps_per_execution=steps_per_execution,
    )
    clean = model.fit(*batches_of("good"), batch_size=16, verbose=0).history
    for kinds in (("good", "bad", "good"), ("bad", "good", "good"), ("good", "good", "bad")):
        x, y = batches_of(*kinds)
        logs = model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history
        for name, seen in logs.items():
            assert seen == [pytest.approx(clean[name][0])], (name, kinds)
    assert np.isfinite(clean["loss"][0])


def test_an_epoch_of_bad_batches_shows_nan_and_the_next_one_recovers():
    """Not 0, the mean of nothing: a callback would take it for the best loss of all."""
    model = compiled(metrics=["accuracy"])
    x, y = batches_of("bad", "bad")
    assert np.isnan(model.fit(x, y, batch_size=16, verbose=0).history["loss"][0])
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"][0])


def test_metrics_of_a_skipped_step_with_a_finite_loss_count():
    model = compiled(loss_scale=2.0**30, metrics=["accuracy"])
    logs = model.fit(X, Y, verbose=0).history
    plain = compiled(model, wrap=False, metrics=["accuracy"])
    logs_of_plain = plain.evaluate(X, Y, verbose=0, return_dict=True)
    np.testing.assert_allclose(logs["loss"][0], logs_of_plain["loss"], rtol=0.01)


def test_the_logs_of_the_batch_itself_show_it():
    seen = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(logs["loss"]))
    )
    x, y = batches_of("good", "bad", "good")
    model = compiled()
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[callback])
    assert np.isfinite(seen).tolist() == [True, False, True]

    stopped = keras.callbacks.TerminateOnNaN()
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[stopped])
    assert model.stop_training


def test_a_metric_that_is_nan_in_a_step_that_was_taken_stays_as_keras_has_it():
    class Odd(keras.metrics.Mean):
        def update_state(self, y, prediction, sample_weight=None):
            super().update_state(np.nan)

    model = compiled(metrics=[Odd(name="odd")])
    x, y = batches_of("good", "bad", "good")
    logs = model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history
    assert np.isnan(logs["odd"][0])


class Least(keras.metrics.Metric):
    """A running minimum, infinite until it is given a finite number."""

    def __init__(self, of, **kwargs):
        super().__init__(**kwargs)
        self.of = of
        self.least = self.add_variable((), keras.initializers.Constant(np.inf), name="least")

    def update_state(self, y, prediction, sample_weight=None):
        self.least.assign(keras.ops.minimum(self.least, self.of(prediction)))

    def result(self):
        return self.least.value

    def reset_state(self):
        self.least.assign(np.inf)


@pytest.mark.parametrize(
    ("of", "clean_is_finite"),
    [
        (lambda prediction: np.inf, False),
        (lambda prediction: keras.ops.min(prediction), True),
    ],
)
def test_a_metric_that_begins_at_infinity_takes_no_metric_with_it(of, clean_is_finite):
    """Catches: an epoch's metrics wiped after a skipped step, and bad batches counted never."""
    model = compiled(metrics=["accuracy", Least(of, name="least")], inner=keras.optimizers.SGD(0.0))
    clean = model.fit(*batches_of("good"), batch_size=16, verbose=0).history
    assert np.isfinite(clean["least"][0]) == clean_is_finite
    for kinds in (("good", "bad", "good"), ("bad", "good"), ("good", "bad")):
        x, y = batches_of(*kinds)
        logs = model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history
        for name, seen in logs.items():
            assert seen == [pytest.approx(clean[name][0])], (name, kinds)
        counts = [v for v in model.metrics_variables if v.name == "count"]
        assert {float(v.value) for v in counts} == {16.0 * kinds.count("good")}, kinds


def test_a_model_with_other_state_trains_as_it_did():
    """Metrics and further state of the user's own ``train_step`` are the user's."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(8)

        def call(self, x):
            return self.layer(x)

        def train_step(self, state, data):
            logs, state = super().train_step(state, data)
            return logs, list(state)

    model = compiled(Own(), loss=cross_entropy())
    before = None
    for x in (X, bad(X)):
        before = state_of(model)
        model.train_on_batch(x, Y)
    assert same_bits(before, state_of(model))


def squares(size, reduce):
    """A loss of squares, with labels of some size."""

    def loss(y, prediction):
        labels = keras.ops.one_hot(keras.ops.cast(y, "int32"), 8)
        return reduce((prediction - size * labels) ** 2)

    return loss


@pytest.mark.parametrize("jit_compile", [True, False])
def test_a_large_first_loss_brings_the_scale_down_in_two_steps(jit_compile):
    """One step for each halving would be more than four here."""
    loss = squares(1000.0, keras.ops.sum)
    model = compiled(inner=keras.optimizers.Adam(1e-3), loss=loss, jit_compile=jit_compile)
    for _ in range(6):
        model.train_on_batch(100 * X, Y)
    metrics = model.optimizer.metrics()
    assert metrics["skipped_steps"] == 2
    assert metrics["good_steps"] == 4
    assert metrics["loss_scale"] < 2.0**11


def test_a_large_first_loss_whose_gradients_fit_changes_nothing():
    model = compiled(loss=squares(20.0, keras.ops.mean))
    model.train_on_batch(X, Y)
    assert model.optimizer.metrics()["skipped_steps"] == 0
    assert model.optimizer.metrics()["loss_scale"] == 2.0**15
