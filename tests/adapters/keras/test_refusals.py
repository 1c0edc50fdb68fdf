"""What cannot work is refused with a remedy, and the remedy works."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import logging
import os
import subprocess
import sys

import keras
import pytest

from duotone.adapters.keras import LossScaleOptimizer, enable
from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.scale import FixedLossScale, LossScale
from tests.adapters.keras.small import compiled, data, dense

X, Y = data()
SGD = keras.optimizers.SGD


def test_the_errors_are_those_that_the_original_raised():
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ArgumentTypeError, TypeError)


@pytest.mark.parametrize(
    "optimizer", ["sgd", SGD, None, 3, pytest.param(object(), id="object")], ids=str
)
def test_no_optimizer(optimizer):
    with pytest.raises(ArgumentTypeError, match=r"is not a keras\.optimizers\.Optimizer"):
        enable(optimizer)


def test_the_advice_for_a_name_and_for_a_class():
    with pytest.raises(ArgumentTypeError, match=r"keras\.optimizers\.get\('sgd'\)"):
        enable("sgd")
    enable(keras.optimizers.get("sgd"))
    with pytest.raises(ArgumentTypeError, match=r"keras\.optimizers\.SGD\(\.\.\.\)"):
        enable(SGD)


@pytest.mark.parametrize("wrap", [keras.optimizers.LossScaleOptimizer, enable])
def test_an_optimizer_that_scales_already(wrap):
    wrapped = wrap(SGD())
    with pytest.raises(ArgumentError, match=r"scales the loss already.*\.inner_optimizer"):
        enable(wrapped)
    enable(wrapped.inner_optimizer)


def test_an_inner_fixed_scale():
    """Keras drops it in silence."""
    with pytest.raises(ArgumentError, match="loss_scale=64") as error:
        enable(SGD(loss_scale_factor=64))
    assert "twice" in str(error.value)
    assert enable(SGD(), loss_scale=64).metrics()["loss_scale"] == 64


@pytest.mark.parametrize(
    ("loss_scale", "error"),
    [
        (0, ArgumentError),
        (1e-40, ArgumentError),
        (-2, ArgumentError),
        (float("nan"), ArgumentError),
        (float("inf"), ArgumentError),
        ("static", ArgumentError),
        (True, ArgumentTypeError),
        ([128], ArgumentTypeError),
        (FixedLossScale, ArgumentTypeError),
    ],
    ids=str,
)
def test_a_bad_loss_scale(loss_scale, error):
    with pytest.raises(error):
        enable(SGD(), loss_scale)


def test_a_rule_of_ones_own():
    class Own(LossScale):
        @property
        def value(self):
            return 2.0

        def adjust(self, grads_finite):
            return self

    with pytest.raises(ArgumentTypeError, match=r"duotone\.value_and_grad"):
        enable(SGD(), Own())


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"dtype": "float32"}, ArgumentError),
        ({"dtype": "half please"}, ArgumentTypeError),
        ({"policy": "default"}, ArgumentTypeError),
    ],
    ids=str,
)
def test_bad_settings(settings, error):
    with pytest.raises(error, match=next(iter(settings))):
        enable(SGD(), **settings)


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_a_global_mixed_policy(name):
    keras.config.set_dtype_policy(name)
    with pytest.raises(ArgumentError, match=name):
        enable(SGD())
    keras.config.set_dtype_policy("float32")  # the advice
    enable(SGD())


def test_a_global_mixed_policy_set_later():
    model = compiled()
    keras.config.set_dtype_policy("mixed_float16")
    with pytest.raises(ArgumentError, match='set_dtype_policy\\("float32"\\)'):
        model.train_on_batch(X, Y)
    keras.config.set_dtype_policy("float32")
    model.train_on_batch(X, Y)


class Hidden(keras.layers.Layer):
    """A layer inside a layer, which ``model.layers`` does not show."""

    def __init__(self, policy):
        super().__init__()
        self.inside = keras.layers.Dense(8, dtype=policy, name="inside")

    def call(self, x):
        return keras.ops.cast(self.inside(x), "float32")


@pytest.mark.parametrize("run", ["train_on_batch", "test_on_batch", "predict_on_batch"])
def test_a_mixed_policy_on_any_layer(run):
    for policy in ("mixed_bfloat16", "float32"):
        model = compiled(keras.Sequential([keras.layers.Input((8,)), Hidden(policy)]))
        arguments = (X,) if run == "predict_on_batch" else (X, Y)
        if policy == "float32":  # the advice
            getattr(model, run)(*arguments)
            continue
        with pytest.raises(ArgumentError, match=r"inside.*mixed_bfloat16"):
            getattr(model, run)(*arguments)


def test_a_model_that_is_not_rewritten_may_have_any_policy():
    keras.config.set_dtype_policy("mixed_bfloat16")
    compiled(dense(), wrap=False).train_on_batch(X, Y)


def test_optimizers_of_one_model_that_disagree():
    class Two(keras.Sequential):
        pass

    model = Two([keras.layers.Input((8,)), keras.layers.Dense(8)])
    model.other = enable(SGD(), dtype="bfloat16")
    compiled(model)
    with pytest.raises(ArgumentError, match="different dtypes or policies"):
        model.train_on_batch(X, Y)
    model.other = enable(SGD(), dtype="float16")
    model.train_on_batch(X, Y)


@pytest.mark.slow
def test_another_backend(tmp_path):
    code = """
import keras
from duotone.adapters.keras import autocast, enable, enable_everywhere
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
for refuse in (
    lambda: enable(keras.optimizers.SGD()),
    lambda: autocast(model),
    lambda: enable_everywhere(True, True),
):
    try:
        refuse()
    except ValueError as error:
        assert "numpy backend" in str(error) and "KERAS_BACKEND=jax" in str(error), error
    else:
        raise AssertionError("not refused")
"""
    environment = os.environ | {"KERAS_BACKEND": "numpy"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("imports", ["import duotone, keras", "import duotone.keras"])
def test_a_backend_that_is_not_installed(imports):
    """Keras takes TensorFlow unless told otherwise; its error alone does not say so."""
    code = f"import sys; sys.modules['tensorflow'] = None  # as if not installed\n{imports}"
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "KERAS_BACKEND=jax before keras is imported" in run.stderr.splitlines()[-1]


def test_from_config_checks_as_well():
    config = enable(SGD(), dtype="float16").get_config()
    with pytest.raises(ArgumentError):
        LossScaleOptimizer.from_config(config | {"loss_scale": 1e-40})


def test_no_warning_is_logged_where_all_is_well(caplog):
    with caplog.at_level(logging.WARNING, "duotone"):
        model = compiled()
        model.fit(X, Y, verbose=0)
        model.predict(X, verbose=0)
    assert not caplog.records
