"""Equinox: modules are pytrees that are never changed in place, so the plain transform serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone
from duotone.adapters.optax import wrap
from duotone.errors import ArgumentTypeError
from tests.adapters.training import bits, digits, half_dots, heavy_tails, relative_error


class Net(eqx.Module):
    """Static fields, an activation that is a function, batch statistics, dropout."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear
    activation: Callable[..., Any]
    name: str = eqx.field(static=True)

    def __init__(self, key: Any, sizes: tuple[int, int, int] = (8, 16, 8)) -> None:
        a, b = jax.random.split(key)
        self.first = eqx.nn.Linear(sizes[0], sizes[1], key=a)
        self.norm = eqx.nn.BatchNorm(sizes[1], axis_name="batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.1)
        self.last = eqx.nn.Linear(sizes[1], sizes[2], key=b)
        self.activation = jax.nn.relu
        self.name = "net"

    def __call__(self, x: Any, state: eqx.nn.State, key: Any) -> tuple[Any, eqx.nn.State]:
        x, state = self.norm(self.first(x), state)
        return self.last(self.dropout(self.activation(x), key=key)), state


X: Any
Y: Any
X, Y = heavy_tails()
BLOW_UP = np.float32(1e12)
KEY = jax.random.key(7)


def made(*args: Any) -> tuple[Net, eqx.nn.State]:
    return eqx.nn.make_with_state(Net)(jax.random.key(0), *args)


def forward(model: Net, state: eqx.nn.State, x: Any, key: Any) -> tuple[Any, eqx.nn.State]:
    keys = jax.random.split(key, len(x))
    batched = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
    return batched(x, state, keys)


def loss_fn(model: Net, state: eqx.nn.State, x: Any, y: Any, key: Any, blow_up: Any = 1.0) -> Any:
    out, state = forward(model, state, x, key)
    return jnp.mean((out - y) ** 2) * blow_up, state


def arrays(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_inexact_array)


def kept(*trees: Any) -> list[bytes]:
    return bits(eqx.filter(trees, eqx.is_array))


# The plain transform with Equinox's own


@pytest.mark.parametrize(
    "make",
    [
        lambda: duotone.autocast(eqx.filter_value_and_grad(loss_fn, has_aux=True), dtype="float16"),
        lambda: eqx.filter_value_and_grad(duotone.autocast(loss_fn, dtype="float16"), has_aux=True),
        # Equinox would warn of the arrays in its own wrapper, were it found under __wrapped__.
        lambda: eqx.filter_jit(
            duotone.autocast(eqx.filter_value_and_grad(loss_fn, has_aux=True), dtype="float16")
        ),
        lambda: duotone.autocast(
            eqx.filter_jit(eqx.filter_value_and_grad(loss_fn, has_aux=True)), dtype="float16"
        ),
    ],
    ids=["around-grad", "inside-grad", "inside-jit", "around-jit"],
)
def test_filtered_transformations_inside_and_outside(make):
    model, state = made()
    reference = eqx.filter_jit(eqx.filter_value_and_grad(loss_fn, has_aux=True))
    (value, new_state), true = reference(model, state, X, Y, KEY)
    (found, found_state), grads = make()(model, state, X, Y, KEY)
    assert float(found) == pytest.approx(float(value), rel=2e-3)
    assert relative_error(arrays(grads), arrays(true)) < 5e-3
    assert relative_error(arrays(found_state), arrays(new_state)) < 2e-3
    assert grads.name == "net"
    assert grads.activation is None


def test_the_program_is_rewritten():
    model, state = made()
    for loss, dots in ((duotone.autocast(loss_fn, dtype="float16"), 2), (loss_fn, 0)):
        gradient: Any = eqx.filter_jit(eqx.filter_grad(loss, has_aux=True))
        text = gradient.lower(model, state, X, Y, KEY).as_text()
        assert half_dots(text) >= dots
        assert bool(half_dots(text)) == bool(dots)


def test_a_module_with_the_same_static_fields_is_traced_once():
    count = 0

    @duotone.autocast(dtype="float16")
    def call(model: Net, state: eqx.nn.State) -> Any:
        nonlocal count
        count += 1
        return forward(model, state, X, KEY)[0]

    model, state = made()
    for step in range(3):
        call(eqx.tree_at(lambda m: m.last.bias, model, jnp.full(1, float(step))), state)
    assert count == 1


def test_a_module_may_be_the_function_and_a_result():
    mlp = eqx.nn.MLP(8, 4, 16, 1, activation=jnp.tanh, key=jax.random.key(0))
    fast = duotone.autocast(jax.vmap(mlp), dtype="float16")
    assert relative_error(fast(X), jax.vmap(mlp)(X)) < 2e-3
    assert duotone.autocast(mlp, dtype="float16")(X[0]).shape == (4,)
    same = duotone.autocast(lambda mlp, x: (mlp, mlp(x)), dtype="float16")(mlp, X[0])[0]
    assert type(same) is eqx.nn.MLP
    assert same.activation is mlp.activation
    assert kept(same) == kept(mlp)


def test_checkpoint_scan_and_dropout_inside():
    layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(8, 8, key=key))(
        jax.random.split(jax.random.key(0), 3)
    )
    dropout = eqx.nn.Dropout(0.1)

    def loss(layers: Any, x: Any, key: Any) -> Any:
        dynamic, static = eqx.partition(layers, eqx.is_array)

        @eqx.filter_checkpoint
        def body(carry: Any, dynamic: Any) -> Any:
            layer = eqx.combine(dynamic, static)
            return jnp.tanh(jax.vmap(layer)(carry)) + carry, None

        return jnp.mean(dropout(jax.lax.scan(body, x, dynamic)[0], key=key) ** 2)

    true = eqx.filter_grad(loss)(layers, X, KEY)
    gradient = eqx.filter_grad(duotone.autocast(loss, dtype="float16"))
    assert relative_error(arrays(gradient(layers, X, KEY)), arrays(true)) < 5e-3


