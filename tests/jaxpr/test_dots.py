"""Dots and additions: accumulators handed on, gradients of what was broadcast."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tests.jaxpr.programs import dtypes, half, named, traced

X = jax.random.normal(jax.random.key(0), (64, 32))
W = jax.random.normal(jax.random.key(1), (32, 16)) / 6
B = jnp.zeros(16)


def test_a_dot_that_leads_to_an_output_hands_on_its_accumulator():
    (dot,) = named(traced(half(lambda x, w: x @ w), X, W), "dot_general")
    assert dtypes(dot) == ["float16", "float16", "float32"]


def test_its_backward_dots_take_half_operands():
    backward = jax.make_jaxpr(jax.grad(lambda x, w: half(jnp.matmul)(x, w).sum(), (0, 1)))(X, W)
    dots = named(backward, "dot_general")
    assert len(dots) >= 2
    assert all(dtypes(dot)[:2] == ["float16", "float16"] for dot in dots)


def test_its_derivatives_agree_forward_and_backward():
    tangent = jax.random.normal(jax.random.key(2), X.shape)
    _, forward = jax.jvp(lambda x: half(jnp.matmul)(x, W), (X,), (tangent,))
    np.testing.assert_allclose(forward, tangent @ W, rtol=5e-3, atol=5e-3)
    hessian = jax.hessian(lambda w: jnp.sum(half(jnp.matmul)(X[:2, :2], w) ** 2))(W[:2, :2])
    exact = jax.hessian(lambda w: jnp.sum((X[:2, :2] @ w) ** 2))(W[:2, :2])
    np.testing.assert_allclose(hessian, exact, rtol=1e-2, atol=1e-2)


def test_a_large_weight_gradient_does_not_overflow_when_the_step_is_rewritten():
    def loss(w):
        return jnp.sum((X * 100) @ w) * 100.0

    gradient = half(jax.grad(loss))(W)
    exact = jax.grad(loss)(W)
    assert float(jnp.abs(exact).max()) > 65504
    np.testing.assert_allclose(gradient, exact, rtol=1e-2, atol=50)


def test_a_bias_gradient_is_summed_in_float32():
    def loss(b):
        return half(lambda x, w, b: jnp.tanh((x @ w + b) @ w.T))(X, W, b).sum()

    backward = jax.make_jaxpr(jax.grad(loss))(B)
    sums = [e for e in named(backward, "reduce_sum") if e.invars[0].aval.shape == (64, 16)]
    assert sums
    assert all(dtypes(e)[0] == "float32" for e in sums)


def test_the_gradient_of_a_scale_is_summed_in_float32():
    def function(x, w, scale, divisor):
        h = half(lambda x, w, s, d: jnp.tanh(((x @ w) * s / d) @ w.T))(x, w, scale, divisor)
        return h.sum()

    arguments = (X, W, B + 1.5, B[:1] + 2.0)
    backward = jax.make_jaxpr(jax.grad(function, (2, 3)))(*arguments)
    sums = [e for e in named(backward, "reduce_sum") if e.invars[0].aval.shape == (64, 16)]
    assert len(sums) >= 2
    assert all(dtypes(e)[0] == "float32" for e in sums)

    def plain(x, w, s, d):
        return jnp.tanh(((x @ w) * s / d) @ w.T).sum()

    for got, want in zip(
        jax.grad(function, (0, 1, 2, 3))(*arguments),
        jax.grad(plain, (0, 1, 2, 3))(*arguments),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2 * float(jnp.abs(want).max()))


def test_a_precision_the_user_asked_for_is_kept():
    def precise(x, w):
        return jnp.matmul(x, w, precision="highest")

    (dot,) = named(jax.make_jaxpr(half(precise))(X, W), "dot_general")
    assert dtypes(dot) == ["float32"] * 3
