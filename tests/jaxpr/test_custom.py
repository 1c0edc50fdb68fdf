"""Functions with derivative rules of their own keep them, with half residuals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.jaxpr import pipeline
from tests.jaxpr.programs import half, named, traced

X = jax.random.normal(jax.random.key(0), (4, 8))
W = jax.random.normal(jax.random.key(1), (8, 8)) / 3


@jax.custom_vjp
def doubled_gradient(x, w):
    return jnp.tanh(x @ w)


def _forward(x, w):
    y = jnp.tanh(x @ w)
    return y, (x, w, y)


def _backward(saved, g):
    x, w, y = saved
    d = 2 * g * (1 - y * y)  # twice the true gradient: shows that this rule ran
    return d @ w.T, x.T @ d


doubled_gradient.defvjp(_forward, _backward)


@jax.custom_jvp
def safe_root(x):
    return jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), 0.0)


@safe_root.defjvp
def _safe_root_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    y = safe_root(x)
    return y, jnp.where(x > 0, t / (2 * jnp.where(x > 0, y, 1.0)), 0.0)


def network(x, w):
    return jnp.sum(doubled_gradient(x @ w, w) @ w)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_vjp_rule_runs_on_either_side(dtype):
    exact = jax.grad(network, (0, 1))(X, W)
    tolerance: Any = {"rtol": 4e-2, "atol": 0.1 if dtype == jnp.bfloat16 else 2e-2}
    for gradient in (
        jax.grad(half(network, dtype), (0, 1))(X, W),
        half(jax.grad(network, (0, 1)), dtype)(X, W),
    ):
        for got, want in zip(gradient, exact, strict=True):
            np.testing.assert_allclose(got, want, **tolerance)


def test_a_vjp_rule_saves_half_residuals():
    _, pullback = jax.vjp(lambda x: half(network)(x, W), X)
    saved = [leaf.dtype.name for leaf in jax.tree.leaves(pullback) if leaf.shape == X.shape]
    assert saved
    assert set(saved) == {"float16"}


def test_the_call_keeps_its_name_and_is_half():
    (call,) = named(traced(half(network), X, W), "custom_vjp_call")
    assert call.outvars[0].aval.dtype == jnp.float16
    assert "doubled_gradient" in str(call.params["call_jaxpr"].jaxpr.debug_info)


def test_a_jvp_rule_keeps_a_gradient_finite_that_inlining_would_not():
    def function(x):
        return jnp.sum(safe_root(jnp.minimum(x @ W, 0.0)) @ W)

    plain = jax.grad(lambda x: jnp.sum(jnp.sqrt(jnp.minimum(x @ W, 0.0))))(X)
    assert not np.isfinite(plain).all()  # what inlining would give
    for gradient in (jax.grad(half(function))(X), half(jax.grad(function))(X)):
        np.testing.assert_array_equal(gradient, jnp.zeros_like(X))


def test_second_derivatives_of_a_jvp_rule():
    def function(x):
        return jnp.sum(safe_root(jnp.abs(x @ W) + 1.0))

    exact = jax.hessian(function)(X[:1])
    got = jax.hessian(half(function))(X[:1])
    np.testing.assert_allclose(got, exact, rtol=5e-2, atol=2e-3)


def test_integer_arguments_and_results_have_no_derivative():
    @jax.custom_vjp
    def pick(x, i):
        return x[i] * 2, i + 1

    pick.defvjp(lambda x, i: (pick(x, i), (x, i)), lambda r, g: (r[0] * 0 + g[0].sum(), None))

    def function(x, i):
        row, following = pick(x @ W, i)
        return jnp.sum(row @ W) + following

    exact = jax.grad(function)(X, 1)
    np.testing.assert_allclose(jax.grad(half(function))(X, 1), exact, rtol=2e-2, atol=2e-2)


def test_an_unpainted_rule_is_left_alone():
    def function(x):
        return doubled_gradient(jnp.exp(x), W).sum(), x

    policy = {"allow_remove": ["dot_general"]}
    before = jax.make_jaxpr(function)(X)
    (inner,) = jax.make_jaxpr(half(function, **policy))(X).jaxpr.eqns
    assert str(inner.params["jaxpr"]) == str(before)


def test_a_derivative_rule_has_the_scope_of_its_function_once(monkeypatch):
    """Catches: a pin with the full name of an operation, as blame prints it, that misses a rule."""
    built = []

    def build(*args):
        built.append(pipeline_build(*args))
        return built[-1]

    def loss(x, w):
        with jax.named_scope("outer"), jax.named_scope("inner"):
            return doubled_gradient(x, w).sum()

    pipeline_build = pipeline.build
    monkeypatch.setattr(pipeline, "build", build)
    jax.grad(half(loss, rules_remove=["backward"]))(X, W)
    assert len(built) == 3  # the function, its forward and its backward rule
    assert {node.scope for found in built for node in found.graph.nodes} == {"outer/inner"}
