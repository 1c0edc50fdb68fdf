"""Gradients of a loss that was never scaled are refused; those of a scaled loss train."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import duotone.keras
from duotone.errors import ArgumentError
from duotone.scale import DynamicLossScale
from tests.adapters.keras.small import compiled, cross_entropy, data, dense, is_half

X, Y = data()
UNSCALED = "was not scaled before it was differentiated"


def plain(optimizer, loss, slots):
    """The step of Keras' own guide: the loss as it is."""
    del optimizer, slots
    return loss


def scaled(optimizer, loss, slots):
    """What the errors say to write."""
    optimizer_variables = slots
    pairs = list(zip(optimizer.variables, optimizer_variables, strict=True))
    with keras.StatelessScope(state_mapping=pairs):
        return optimizer.scale_loss(loss)


def scaled_outside(optimizer, loss, slots):
    """Reads the scale of the moment when the step is traced."""
    del slots
    return optimizer.scale_loss(loss)


class Own(keras.Model):
    """A whole ``train_step``; class attributes say how it scales and how it differentiates."""

    scale = staticmethod(plain)
    after = staticmethod(plain)
    differentiate = staticmethod(functools.partial(jax.value_and_grad, has_aux=True))

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(8)

    def call(self, x):
        return self.layer(x)

    def losses_of(self, trainable, others, slots, x, y):
        logits, others = self.stateless_call(trainable, others, x)
        loss = keras.ops.mean(cross_entropy()(y, logits))
        return self.scale(self.optimizer, loss, slots), (loss, others)

    def train_step(self, state, data):
        trainable, others, slots, metrics = state
        x, y = data[:2]
        found, grads = self.differentiate(self.losses_of)(trainable, others, slots, x, y)
        loss, others = found[1]
        self.after(self.optimizer, loss, slots)
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        return {"loss": loss}, (trainable, others, slots, metrics)


def micro_batches(function):
    """Gradient accumulation in a ``scan``, a ``jit`` and a ``checkpoint`` of the user's own."""
    value_and_grad = jax.jit(jax.value_and_grad(jax.checkpoint(function), has_aux=True))

    def accumulated(trainable, others, slots, x, y):
        def body(total, part):
            found, grads = value_and_grad(trainable, others, slots, *part)
            return jax.tree.map(jnp.add, total, grads), found

        parts = jax.tree.map(lambda a: a.reshape(2, -1, *a.shape[1:]), (x, y))
        total, found = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, trainable), parts)
        return jax.tree.map(lambda a: a[-1], found), [g / 2 for g in total]

    return accumulated


def vjp(function):
    def value_and_grad(trainable, *rest):
        value, pull, aux = jax.vjp(lambda t: function(t, *rest), trainable, has_aux=True)
        return (value, aux), pull(jnp.ones_like(value))[0]

    return value_and_grad


def own(**members):
    kind = type("Own", (Own,), {name: staticmethod(made) for name, made in members.items()})
    return kind()


def losses(model, count=20):
    return [float(model.train_on_batch(X, Y, return_dict=True)["loss"]) for _ in range(count)]


@pytest.mark.parametrize("after", [plain, scaled], ids=["never scaled", "scaled too late"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"jit_compile": False}, {"run_eagerly": True}, {"loss_scale": 8.0}],
    ids=str,
)
def test_a_step_that_does_not_scale_is_refused(settings, after):
    model = compiled(own(after=after), **settings)
    with pytest.raises(ArgumentError, match=UNSCALED):
        model.train_on_batch(X, Y)
    with pytest.raises(ArgumentError, match=UNSCALED):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("settings", [{}, {"jit_compile": False}], ids=str)
@pytest.mark.parametrize(
    "differentiate",
    [Own.differentiate, micro_batches, vjp],
    ids=["value_and_grad", "micro-batches", "vjp"],
)
def test_the_remedy_trains(settings, differentiate):
    """Follows the error, in a loss scale that changes on the way: the state has it, no constant."""
    rule = DynamicLossScale(2.0**6, growth_interval=2)
    model = compiled(own(scale=scaled, differentiate=differentiate), loss_scale=rule, **settings)
    seen = losses(model)
    assert seen[-1] < seen[0] - 0.05
    assert model.optimizer.metrics()["loss_scale"] > 2.0**6


def test_the_remedy_gives_the_steps_of_float32():
    """Catches a scale that multiplies and another that divides, after the scale has grown."""
    found = {}
    for wrap, scale in ((True, scaled), (False, plain)):
        keras.utils.set_random_seed(0)
        rule = DynamicLossScale(2.0**6, growth_interval=2)
        model = compiled(own(scale=scale), wrap=wrap, loss_scale=rule)
        found[wrap] = losses(model)
    np.testing.assert_allclose(found[True], found[False], rtol=2e-3)


