"""Loops: one dtype for a carry, casts of constants outside, gradients summed in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import _jax
from duotone.jaxpr.reading.build import build
from tests.jaxpr.programs import dtypes, equations, half, named, traced

X = jax.random.normal(jax.random.key(0), (4, 8))
W = jax.random.normal(jax.random.key(1), (8, 8)) / 3


def recur(x, w):
    def step(carry, _):
        return jnp.tanh(carry @ w), carry

    last, seen = jax.lax.scan(step, x, None, length=5)
    return (last @ w).sum(), seen @ w


def test_a_carry_has_one_dtype_and_residuals_are_half():
    (scan,) = named(traced(half(recur), X, W), "scan")
    body = scan.params["jaxpr"].jaxpr
    consts, _ = _jax.scan_layout(scan)
    carry_in, lower = body.invars[consts].aval.dtype, body.outvars[0].aval.dtype
    assert carry_in == lower == jnp.float16
    assert [var.aval.dtype.name for var in scan.outvars] == ["float16", "float16"]


def test_a_weight_is_cast_once_outside_the_loop():
    (scan,) = named(traced(half(recur), X, W), "scan")
    assert not named(scan.params["jaxpr"], "convert_element_type")


def test_nested_loops_cast_outside_both():
    def nested(x, w):
        def outer(carry, _):
            return jax.lax.fori_loop(0, 2, lambda _, c: jnp.tanh(c @ w), carry), None

        return jax.lax.scan(outer, x, None, length=3)[0] @ w

    (outer,) = [e for e in named(traced(half(nested), X, W), "scan") if e.params["length"] == 3]
    assert not [
        e
        for e in named(outer.params["jaxpr"], "convert_element_type")
        if e.invars[0].aval.shape == W.shape
    ]


@pytest.mark.parametrize("loop", ["scan", "nested"])
def test_the_gradient_of_a_weight_is_summed_in_float32(loop):
    # 600 equal contributions of 1/1024: half would stop adding at 0.5 (2048 ulps of 2**-12).
    def scan(x, w):
        def step(total, row):
            return total + (row @ w).sum(), None

        if loop == "scan":
            return jax.lax.scan(step, 0.0, x)[0]
        rows = x.reshape(2, -1, 1, 1)
        return jax.lax.scan(lambda c, r: (jax.lax.scan(step, c, r)[0], None), 0.0, rows)[0]

    x = jnp.full((600, 1, 1), 2.0**-10)
    gradient = jax.grad(half(scan), argnums=1)(x, jnp.ones((1, 1)))
    assert float(gradient[0, 0]) == 600 * 2.0**-10
    backward = jax.make_jaxpr(jax.grad(half(scan), argnums=1))(x, jnp.ones((1, 1)))
    sums = [e for e in named(backward, "add_any") if e.outvars[0].aval.shape == (1, 1)]
    assert sums
    assert all(dtypes(e)[-1] == "float32" for e in sums)


def test_a_planted_half_sum_would_be_seen():
    term = np.float16(2.0**-10)
    total = np.float16(0)
    for _ in range(6000):
        total = np.float16(total + term)
    assert float(total) != 6000 * 2.0**-10


def test_an_accumulator_stays_full():
    def accumulate(x, w):
        def step(total, row):
            return total + row @ w, None

        return jax.lax.scan(step, jnp.zeros((8,)), x)[0] @ w

    (scan,) = named(traced(half(accumulate), X, W), "scan")
    assert scan.outvars[0].aval.dtype == jnp.float32
    dots = named(scan.params["jaxpr"], "dot_general")
    assert dtypes(dots[0])[:2] == ["float16", "float16"]


@pytest.mark.parametrize(
    "step",
    [
        lambda total, term: total - term,
        lambda total, term: term - total,
        lambda total, term: 0.9 * total + term,
    ],
)
def test_a_carry_that_only_terms_are_added_to_stays_full(step):
    def loop(x, w):
        return jax.lax.scan(lambda c, row: (step(c, row @ w), None), jnp.zeros(8), x)[0] @ w

    (scan,) = named(traced(half(loop), X, W), "scan")
    assert scan.outvars[0].aval.dtype == jnp.float32


def until_large(row: Any, w: Any) -> Any:
    """A loop that ends when the row is large, which is sooner for some rows than for others."""
    return jax.lax.while_loop(
        lambda state: jnp.sum(jnp.abs(state[1])) < 20,
        lambda state: (state[0] + 1, state[1] + jnp.abs(jnp.tanh(state[1] @ w))),
        (0, row),
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_each_row_of_a_mapped_while_loop_ends_by_itself(dtype: str) -> None:
    rows = X[:4] * jnp.arange(1.0, 5.0)[:, None]

    def f(rows: Any, w: Any) -> Any:
        counts, last = jax.vmap(until_large, (0, None))(rows, w)
        return counts, last @ w

    (counts, result), (expected_counts, expected) = (
        g(rows, W) for g in (duotone.autocast(f, dtype=dtype), f)
    )
    assert len(set(expected_counts.tolist())) > 2
    np.testing.assert_array_equal(counts, expected_counts)
    np.testing.assert_allclose(result, expected, atol=0.02 * np.abs(expected).max())
    nested = duotone.autocast(lambda rows: jax.vmap(f, (0, None))(rows, W), dtype=dtype)
    np.testing.assert_array_equal(nested(jnp.stack([rows, rows[::-1]]))[0][1], counts[::-1])


def test_a_while_loop_keeps_condition_and_body_in_one_dtype():
    def loop(x, w):
        def go_on(state):
            return jnp.logical_and(state[0] < 4, jnp.max(state[1]) < 1e3)

        return (
            jax.lax.while_loop(go_on, lambda s: (s[0] + 1, jnp.tanh(s[1] @ w)), (0, x @ w))[1] @ w
        )

    (loop_eqn,) = named(traced(half(loop), X, W), "while")
    assert [v.aval.dtype.name for v in loop_eqn.outvars][1] == "float16"
    np.testing.assert_allclose(half(loop)(X, W), loop(X, W), rtol=2e-2, atol=2e-3)


def test_reverse_unroll_and_length_are_kept():
    def loop(x, w):
        step = lambda c, r: (jnp.tanh(c @ w + r), c @ w)  # noqa: E731
        return jax.lax.scan(step, x[0], x, reverse=True, unroll=2)

    (scan,) = named(traced(half(loop), X, W), "scan")
    assert scan.params["reverse"]
    assert scan.params["unroll"] == 2
    assert scan.params["length"] == 4
    for got, want in zip(half(loop)(X, W), loop(X, W), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-3)


def test_a_loop_without_half_is_left_as_it_is():
    def loop(x, w):
        total = jax.lax.scan(lambda c, r: (c + jnp.exp(r), r), jnp.zeros(8), x)[0]
        return total, x @ w

    before = named(jax.make_jaxpr(loop)(X, W), "scan")
    after = named(traced(half(loop), X, W), "scan")
    assert str(before[0].params["jaxpr"]) == str(after[0].params["jaxpr"])
    assert sum(e.primitive.name == "dot_general" for e in equations(traced(half(loop), X, W))) == 1


def test_values_that_enter_and_leave_a_body_have_the_scope_of_the_operation_once():
    def f(x):
        with jax.named_scope("outer"):
            carry, _ = jax.lax.scan(lambda c, a: (c @ a, c), x[0], x)
            return jax.lax.cond(carry.sum() > 0, lambda c: c @ c, jnp.tanh, carry)

    graph = build(jax.make_jaxpr(f)(jnp.ones((3, 8, 8)))).graph
    structural = {node.op: node.scope for node in graph.nodes if "." in node.op}
    kinds = ("loop.carry", "loop.slice", "loop.stack", "branch.join")
    assert structural == dict.fromkeys(kinds, "outer")
