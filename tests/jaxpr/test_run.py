"""Calls: one trace a signature, what is not an array passes through, donation, nesting."""

from __future__ import annotations

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from tests.jaxpr.programs import FORCED, dtypes, half, named, traced

X = jax.random.normal(jax.random.key(0), (4, 8))
W = jax.random.normal(jax.random.key(1), (8, 8)) / 3


def test_each_signature_is_traced_once():
    traces = []

    def function(x, n, *, mode="tanh"):
        traces.append((x.shape, n, mode))
        return getattr(jnp, mode)(x @ x.T) * n

    rewritten = half(function)
    for x, n, mode in [(X, 2, "tanh"), (X + 1, 2, "tanh"), (X[:2], 2, "tanh"), (X, 3, "sin")]:
        rewritten(x, n, mode=mode)
        rewritten(x, n, mode=mode)
    assert len(traces) == 3  # the first two differ in values only


def test_equal_numbers_of_different_types_are_different_programs():
    rewritten = half(lambda x, n: (x @ x.T, n))
    kinds = [type(rewritten(X, n)[1]) for n in (1, 1.0, True, 1 + 0j)]
    assert kinds == [int, float, bool, complex]
    signs = [np.signbit(rewritten(X, n)[1]) for n in (0.0, -0.0)]
    assert signs == [False, True]


def test_what_is_not_an_array_passes_through():
    key = jax.random.key(3)
    nothing = np.zeros((2,), jax.dtypes.float0)

    def function(x, rest):
        return x @ x.T, rest

    rest = {"f": jnp.tanh, "s": "text", "n": None, "k": key, "o": nothing, "d": {1, 2}}
    _, back = half(function)(X, rest)
    assert back["f"] is jnp.tanh
    assert back["s"] == "text"
    assert back["n"] is None
    assert back["d"] == {1, 2}
    assert back["o"].dtype == jax.dtypes.float0
    assert jnp.array_equal(jax.random.key_data(back["k"]), jax.random.key_data(key))


def test_equinox_modules_go_in_and_come_out():
    model = eqx.nn.MLP(8, 3, 16, 2, activation=jax.nn.gelu, key=jax.random.key(0))

    @half
    def apply(model, x):
        return jax.vmap(model)(x), model

    out, back = apply(model, X)
    np.testing.assert_allclose(out, jax.vmap(model)(X), rtol=1e-2, atol=1e-2)
    assert back.activation is model.activation
    assert eqx.tree_equal(back, model)
    gradient = eqx.filter_grad(lambda m: apply(m, X)[0].sum())(model)
    assert gradient.layers[0].weight.dtype == jnp.float32


def test_methods_are_bound():
    class Net:
        @duotone.autocast(dtype="float16", policy=FORCED)
        def apply(self, x):
            return x @ W

    assert Net().apply(X).shape == (4, 8)


def test_a_jitted_function_still_donates():
    update = half(jax.jit(lambda w, x: w + x.T @ x, donate_argnums=0))
    w = jnp.zeros((8, 8))
    update(w, X)
    assert w.is_deleted()


def test_a_function_around_a_donating_jit_donates_what_it_alone_reads():
    update = jax.jit(lambda w, x: w + x.T @ x, donate_argnums=0)
    traces = []

    def step(w, kept, x):
        traces.append(x.shape)
        return update(w, x), update(kept, x) + kept, x

    w, kept = jnp.zeros((8, 8)), jnp.zeros((8, 8))
    x = X + 0
    wanted = X.T @ X
    for value in half(step)(w, kept, x)[:2]:
        np.testing.assert_allclose(value, wanted, rtol=1e-2, atol=1e-2)
    assert [array.is_deleted() for array in (w, kept, x)] == [True, False, False]
    assert len(traces) <= 2  # a program that donates is traced once more
    jax.jit(half(step))(jnp.zeros((8, 8)), kept, x)
    assert not kept.is_deleted()


