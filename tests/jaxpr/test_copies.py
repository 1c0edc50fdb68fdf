"""What a rewrite does not change is copied, types and source lines included; no rubbish stays."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import pytest

from duotone import _jax
from duotone.jaxpr.running.env import Env
from tests.jaxpr.programs import half, named, traced

X = jnp.ones((4, 8))
W = jnp.ones((8, 8))


def _loss(w, x):
    return jnp.sum(jax.nn.gelu(jax.nn.gelu(x @ w) @ w))


def test_a_copy_is_the_equation() -> None:
    (eqn,) = jax.make_jaxpr(jnp.sin)(X).eqns
    (copied,) = jax.make_jaxpr(lambda x: _jax.bind_again(eqn, [x]))(X).eqns
    assert copied.params is eqn.params
    assert copied.outvars[0].aval == eqn.outvars[0].aval
    assert copied.source_info.traceback is eqn.source_info.traceback


def test_a_copy_stands_in_the_scopes_around_it() -> None:
    def inner(x):
        with jax.named_scope("inner"):
            return jnp.sin(x)

    (eqn,) = jax.make_jaxpr(inner)(X).eqns

    def outer(x):
        with jax.named_scope("outer"):
            return _jax.bind_again(eqn, [x])

    (copied,) = jax.make_jaxpr(outer)(X).eqns
    assert _jax.scope_names(copied.source_info.name_stack) == ("outer", "inner")


@pytest.mark.parametrize("other", [1.0, X.astype(jnp.bfloat16), X[0]])
def test_operands_of_another_type_have_results_of_another_type(other) -> None:
    (eqn,) = jax.make_jaxpr(jnp.sin)(X).eqns
    copied = jax.make_jaxpr(lambda x: _jax.bind_again(eqn, [x]))(other)
    assert copied.out_avals == jax.make_jaxpr(jnp.sin)(other).out_avals


def test_outside_of_traces_an_equation_is_carried_out() -> None:
    (eqn,) = jax.make_jaxpr(jnp.sin)(X).eqns
    assert jnp.array_equal(_jax.bind_again(eqn, [X])[0], jnp.sin(X))
    (mapped,) = jax.vmap(lambda x: _jax.bind_again(eqn, [x])[0])(X[None])
    assert jnp.array_equal(mapped, jnp.sin(X))


def test_what_is_bound_once_is_written_down_for_each_call() -> None:
    once, calls = _jax.BoundOnce(), []

    def power(x, exponent):
        calls.append(exponent)
        return jax.lax.integer_pow(x, exponent)

    jaxpr = jax.make_jaxpr(lambda x, y: [once(power, [v], n) for v in (x, y) for n in (2, 3)])(X, W)
    assert [eqn.params["y"] for eqn in named(jaxpr, "integer_pow")] == [2, 3, 2, 3]
    jax.make_jaxpr(lambda x: [once(power, [x], 2), once(power, [x + x], 3)])(X)
    assert calls == [2, 3, 2, 3]  # the two shapes; none in the second program
    assert jaxpr.out_avals == [v.aval for v in jaxpr.jaxpr.outvars]


def test_a_function_that_binds_more_is_called_each_time() -> None:
    once, calls = _jax.BoundOnce(), []

    def squared_sine(x):
        calls.append(x)
        return jnp.sin(x) * 2

    jax.make_jaxpr(lambda x: [once(squared_sine, [x]), once(squared_sine, [x])])(X)
    assert len(calls) == 2


def test_the_arrays_of_a_rewrite_are_freed_without_a_collection() -> None:
    """A cycle among environments would keep them."""
    gc.collect()
    gc.disable()
    try:
        traced(half(jax.value_and_grad(_loss)), W, X)
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Env)]
    finally:
        gc.enable()