def test_loops_of_equinox_inside():
    def loss(w: Any, x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, x = carry
            return i + 1, jnp.tanh(x @ w) + x

        _, out = eqx.internal.while_loop(
            lambda carry: carry[0] < 3, body, (0, x), max_steps=4, kind="checkpointed"
        )
        return jnp.mean(out**2)

    w = jax.random.normal(jax.random.key(0), (8, 8)) / 3

    def unrolled(w: Any, x: Any) -> Any:
        for _ in range(3):
            x = jnp.tanh(x @ w) + x
        return jnp.mean(x**2)

    true = jax.jit(jax.grad(unrolled))(w, X)
    around = duotone.autocast(jax.grad(loss), dtype="float16")
    assert relative_error(around(w, X), true) < 5e-3


# Training with the wrapped optimizer

TX = wrap(optax.adam(optax.linear_schedule(1e-2, 1e-3, 10)), dtype="float16")


@eqx.filter_jit
def train_step(model: Net, state: eqx.nn.State, opt_state: Any, blow_up: Any, x: Any = X) -> Any:
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params: Any) -> Any:
        return loss_fn(eqx.combine(params, static), state, x, Y, KEY, blow_up)

    out = TX.compute_gradients(loss, params, opt_state, has_aux=True)
    params, opt_state = TX.apply_gradients(out, params, opt_state)
    state = duotone.select_tree(out.finite, out.aux, state)
    return eqx.combine(params, static), state, opt_state, out.value


