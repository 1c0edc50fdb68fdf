"""Training, evaluation and prediction are rewritten inside the functions that Keras compiles."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import logging

import jax
import keras
import numpy as np
import pytest

import duotone
from duotone.adapters.keras import enable, plans, steps
from tests.adapters.keras.small import (
    WRAPPED,
    compiled,
    data,
    dense,
    half_dots,
    is_half,
    lowered,
    run_all,
    same_bits,
    values,
)

X, Y = data()
FIT, BATCH = (X, Y), (X, Y, None)  # what `fit` and `train_on_batch` hand to a step


@pytest.mark.parametrize(("dtype", "half"), [("float16", "f16"), ("bfloat16", "bf16")])
def test_fit_evaluate_and_predict_run_in_half(dtype, half):
    model = compiled(dtype=dtype)
    run_all(model)
    # Forward 2, backward 3; with jaxlib 0.10 a CPU runs the backward bfloat16 ones in float32.
    assert half_dots(lowered(model, "train", FIT), half) >= (5 if half == "f16" else 3)
    assert is_half(model, "test", FIT, half)
    assert is_half(model, "predict", X, half)


def test_a_hook_that_does_nothing_is_seen(monkeypatch):
    """The look into the programs tells a rewritten one from one that is not."""
    monkeypatch.setattr(steps, "autocast", lambda step, **settings: step)
    model = compiled()
    run_all(model)
    assert not is_half(model, "train", FIT)
    assert not is_half(model, "test", FIT)
    assert not is_half(model, "predict", X)


def test_the_forms_for_one_batch_run_in_half():
    model = compiled()
    model.train_on_batch(X, Y)
    model.test_on_batch(X, Y)
    logits = model.predict_on_batch(X)
    assert logits.dtype == np.float32
    assert is_half(model, "train", BATCH)
    assert is_half(model, "test", BATCH)
    assert is_half(model, "predict", (X,))


def test_results_are_those_of_half_arithmetic():
    wrapped, plain = compiled(), compiled(wrap=False)
    plain.set_weights(wrapped.get_weights())
    ours, full = wrapped.predict(X, verbose=0), plain.predict(X, verbose=0)
    assert ours.dtype == full.dtype == np.float32
    assert not np.array_equal(ours, full)
    np.testing.assert_allclose(ours, full, rtol=0.02, atol=0.01)


def test_without_a_wrapped_optimizer_nothing_changes_by_a_bit():
    """Catches a hook that rewrites every model of the process."""

    def train():
        keras.utils.set_random_seed(1)
        model = compiled(dense(batch_norm=True, dropout=0.2), keras.optimizers.Adam(), wrap=False)
        history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, validation_data=(X, Y))
        text = lowered(model, "train", FIT)
        return values(model.variables + model.optimizer.variables), history.history, text

    originals = {
        (kind, name): vars(kind)[name]
        for kind in keras.Model.__mro__
        for name in (*WRAPPED, *steps.STEPS)
        if name in vars(kind)
    }
    wrapped = dict(originals)
    for key, method in originals.items():
        while hasattr(method, "__wrapped__"):
            method = method.__wrapped__
        setattr(*key, method)
    try:
        before = train()
    finally:
        for key, method in wrapped.items():
            setattr(*key, method)
    compiled().fit(X, Y, verbose=0)  # the hooks are in and have wrapped the steps
    after = train()
    # Now, and not in what was there first: this test may be the first of its process.
    assert any(hasattr(vars(kind)[name], "__duotone_hook__") for kind, name in originals)
    assert same_bits(before[0], after[0])
    assert before[1:] == after[1:]


def test_hooks_are_installed_once():
    compiled().fit(X, Y, verbose=0)
    compiled().fit(X, Y, verbose=0)
    for kind in keras.Model.__mro__:
        for name in (*WRAPPED, *steps.STEPS):
            method = vars(kind).get(name)
            if method is not None:
                assert not hasattr(getattr(method, "__wrapped__", None), "__wrapped__"), name


def test_compile_of_keras_is_not_touched():
    """Keras compares it with the base class' when it loads a model."""
    enable(keras.optimizers.SGD())
    assert keras.Model.compile is vars(keras.Model.__mro__[2])["compile"]
    assert not hasattr(keras.Model.compile, "__duotone_hook__")


def test_each_function_is_traced_once():
    traces = []

    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(8)

        def call(self, x):
            traces.append(x)
            return self.layer(x)

    model = compiled(Counting())
    model.fit(X, Y, batch_size=8, verbose=0)
    count = len(traces)
    model.fit(X, Y, batch_size=8, epochs=3, verbose=0)
    assert len(traces) == count


def test_donation_is_that_of_keras():
    model = compiled()
    model.fit(X, Y, verbose=0)
    plain = compiled(wrap=False)
    plain.fit(X, Y, verbose=0)
    donated = [lowered(m, "train", FIT).count("tf.aliasing_output") for m in (model, plain)]
    assert donated[0] == donated[1] + 7  # the variables of the wrapper


