"""The wrapped optimizer: its loss scale follows duotone's rule, in Keras variables."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import duotone
from duotone.adapters.keras import LossScaleOptimizer, enable
from duotone.scale import DynamicLossScale, FixedLossScale, NoLossScale
from tests.adapters.keras.small import bad, compiled, data, values

X, Y = data()


def built(loss_scale="dynamic", inner=None, dtype="float16", **kwargs):
    """A wrapped optimizer and the variable of two numbers that it trains."""
    variable = keras.Variable([1.0, -2.0])
    optimizer = enable(inner or keras.optimizers.SGD(0.5), loss_scale, dtype=dtype, **kwargs)
    optimizer.build([variable])
    differentiate(optimizer)
    return optimizer, variable


def differentiate(optimizer):
    """Lets the optimizer see that a scaled loss is differentiated: gradients here are made up."""
    assert jax.grad(optimizer.scale_loss)(1.0) == optimizer.metrics()["loss_scale"]


def steps(optimizer, variable, finite):
    """Takes a step for each flag, with gradients that are all 1 after unscaling, or NaN."""
    seen = []
    for good in finite:
        scale = optimizer.metrics()["loss_scale"]
        grads = [jnp.full(2, scale if good else jnp.nan)]
        optimizer.apply(grads, [variable])
        seen.append(optimizer.metrics())
    return seen


def test_the_class_is_one_that_keras_knows():
    optimizer, _ = built()
    assert isinstance(optimizer, LossScaleOptimizer)
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def test_the_one_line():
    """The public function knows a Keras optimizer, and refuses the class of one."""
    wrapped = duotone.enable_mixed_precision_graph_rewrite(
        keras.optimizers.SGD(0.1), 8.0, dtype="float16", policy=duotone.Policy()
    )
    assert isinstance(wrapped, LossScaleOptimizer)
    assert wrapped.metrics()["loss_scale"] == 8.0
    with pytest.raises(TypeError, match="make one first"):
        duotone.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD)


@pytest.mark.parametrize(
    "rule",
    [
        DynamicLossScale(8, growth_interval=2, factor=4, floor=2, cap=64),
        DynamicLossScale(),
        DynamicLossScale(1, growth_interval=2, floor=0.25),
        FixedLossScale(16),
        FixedLossScale(0.5),
        NoLossScale(),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_it_follows_the_rule_step_by_step(rule):
    """Catches a second rule in the adapter: growth, decrease, floor, cap and counts agree."""
    finite = [True, True, True, True, False, False, False, False, True, False, True, True, True]
    optimizer, variable = built(rule)
    seen = steps(optimizer, variable, finite)
    for good, metrics in zip(finite, seen, strict=True):
        rule = rule.adjust(good)
        assert metrics["loss_scale"] == float(rule.value)
        assert metrics["skipped_steps"] == int(rule.skipped)
        assert metrics["good_steps"] == int(getattr(rule, "good_steps", 0))
        assert metrics["last_finite"] == good


def test_floor_after_two_hundred_bad_steps_and_one_good():
    """Keras' own optimizer comes to a scale of 0 here, and the good step makes weights NaN."""
    optimizer, variable = built()
    seen = steps(optimizer, variable, [False] * 200)
    assert seen[-1]["loss_scale"] == 1.0
    assert seen[-1]["skipped_steps"] == 200
    assert int(optimizer.stuck.value) == 200 - 15
    steps(optimizer, variable, [True])
    np.testing.assert_array_equal(variable.value, [0.5, -2.5])
    assert int(optimizer.stuck.value) == 0


def test_gradients_are_unscaled_with_the_scale_that_was_used():
    """Catches unscaling with the scale of the next step: both steps below change it."""
    optimizer, variable = built(DynamicLossScale(8, growth_interval=1))
    steps(optimizer, variable, [True, True])
    np.testing.assert_array_equal(variable.value, [0.0, -3.0])
    assert optimizer.metrics()["loss_scale"] == 32.0


def test_a_half_loss_and_half_gradients_are_scaled_in_float32():
    """A float16 loss times 2**15 would be infinite, a float16 gradient over 2**15 zero."""
    optimizer, variable = built()
    scaled = optimizer.scale_loss(jnp.float16(3.0))
    assert scaled.dtype == jnp.float32
    assert float(scaled) == 3 * 2.0**15
    optimizer.apply([jnp.array([1.0, 0.5], jnp.float16)], [variable])
    moved = np.asarray(variable.value) - np.float32([1.0, -2.0])
    np.testing.assert_allclose(moved, [-0.5 / 2**15, -0.25 / 2**15], rtol=0.01)


@pytest.mark.parametrize(
    ("dtype", "scale"), [("float16", 2.0**15), ("bfloat16", 1.0), (jnp.float16, 2.0**15)]
)
def test_dynamic_scales_for_float16_only(dtype, scale):
    optimizer, variable = built(dtype=dtype)
    assert optimizer.metrics()["loss_scale"] == scale
    assert float(optimizer.scale_loss(jnp.float32(2.0))) == 2 * scale
    steps(optimizer, variable, [True, False])
    np.testing.assert_array_equal(variable.value, [0.5, -2.5])  # skipped there too
    assert optimizer.metrics()["skipped_steps"] == 1