def test_a_skipped_step_changes_nothing():
    """Catches batch statistics of an overflow, momenta and schedules that run on."""
    model, state = made()
    opt_state = TX.init(eqx.filter(model, eqx.is_inexact_array))
    model, state, opt_state, _ = train_step(model, state, opt_state, jnp.float32(1))
    after: Any = train_step(model, state, opt_state, BLOW_UP)
    assert np.isfinite(after[3])
    assert kept(*after[:2], after[2].inner) == kept(model, state, opt_state.inner)
    assert TX.metrics(after[2])["skipped_steps"] == 1
    assert TX.metrics(after[2])["loss_scale"] == 2.0**14
    again: Any = train_step(after[0], after[1], after[2], jnp.float32(1))
    assert kept(again[0]) != kept(model)
    assert TX.metrics(again[2])["good_steps"] == 1


def test_digits_are_learned_in_float16():
    images, labels = digits()
    model = eqx.nn.MLP(64, 10, 32, 1, key=jax.random.key(0))
    tx = wrap(optax.adam(1e-2), dtype="float16")

    @eqx.filter_jit
    def step(model: Any, opt_state: Any, blow_up: Any) -> Any:
        params, static = eqx.partition(model, eqx.is_inexact_array)

        def loss(params: Any) -> Any:
            logits = jax.vmap(eqx.combine(params, static))(images)
            entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return entropy.mean() * blow_up, logits

        done = tx.minimize(loss, params, opt_state, has_aux=True)
        return eqx.combine(done.params, static), done.state, done.loss, done.aux

    opt_state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    losses: list[float] = []
    logits: Any = None
    for i in range(40):
        blow_up = jnp.float32(BLOW_UP if i == 7 else 1.0)
        model, opt_state, value, logits = step(model, opt_state, blow_up)
        losses.append(float(value))
    assert losses[-1] < losses[0] / 10
    assert np.mean(np.argmax(logits, -1) == labels) > 0.98
    assert tx.metrics(opt_state)["skipped_steps"] == 1
    assert int(optax.tree_utils.tree_get(opt_state, "count")) == 39


class Counted(eqx.Module):
    w: jax.Array
    calls: jax.Array

    def __init__(self) -> None:
        self.w, self.calls = jnp.ones((8, 1)), jnp.zeros((), jnp.int32)

    def __call__(self, x: Any) -> Any:
        return x @ self.w


def test_integer_leaves_are_refused_and_the_advice_helps():
    model: Any = Counted()
    with pytest.raises(ArgumentTypeError, match=r"\.calls is of dtype int32.*eqx\.partition"):
        TX.compute_gradients(lambda m: jnp.mean(m(X) ** 2), model, TX.init(model))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    out = TX.compute_gradients(
        lambda p: jnp.mean(eqx.combine(p, static)(X) ** 2), params, TX.init(params)
    )
    assert out.grads.w.shape == (8, 1)
    assert out.grads.calls is None


def test_leaves_are_serialised(tmp_path):
    model, state = made()
    opt_state = TX.init(eqx.filter(model, eqx.is_inexact_array))
    for blow_up in (1.0, BLOW_UP):
        model, state, opt_state, _ = train_step(model, state, opt_state, jnp.float32(blow_up))
    eqx.tree_serialise_leaves(tmp_path / "c", (model, state, opt_state))
    fresh = made()
    like = (*fresh, TX.init(eqx.filter(fresh[0], eqx.is_inexact_array)))
    restored = eqx.tree_deserialise_leaves(tmp_path / "c", like)
    assert kept(*restored) == kept(model, state, opt_state)
    assert TX.metrics(restored[2]) == TX.metrics(opt_state)


def test_an_optimizer_may_be_held_by_a_module():
    class Trainer(eqx.Module):
        tx: Any
        opt_state: Any

    trainer = Trainer(TX, TX.init(jnp.ones(3)))

    @eqx.filter_jit
    def step(trainer: Trainer, params: Any) -> Any:
        done = trainer.tx.minimize(lambda p: jnp.sum(p**2), params, trainer.opt_state)
        return Trainer(trainer.tx, done.state), done.params

    trainer, params = step(trainer, jnp.ones(3))
    assert float(params[0]) < 1
    assert TX.metrics(trainer.opt_state)["good_steps"] == 1