def test_each_shape_donates_what_its_own_program_does():
    update = jax.jit(lambda w, x: w + x.T @ x, donate_argnums=0)
    step = half(lambda w, x: update(w, x) if len(x) == len(X) else w + x.T @ x)
    last, other = jnp.zeros((8, 8)), jnp.zeros((8, 8))
    for w, x in [(jnp.zeros((8, 8)), X), (other, X[:2]), (last, X + 1)]:
        np.testing.assert_allclose(step(w, x), x.T @ x, rtol=1e-2, atol=1e-2)
    assert [other.is_deleted(), last.is_deleted()] == [False, True]


@pytest.mark.parametrize("donate", ["all", "none"])
def test_donation_of_equinox(donate):
    update = eqx.filter_jit(lambda w, x: (w + x.T @ x, x + 1), donate=donate)
    w = jnp.zeros((8, 8))
    half(update)(w, X + 0)
    assert w.is_deleted() == (donate == "all")


def test_static_arguments_of_a_jitted_function():
    power = jax.jit(lambda x, n: (x @ x.T) ** n, static_argnums=1)
    np.testing.assert_allclose(half(power)(X, 2), power(X, 2), rtol=1e-2, atol=1e-2)


def test_autocast_leaves_autocast_alone():
    inner = half(lambda x, w: jnp.tanh(x @ w))
    outer = half(lambda x, w: inner(x, w), "bfloat16")
    program = traced(outer, X, W)
    assert [eqn.params["name"] for eqn in named(program, "jit")] == ["duotone_autocast"]
    kinds = {name for eqn in named(program, "dot_general") for name in dtypes(eqn)}
    assert kinds == {"float16", "float32"}


def test_nothing_to_paint_gives_the_same_program():
    def function(x):
        return jnp.exp(x).sum() + x[0, 0]

    assert str(traced(half(function), X)) == str(jax.make_jaxpr(function)(X))


def test_slow_devices_run_the_function_as_it_is(monkeypatch, caplog):
    from duotone import devices as targets
    from duotone.transforms import mixed_function as mixed

    choice = targets.HalfChoice(None, "it is slow")
    monkeypatch.setattr(mixed, "current_choice", lambda: choice)
    with caplog.at_level(logging.WARNING, logger="duotone"):
        plain = duotone.autocast(lambda x: x @ x.T)
        program = jax.make_jaxpr(plain)(X)
        plain(X)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "it is slow" in caplog.text
    assert "ignore_performance=True" in caplog.text
    assert {name for e in named(program, "dot_general") for name in dtypes(e)} == {"float32"}


def test_the_device_is_asked_at_the_first_call_only(monkeypatch):
    from duotone import devices as targets
    from duotone.transforms import mixed_function as mixed

    asked = []

    def choose():
        asked.append(1)
        return targets.HalfChoice("bfloat16", "it is fast")

    monkeypatch.setattr(mixed, "current_choice", choose)
    rewritten = duotone.autocast(lambda x: x @ x.T)
    assert not asked
    rewritten(X)
    rewritten(X)
    assert len(asked) == 1


def test_a_number_that_changes_is_warned_of(caplog):
    rewritten = half(lambda x, lr: (x @ x.T) * lr)
    with caplog.at_level(logging.WARNING, logger="duotone"):
        for step in range(17):
            rewritten(X, step / 10)
    assert len(caplog.records) == 1
    assert "jnp.asarray" in caplog.text


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f])
def test_weak_types_and_numpy_inputs(wrap):
    def function(x, s):
        return x @ x.T, s * 2, jnp.asarray(3.0), np.float32(1)

    x = np.asarray(X)
    got = jax.make_jaxpr(wrap(half(function)))(x, 2.0).out_avals
    want = jax.make_jaxpr(function)(x, 2.0).out_avals
    assert [(a.shape, a.dtype, a.weak_type) for a in got] == [
        (a.shape, a.dtype, a.weak_type) for a in want
    ]