def test_variables_are_the_same_for_every_scale_so_checkpoints_move():
    """A model trained in bfloat16 goes on in float16 with the first scale, and back."""
    names = set()
    for loss_scale, dtype in [
        ("dynamic", "float16"),
        ("dynamic", "bfloat16"),
        (8, "float16"),
        (None, None),
    ]:
        optimizer, _ = built(loss_scale, dtype=dtype)
        names.add(tuple((v.name, v.shape, v.dtype) for v in optimizer.variables))
    assert len(names) == 1

    brain, variable = built(dtype="bfloat16")
    steps(brain, variable, [True, False])
    store = {str(i): np.asarray(v.value) for i, v in enumerate(brain.variables)}
    half, _ = built(dtype="float16")
    half.load_own_variables(store)
    assert half.metrics() == {
        "loss_scale": 2.0**15,
        "good_steps": 0,
        "skipped_steps": 1,
        "last_finite": False,
        "dtype": "float16",
    }


@pytest.mark.parametrize("loss_scale", [16, None])
def test_a_fixed_scale_is_that_of_the_program_not_of_the_checkpoint(loss_scale):
    dynamic, variable = built()
    steps(dynamic, variable, [False])
    store = {str(i): np.asarray(v.value) for i, v in enumerate(dynamic.variables)}
    fixed, _ = built(loss_scale)
    fixed.load_own_variables(store)
    assert fixed.metrics()["loss_scale"] == float(fixed.dynamic_scale.value) == (loss_scale or 1)
    assert fixed.metrics()["skipped_steps"] == 1


def test_a_state_that_is_given_is_where_it_begins():
    state = DynamicLossScale(8, growth_interval=2).adjust(False).adjust(True)
    optimizer, _ = built(state)
    assert optimizer.metrics() == {
        "loss_scale": 4.0,
        "good_steps": 1,
        "skipped_steps": 1,
        "last_finite": True,
        "dtype": "float16",
    }


def test_metrics_before_the_variables_are_made():
    optimizer = enable(keras.optimizers.SGD(), 64, dtype="float16")
    assert optimizer.metrics()["loss_scale"] == 64.0
    assert float(optimizer.scale_loss(jnp.float32(1.0))) == 64.0


@pytest.mark.parametrize(
    "loss_scale",
    [
        "dynamic",
        128,
        None,
        DynamicLossScale(4, growth_interval=7, factor=3, floor=2, cap=9),
        NoLossScale(),
    ],
    ids=str,
)
def test_config_round_trip(loss_scale):
    policy = duotone.Policy(
        deny_add={"exp", "tanh"}, keep_full=["*/head/*", "*/loss/*"], level="TREAT_INFER_AS_DENY"
    )
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    optimizer = enable(
        keras.optimizers.Adam(schedule, clipnorm=1.0), loss_scale, dtype="float16", policy=policy
    )
    data = keras.saving.serialize_keras_object(optimizer)
    import json

    again = keras.saving.deserialize_keras_object(json.loads(json.dumps(data)))
    assert type(again) is LossScaleOptimizer
    assert again.get_config() == optimizer.get_config()
    assert again.policy == policy
    assert again.half == "float16"
    assert again.name == optimizer.name
    for one in (optimizer, again):
        one.build([keras.Variable([1.0])])
    assert again.metrics() == optimizer.metrics()
    assert again.inner_optimizer.clipnorm == 1.0


def test_the_folder_of_dumps_is_not_saved(tmp_path):
    """It is a place on one machine; a policy that names a folder not there is refused."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    policy = duotone.Policy(log_path=folder, log_decisions=True)
    config = enable(keras.optimizers.SGD(), dtype="float16", policy=policy).get_config()
    folder.rmdir()
    assert LossScaleOptimizer.from_config(config).policy == duotone.Policy(log_decisions=True)


def test_deepcopy_has_its_own_variables():
    model = compiled()
    model.fit(X, Y, verbose=0)
    copied = copy.deepcopy(model)
    assert copied.optimizer.metrics() == model.optimizer.metrics()
    copied.train_on_batch(bad(X), Y)
    assert copied.optimizer.metrics()["skipped_steps"] == 1
    assert model.optimizer.metrics()["skipped_steps"] == 0


def test_apply_by_hand_with_some_of_the_variables():
    """A loop of the user's: gradients of the scaled loss, for a part of the variables."""
    first, second = keras.Variable([1.0]), keras.Variable([2.0])
    optimizer = enable(keras.optimizers.SGD(1.0), 8, dtype="float16")
    optimizer.build([first, second])
    differentiate(optimizer)
    optimizer.apply([jnp.array([8.0])], [second])
    assert (float(first.value[0]), float(second.value[0])) == (1.0, 1.0)
    optimizer.apply_gradients([(jnp.array([4.0]), first)])
    assert float(first.value[0]) == 0.5


def test_stateless_apply_under_jit():
    optimizer, variable = built(DynamicLossScale(8, growth_interval=1))
    step = jax.jit(optimizer.stateless_apply)
    slots = [v.value for v in optimizer.variables]
    weights, slots = step(slots, [jnp.full(2, 8.0)], [variable.value])
    np.testing.assert_array_equal(weights[0], [0.5, -2.5])
    weights, slots = step(slots, [jnp.array([jnp.inf, 0.0])], weights)
    np.testing.assert_array_equal(weights[0], [0.5, -2.5])
    for v, value in zip(optimizer.variables, slots, strict=True):
        v.assign(value)
    assert optimizer.metrics()["skipped_steps"] == 1
    assert values([variable])[0].tolist() == [1.0, -2.0]  # nothing else was touched


def test_an_optimizer_that_trained_already_goes_on():
    inner = keras.optimizers.Adam(0.1)
    variable = keras.Variable([1.0])
    inner.build([variable])
    inner.apply([jnp.array([1.0])])
    optimizer = enable(inner, 8, dtype="float16")
    differentiate(optimizer)
    optimizer.apply([jnp.array([8.0])], [variable])
    assert int(optimizer.iterations.value) == 2
    assert len(optimizer.variables) == 7 + len(inner.variables)