@pytest.mark.parametrize("settings", [{}, {"jit_compile": False}, {"run_eagerly": True}], ids=str)
def test_a_scale_outside_of_the_state_is_refused(settings):
    """In ``fit`` Keras' variables are empty; elsewhere the scale would be compiled in."""
    model = compiled(own(scale=scaled_outside), **settings)
    with pytest.raises(ArgumentError, match="outside of the state of the step"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("dtype", "loss_scale"),
    [("bfloat16", "dynamic"), ("float16", None), ("float16", 1), ("float32", None)],
)
def test_what_needs_no_scale_trains_as_it_is(dtype, loss_scale):
    """The other two remedies of the error, and a scale of 1."""
    keras.utils.set_random_seed(0)
    model = compiled(own(), wrap=dtype != "float32", dtype=dtype, loss_scale=loss_scale)
    seen = losses(model)
    assert seen[-1] < seen[0] - 0.05
    if dtype != "float32":
        assert is_half(model, "train", (X, Y, None), {"float16": "f16"}.get(dtype, "bf16"))


def test_a_step_around_that_of_keras_and_accumulation_of_keras():
    class Around(Own):
        def train_step(self, state, data):
            return keras.Model.train_step(self, state, data)

    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model = compiled(Around(), inner)
    seen = losses(model)
    assert seen[-1] < seen[0] - 0.05


def own_loop(scale, method):
    """A compiled loop of the user's own, after Keras' guide for JAX."""
    model = dense()
    optimizer = duotone.keras.enable(keras.optimizers.SGD(0.1), dtype="float16")
    optimizer.build(model.trainable_variables)

    def loss_fn(trainable, others, slots):
        logits, others = model.stateless_call(trainable, others, X)
        return scale(optimizer, keras.ops.mean(cross_entropy()(Y, logits)), slots)

    @jax.jit
    def step(trainable, others, slots):
        grads = jax.grad(loss_fn)(trainable, others, slots)
        if method == "stateless_apply":
            return optimizer.stateless_apply(slots, grads, trainable)
        pairs = [*zip(optimizer.variables, slots, strict=True)]
        pairs += zip(model.trainable_variables, trainable, strict=True)
        with keras.StatelessScope(state_mapping=pairs) as scope:
            if method == "apply":
                optimizer.apply(grads, model.trainable_variables)
            else:
                optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return [
            [scope.get_current_value(v) for v in variables]
            for variables in (model.trainable_variables, optimizer.variables)
        ]

    state = [v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]
    before = loss_fn(state[0], [], state[1])
    for _ in range(3):
        state = step(state[0], [], state[1])
    return float(before / 2**15), float(loss_fn(state[0], [], state[1]) / 2**15)


METHODS = ("stateless_apply", "apply", "apply_gradients")


@pytest.mark.parametrize("method", METHODS)
def test_in_a_loop_of_the_users_own(method):
    before, after = own_loop(scaled, method)
    assert after < before
    with pytest.raises(ArgumentError, match=UNSCALED):
        own_loop(plain, method)


def test_a_loop_that_would_compile_the_scale_in_is_refused():
    model = dense()
    optimizer = duotone.keras.enable(keras.optimizers.SGD(0.1), dtype="float16")
    optimizer.build(model.trainable_variables)
    assert jax.grad(optimizer.scale_loss)(1.0) == 2.0**15  # not compiled: it reads it each time
    with pytest.raises(ArgumentError, match="outside of the state of the step"):
        jax.jit(jax.grad(optimizer.scale_loss))(1.0)


def test_each_optimizer_scales_for_itself():
    """Catches one mark for all: the second optimizer would divide the gradients of the first."""
    ours = duotone.keras.enable(keras.optimizers.SGD(0.1), 8.0, dtype="float16")
    theirs = duotone.keras.enable(keras.optimizers.SGD(0.1), 8.0, dtype="float16")
    variable = keras.Variable([1.0])
    for optimizer in (ours, theirs):
        optimizer.build([variable])
    grads = jax.grad(lambda v: ours.scale_loss(jnp.sum(v)))(variable.value)
    ours.apply([grads], [variable])
    assert float(variable.value[0]) == pytest.approx(0.9)
    with pytest.raises(ArgumentError, match=re.escape(theirs.name)):
        theirs.apply([grads], [variable])
