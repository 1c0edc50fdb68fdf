"""Settings of the optimizer inside, set and read through the wrapper."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
import logging
import threading

import jax
import keras
import numpy as np
import pytest

import duotone
from duotone.adapters.keras import enable
from duotone.transforms import mixed_function
from tests.adapters.keras.small import bad, compiled, cross_entropy, data, dense, same_bits, values


def moved(optimizer):
    """The weights after two steps."""
    keras.utils.set_random_seed(0)
    model = dense()
    model.compile(optimizer, cross_entropy())
    x, y = data(32)
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    return values(model.trainable_variables)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("clipnorm", 1e-3, keras.optimizers.SGD),
        ("clipvalue", 1e-3, keras.optimizers.SGD),
        ("global_clipnorm", 1e-3, keras.optimizers.SGD),
        ("weight_decay", 0.5, keras.optimizers.SGD),
        ("gradient_accumulation_steps", 2, keras.optimizers.SGD),
        ("beta_1", 0.1, keras.optimizers.Adam),
        ("use_ema", True, keras.optimizers.Adam),
    ],
)
def test_a_setting_on_the_wrapper_is_one_of_the_optimizer_inside(name, value, kind):
    plain = moved(enable(kind(0.1), dtype="bfloat16"))
    inside = moved(enable(kind(0.1, **{name: value}), dtype="bfloat16"))
    outside = enable(kind(0.1), dtype="bfloat16")
    setattr(outside, name, value)
    assert getattr(outside.inner_optimizer, name) == value
    after = moved(outside)
    assert same_bits(after, inside)
    assert name == "use_ema" or not same_bits(after, plain)


def test_variables_are_excluded_from_the_weight_decay_inside():
    def decayed(order):
        inner = keras.optimizers.AdamW(0.1, weight_decay=0.5)
        wrapped = enable(inner, dtype="bfloat16")
        if order:
            (wrapped if order == "wrapped" else inner).exclude_from_weight_decay(var_names=["bias"])
        return moved(wrapped)

    assert same_bits(decayed("wrapped"), decayed("inner"))
    assert not same_bits(decayed("wrapped"), decayed(None))


def test_settings_are_read_from_the_optimizer_inside():
    inner = keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0, weight_decay=0.25)
    for wrapped in (enable(inner), copy.deepcopy(enable(inner))):
        assert (wrapped.momentum, wrapped.clipnorm, wrapped.weight_decay) == (0.9, 1.0, 0.25)
        assert wrapped.nesterov is False
        with pytest.raises(AttributeError, match="'LossScaleOptimizer' object has no attribute"):
            _ = wrapped.beta_1


def test_a_name_that_is_no_setting_stays_on_the_wrapper():
    wrapped = enable(keras.optimizers.SGD(0.1))
    wrapped.built_by = "a user"
    wrapped.name = "mine"
    assert not hasattr(wrapped.inner_optimizer, "built_by")
    assert wrapped.inner_optimizer.name != "mine"


def test_a_model_without_trained_variables_needs_no_scaled_loss():
    model = dense(batch_norm=True)
    model.trainable = False
    compiled(model, dtype="float16")
    x, y = data(32)
    before = values(model.variables)
    model.fit(x, y, batch_size=16, verbose=0)
    assert same_bits(before, values(model.variables))


@pytest.mark.parametrize(
    ("dtype", "words"),
    [("float16", "the loss scale is now 16384"), ("bfloat16", "No loss scale is the reason")],
)
def test_the_line_about_a_skipped_step_names_a_scale_that_is_used(dtype, words, caplog):
    model = compiled(dtype=dtype)
    x, y = data()
    with caplog.at_level(logging.WARNING, "duotone"):
        model.fit(bad(x), y, batch_size=16, verbose=0)
    (line,) = [line for line in caplog.messages if "1 step skipped" in line]
    assert words in line
    assert np.isfinite(values(model.trainable_variables)[0]).all()


def test_a_loop_that_nothing_rewrites_is_named_once(monkeypatch, caplog):
    x, y = data()

    def messages(around_loss=False, around_step=False):
        def changed(function, is_changed):
            return duotone.autocast(function, dtype="bfloat16") if is_changed else function

        def loss(trainable):
            return cross_entropy()(y, model.stateless_call(trainable, [], x)[0])

        def step(trainable, slots):
            gradients = jax.grad(changed(loss, around_loss))(trainable)
            return optimizer.stateless_apply(slots, gradients, trainable)

        monkeypatch.setattr(mixed_function, "_PAINTED", threading.Event())
        caplog.clear()
        model, optimizer = dense(), enable(keras.optimizers.SGD(0.1), dtype="bfloat16")
        optimizer.build(model.trainable_variables)
        state = tuple([v.value for v in vs] for vs in (model.variables, optimizer.variables))
        for _ in range(2):
            state = jax.jit(changed(step, around_step))(*state)
        return [line for line in caplog.messages if "duotone did not rewrite" in line]

    (line,) = messages()
    assert "differentiate duotone.autocast(loss_fn)" in line
    assert not messages(around_loss=True)
    assert not messages(around_step=True)
    monkeypatch.setattr(mixed_function, "_PAINTED", threading.Event())
    caplog.clear()
    compiled(dtype="bfloat16").fit(x, y, verbose=0)
    compiled(dtype="bfloat16", run_eagerly=True).fit(x, y, verbose=0)
    assert not [line for line in caplog.messages if "duotone did not rewrite" in line]