class Custom(keras.Model):
    """A ``train_step`` of the user's, around that of Keras."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(8)

    def call(self, x):
        return self.layer(x)

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return logs | {"half": logs["loss"] / 2}, state

    def test_step(self, state, data):
        logs, state = super().test_step(state, data)
        return logs | {"twice": 2 * logs["loss"]}, state


def test_a_step_of_the_users_around_that_of_keras():
    """``super().train_step`` is wrapped as well; it must not be rewritten twice."""
    model = compiled(Custom())
    history = model.fit(X, Y, verbose=0, validation_data=(X, Y)).history
    assert history["half"] == [pytest.approx(history["loss"][0] / 2)]
    assert history["val_twice"] == [pytest.approx(2 * history["val_loss"][0])]
    text = lowered(model, "train", FIT)
    assert half_dots(text) == 2
    assert text.count("func.func private @duotone_autocast") <= 1


class Stateless(keras.Model):
    """A whole ``train_step`` of the user's, as Keras' guide for JAX writes it."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(8)

    def call(self, x):
        return self.layer(x)

    def loss_and_updates(self, trainable, others, slots, x, y):
        logits, others = self.stateless_call(trainable, others, x)
        loss = self.compute_loss(x, y, logits)
        pairs = list(zip(self.optimizer.variables, slots, strict=True))
        with keras.StatelessScope(state_mapping=pairs):
            scaled = self.optimizer.scale_loss(loss)
        return scaled, (loss, others)

    def train_step(self, state, data):
        trainable, others, slots, metrics = state
        x, y = data[:2]
        grad_fn = jax.value_and_grad(self.loss_and_updates, has_aux=True)
        (_, (loss, others)), grads = grad_fn(trainable, others, slots, x, y)
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        return {"loss": loss}, (trainable, others, slots, metrics)


def test_a_whole_step_of_the_users():
    model = compiled(Stateless(), loss_scale=8.0)
    losses = [float(model.train_on_batch(X, Y, return_dict=True)["loss"]) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert is_half(model, "train", BATCH)
    reference = compiled(Stateless(), wrap=False)
    assert float(reference.train_on_batch(X, Y, return_dict=True)["loss"]) < 10


def test_steps_per_execution():
    x, y = data(40)
    model = compiled(steps_per_execution=2)
    model.fit(x, y, batch_size=8, verbose=0)  # five batches: two, two and one
    assert model.optimizer.metrics()["good_steps"] == int(model.optimizer.iterations.value) == 5
    assert is_half(model, "train", FIT)
    assert model.predict(x, batch_size=8, verbose=0).shape == (40, 8)


def test_eager_models_are_not_rewritten_and_say_so_once(caplog):
    layer = keras.layers.Dense(8)  # every operation of an eager step is compiled by itself
    model = compiled(keras.Sequential([keras.layers.Input((8,)), layer]), run_eagerly=True)
    with caplog.at_level(logging.WARNING, "duotone"):
        for _ in range(2):
            model.train_on_batch(X, Y)
        model.test_on_batch(X, Y)
    lines = [r.getMessage() for r in caplog.records if "run_eagerly" in r.getMessage()]
    assert len(lines) == 1
    assert model.optimizer.metrics()["good_steps"] == 2

    # The advice: leave run_eagerly out.
    again = compiled(model)
    again.train_on_batch(X, Y)
    assert is_half(again, "train", BATCH)


def test_without_jit_a_rewritten_program_is_kept(monkeypatch):
    """Catches a rewrite, and so a compilation, at every batch."""
    made = []
    monkeypatch.setattr(
        steps,
        "autocast",
        lambda *args, **settings: made.append(args) or duotone.autocast(*args, **settings),
    )
    model = compiled(jit_compile=False)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    assert len(made) == 1
    jitted_model = compiled(dense())
    jitted_model.set_weights(model.get_weights())
    np.testing.assert_array_equal(model.predict(X, verbose=0), jitted_model.predict(X, verbose=0))


def test_without_jit_a_model_compiled_again_is_rewritten_again():
    """Catches a kept program that still holds the loss of the earlier ``compile``."""
    model = compiled(jit_compile=False)
    model.train_on_batch(X, Y)
    compiled(model, loss=lambda y, logits: 0.0 * logits[:, 0] + 7.0, jit_compile=False)
    assert float(model.train_on_batch(X, Y)) == 7.0


def test_a_model_is_freed():
    """Catches a registry of programs that keeps every model."""
    import gc
    import weakref

    model = compiled(jit_compile=False)
    model.train_on_batch(X, Y)
    gone = weakref.ref(model)
    del model
    jax.clear_caches()
    gc.collect()
    assert gone() is None


def test_a_device_without_a_fast_half_type_leaves_the_model_alone(caplog, monkeypatch):
    from duotone.devices import half_type as device

    monkeypatch.setattr(device, "cpu_flags", frozenset)
    with caplog.at_level(logging.WARNING, "duotone"):
        model = compiled(dtype=None)
        run_all(model)
    assert sum("not rewritten" in record.getMessage() for record in caplog.records) == 1
    assert model.optimizer.half is None
    assert model.optimizer.metrics()["loss_scale"] == 1.0
    assert not is_half(model, "train", FIT)


def test_a_policy_reaches_the_rewrite():
    policy = duotone.Policy(deny_add={"dot_general"})
    model = dense()
    model.compile(enable(keras.optimizers.SGD(), dtype="float16", policy=policy), loss="mse")
    model.train_on_batch(X, np.ones((16, 8), "float32"))
    assert not is_half(model, "train", (X, np.ones((16, 8), "float32"), None))


def test_plans_of_other_objects():
    assert plans.plan_of(dense()) is None
    model = compiled()
    assert plans.plan_of(model) == plans.StepPlan("float16", None, model.optimizer)


def test_a_step_set_on_the_model_itself_is_named(caplog):
    """Keras with NNX variables would not even see it."""
    model = compiled()
    model.predict_step = model.predict_step
    with caplog.at_level(logging.WARNING, "duotone"):
        model.predict(X, verbose=0)
    assert "predict_step was set on the model itself" in caplog.text
    del model.predict_step  # the advice, here: the one of the class
    compiled(model).predict(X, verbose=0)
    assert is_half(model, "predict", X)
