"""Haiku: the plain transform around ``apply``; inside a model, what it would leave is reported."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone
from duotone.adapters.optax import wrap
from duotone.errors import ArgumentTypeError, LeakedTracerError
from tests.adapters.training import bits, digits, half_dots, heavy_tails, relative_error

X: Any
Y: Any
X, Y = heavy_tails()
BLOW_UP = np.float32(1e12)
KEY = jax.random.key(3)


def network(x: Any) -> Any:
    x = hk.Linear(16)(x)
    x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(x, is_training=True)
    x = hk.dropout(hk.next_rng_key(), 0.1, jax.nn.relu(x))
    return hk.Linear(8)(x)


MODEL = hk.transform_with_state(network)
PARAMS, STATE = MODEL.init(KEY, X)
layer_stack = vars(hk)["experimental"].layer_stack


def loss_fn(params: Any, state: Any, x: Any, y: Any, blow_up: Any = 1.0) -> Any:
    out, state = MODEL.apply(params, state, KEY, x)
    return jnp.mean((out - y) ** 2) * blow_up, state


@pytest.mark.parametrize(
    "make",
    [
        lambda: duotone.autocast(jax.value_and_grad(loss_fn, has_aux=True), dtype="float16"),
        lambda: jax.value_and_grad(duotone.autocast(loss_fn, dtype="float16"), has_aux=True),
    ],
    ids=["around-grad", "inside-grad"],
)
def test_gradients_and_state(make):
    reference = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
    (value, state), true = reference(PARAMS, STATE, X, Y)
    (found, found_state), grads = make()(PARAMS, STATE, X, Y)
    assert float(found) == pytest.approx(float(value), rel=2e-3)
    assert relative_error(grads, true) < 5e-3
    assert relative_error(found_state, state) < 2e-3
    text = jax.jit(make()).lower(PARAMS, STATE, X, Y).as_text()
    assert half_dots(text) >= 3
    assert half_dots(reference.lower(PARAMS, STATE, X, Y).as_text()) == 0


def test_init_may_be_rewritten_too():
    params, _ = duotone.autocast(MODEL.init, dtype="float16")(KEY, X)
    assert relative_error(params, PARAMS) < 1e-6, "parameters are state: never rounded"


def test_what_transform_returned_is_refused_with_the_remedy():
    model, x = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(8)(x))), jnp.ones((4, 8))
    with pytest.raises(ArgumentTypeError, match="not callable; pass its apply"):
        duotone.explain(model, x)  # pyright: ignore[reportArgumentType]
    assert duotone.explain(model.apply, model.init(jax.random.key(0), x), x).operations


def test_lifted_transformations_inside():
    def stack(x: Any) -> Any:
        def layer(x: Any) -> Any:
            return jnp.tanh(hk.Linear(8)(x)) + x

        x = layer_stack(3)(hk.remat(layer))(x)
        last = hk.Linear(8)
        x = last(x)  # hk.scan makes no parameters
        return hk.scan(lambda carry, _: (jnp.tanh(last(carry)), None), x, None, length=2)[0]

    model = hk.without_apply_rng(hk.transform(stack))
    params = jax.jit(model.init)(KEY, X)

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(model.apply(params, x) ** 2)

    true = jax.jit(jax.grad(loss))(params, X)
    half = duotone.autocast(loss, dtype="float16")
    assert relative_error(jax.grad(half)(params, X), true) < 1e-2
    assert half_dots(jax.jit(half).lower(params, X).as_text()) == 3


# Training with the wrapped optimizer

TX = wrap(optax.adam(optax.linear_schedule(1e-2, 1e-3, 10)), dtype="float16")


@jax.jit
def train_step(params: Any, state: Any, opt_state: Any, blow_up: Any) -> Any:
    out = TX.compute_gradients(loss_fn, params, opt_state, state, X, Y, blow_up, has_aux=True)
    params, opt_state = TX.apply_gradients(out, params, opt_state)
    return params, duotone.select_tree(out.finite, out.aux, state), opt_state, out.value


def test_a_skipped_step_changes_nothing():
    """Catches batch statistics of an overflow, momenta and schedules that run on."""
    params, state, opt_state, _ = train_step(PARAMS, STATE, TX.init(PARAMS), 1.0)
    after = train_step(params, state, opt_state, BLOW_UP)
    assert np.isfinite(after[3])
    assert bits((*after[:2], after[2].inner)) == bits((params, state, opt_state.inner))
    assert TX.metrics(after[2])["skipped_steps"] == 1
    assert bits(train_step(*after[:3], 1.0)[0]) != bits(params)


def test_digits_are_learned_in_float16():
    images, labels = digits()
    model = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([32, 10])(x)))
    tx = wrap(optax.adam(1e-2), dtype="float16")

    def loss(params: Any, blow_up: Any) -> Any:
        logits = model.apply(params, images)
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return entropy.mean() * blow_up, logits

    @jax.jit
    def step(params: Any, opt_state: Any, blow_up: Any) -> Any:
        return tx.minimize(loss, params, opt_state, blow_up, has_aux=True)

    params = model.init(KEY, images)
    opt_state: Any = tx.init(params)
    losses: list[float] = []
    logits: Any = None
    for i in range(40):
        done = step(params, opt_state, jnp.float32(BLOW_UP if i == 7 else 1.0))
        params, opt_state, logits = done.params, done.state, done.aux
        losses.append(float(done.loss))
    assert losses[-1] < losses[0] / 10
    assert np.mean(np.argmax(logits, -1) == labels) > 0.98
    assert tx.metrics(opt_state)["skipped_steps"] == 1


# Inside a model


@contextlib.contextmanager
def reported(pattern: str) -> Iterator[None]:
    """Haiku raises its own hint from each error about a traced value."""
    with pytest.raises(jax.errors.UnexpectedTracerError, match="see error above") as found:
        yield
    assert isinstance(found.value.__cause__, LeakedTracerError)
    assert re.search(pattern, str(found.value.__cause__))


@pytest.mark.parametrize(
    "inside",
    [
        lambda x: duotone.autocast(hk.Linear(3), dtype="float16")(x),
        lambda x: duotone.autocast(lambda x: hk.Linear(3)(x), dtype="float16")(x),
    ],
    ids=["submodule", "made-inside"],
)
@pytest.mark.parametrize("jit", [False, True])
def test_parameters_made_inside_are_reported(inside, jit):
    """Catches parameters that ``init`` returns as traced values, with no error."""
    model = hk.transform(inside)
    init = jax.jit(model.init) if jit else model.init
    with reported(r"\['linear'\]\['w'\].*autocast\(model.apply\)"):
        init(KEY, X)
    advised = hk.transform(lambda x: hk.Linear(3)(x))
    apply = duotone.autocast(advised.apply, dtype="float16")
    assert apply(advised.init(KEY, X), None, X).shape == (64, 3)


def test_state_changed_inside_is_reported():
    norm = hk.transform_with_state(
        lambda x: duotone.autocast(hk.BatchNorm(True, True, 0.9), dtype="float16")(x, True)
    )
    plain = hk.transform_with_state(lambda x: hk.BatchNorm(True, True, 0.9)(x, True))
    params, state = plain.init(KEY, X)
    with reported("mean_ema"):
        norm.apply(params, state, None, X)


def test_what_makes_nothing_passes_inside_a_model():
    def attention(x: Any) -> Any:
        x = hk.Linear(8)(x)
        return duotone.autocast(lambda q: jax.nn.softmax(q @ q.T) @ q, dtype="float16")(x)

    model = hk.without_apply_rng(hk.transform(attention))
    params = jax.jit(model.init)(KEY, X)
    assert model.apply(params, X).shape == (64, 8)
