"""Settings of the optimizer inside, set and read through the wrapper, on TensorFlow."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import logging

import numpy as np
import pytest

from tests.adapters.tensorflow_live.small import BATCH, bad, model, wrap
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow


def _fitted(opt, x=BATCH[0]):
    trained = model()
    trained.compile(opt, "mse")
    trained.fit(x, BATCH[1], batch_size=32, epochs=1, shuffle=False, verbose=0)
    return trained.get_weights()


def _same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", ["clipnorm", "weight_decay", "momentum"])
def test_a_setting_on_the_wrapper_is_one_of_the_optimizer_inside(tf, name):
    import keras

    inside = wrap(keras.optimizers.SGD(0.01, **{name: 0.5}), "bfloat16")
    outside = wrap(keras.optimizers.SGD(0.01), "bfloat16")
    setattr(outside, name, 0.5)
    assert getattr(outside, name) == outside.inner_optimizer.get_config()[name] == 0.5
    plain = _fitted(wrap(keras.optimizers.SGD(0.01), "bfloat16"))
    first, second = _fitted(inside), _fitted(outside)
    assert _same(first, second)
    assert not _same(first, plain)


def test_variables_are_excluded_from_the_weight_decay_inside(tf):
    import keras

    opt = wrap(keras.optimizers.AdamW(0.01, weight_decay=0.5), "bfloat16")
    opt.exclude_from_weight_decay(var_names=["bias"])
    _fitted(opt)
    excluded = [v for v in opt.inner_optimizer._trainable_variables if "bias" in v.name]
    assert excluded
    assert not any(map(opt.inner_optimizer._use_weight_decay, excluded))


@pytest.mark.parametrize(
    ("scale", "words"), [(1024, "the loss scale is now 1024"), (None, "No loss scale is the")]
)
def test_the_line_about_a_skipped_step_names_a_scale_that_is_used(tf, scale, words, caplog):
    import keras

    with caplog.at_level(logging.WARNING, "duotone"):
        _fitted(wrap(keras.optimizers.SGD(0.01), loss_scale=scale), bad())
    (line,) = [line for line in caplog.messages if "1 step skipped" in line]
    assert words in line
