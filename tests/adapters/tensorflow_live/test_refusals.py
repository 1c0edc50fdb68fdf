"""Arguments that the one line refuses on TensorFlow, each with the remedy."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import pytest

import duotone
from duotone.errors import ArgumentError, ArgumentTypeError, PolicyError, TensorFlowError
from duotone.tensorflow.live import jit, switch
from tests.adapters.tensorflow_live.small import wrap
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow

enable = duotone.enable_mixed_precision_graph_rewrite


def optimizers(tf):
    import keras

    return keras.optimizers.SGD(0.1), tf.compat.v1.train.GradientDescentOptimizer(0.1)


def test_an_optimizer_is_wrapped_once(tf):
    import keras

    for opt in optimizers(tf):
        with pytest.raises(ArgumentError, match="scales the loss already"):
            enable(wrap(opt))
    with pytest.raises(ArgumentError, match="inner_optimizer"):
        enable(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(ArgumentError, match="loss_scale=8"):
        enable(keras.optimizers.SGD(loss_scale_factor=8))
    theirs = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    with pytest.raises(ArgumentError, match="scales the loss already"):
        enable(theirs(tf.compat.v1.train.AdamOptimizer(), "dynamic"))


def test_a_step_that_xla_compiles_in_a_tensorflow_without_the_names(tf, monkeypatch):
    import keras

    layers = [keras.layers.Input((4,)), keras.layers.Dense(1)]
    x = tf.ones((8, 4))
    monkeypatch.setattr(jit, "missing", lambda: "context.get_function_def")
    for compiled in (True, False):
        model = keras.Sequential(layers)
        model.compile(wrap(keras.optimizers.SGD(0.1)), "mse", jit_compile=compiled)
        if compiled:
            with pytest.raises(TensorFlowError, match=r"get_function_def.*jit_compile=False"):
                model.fit(x, x[:, :1], verbose=0)
        else:
            model.fit(x, x[:, :1], verbose=0)


def test_a_class_is_not_an_optimizer(tf):
    import keras

    with pytest.raises(ArgumentTypeError, match=r"keras\.optimizers\.SGD\(\.\.\.\)"):
        enable(keras.optimizers.SGD)
    with pytest.raises(ArgumentTypeError, match=r"tf\.compat\.v1\.train\.AdamOptimizer\(\.\.\.\)"):
        enable(tf.compat.v1.train.AdamOptimizer)


def test_another_thing_is_not_an_optimizer(tf):
    for other in (tf.Variable(1.0), "adam", object()):
        with pytest.raises(ArgumentTypeError, match=r"of Keras, .* keras\.optimizers\.Adam\(\)"):
            enable(other)


def test_a_mixed_dtype_policy(tf):
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    try:
        for opt in optimizers(tf):
            with pytest.raises(ValueError, match="set_dtype_policy"):
                enable(opt, dtype="float16")
    finally:
        keras.config.set_dtype_policy("float32")
    assert not switch.is_enabled()


def test_one_process_has_one_rewrite(tf):
    first, second = optimizers(tf)
    wrap(first, "bfloat16")
    with pytest.raises(ArgumentError, match="disable_mixed_precision_graph_rewrite"):
        enable(second, dtype="float16")
    switch.disable()
    assert enable(second, dtype="float16").half == "float16"


@pytest.mark.parametrize(
    "policy", [{"allow_add": ["MatMull"]}, {"keep_half": ["x*"]}, {"heal": True}], ids=str
)
def test_policies_for_other_programs(tf, policy):
    for opt in optimizers(tf):
        with pytest.raises(PolicyError):
            enable(opt, dtype="float16", policy=duotone.Policy(**policy))
    assert not switch.is_enabled()


def test_axis_names_are_for_jax(tf):
    for opt in optimizers(tf):
        with pytest.raises(ArgumentError, match="axis_name"):
            enable(opt, dtype="float16", axis_name="data")


def test_loss_scales(tf):
    import keras

    for loss_scale in ("static", 0.0, -1.0):
        with pytest.raises(ArgumentError):
            enable(keras.optimizers.SGD(), loss_scale, dtype="float16")
    with pytest.raises(ArgumentTypeError, match="DynamicLossScale"):
        enable(keras.optimizers.SGD(), [1.0], dtype="float16")


def test_float32_switches_it_off(tf):
    for opt in optimizers(tf):
        assert enable(opt, dtype=tf.float32) is opt
        assert enable(opt, enabled=False) is opt
    assert not switch.is_enabled()
