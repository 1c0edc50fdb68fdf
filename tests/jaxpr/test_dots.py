"""Dots and additions: accumulators passed on, gradients of what was broadcast."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.devices.half_choice import FAST_CPU_FLAGS, cpu_flags
from duotone.devices.table import TABLE
from duotone.jaxpr.rules.dots import rows_dot
from duotone.precision.optimize.dot_orders import swapped as mirrored
from tests.jaxpr.programs import dtypes, half, named, traced
from tests.jaxpr.test_orders import labelled
from tests.quick import in_turns

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


# The form ``rows``: the same sums, in a layout that the CPU's bfloat16 kernel takes.

DIMS = {
    "forward": ((5, 8), (8, 7), (((1,), (0,)), ((), ()))),
    "by rows": ((5, 8), (7, 8), (((1,), (1,)), ((), ()))),
    "weight gradient": ((8, 5), (8, 7), (((0,), (0,)), ((), ()))),
    "both transposed": ((8, 5), (7, 8), (((0,), (1,)), ((), ()))),
    "dense gradient": ((2, 4, 5), (2, 4, 7), (((0, 1), (0, 1)), ((), ()))),
    "crossed": ((2, 4, 5), (4, 2, 7), (((0, 1), (1, 0)), ((), ()))),
    "kernel of heads": ((2, 3, 8), (8, 2, 5), (((2,), (0,)), ((), ()))),
    "scores": ((2, 6, 3, 4), (2, 5, 3, 4), (((3,), (3,)), ((0, 2), (0, 2)))),
    "values": ((2, 5, 3, 4), (2, 3, 6, 5), (((1,), (3,)), ((0, 2), (0, 1)))),
    "values' gradient": ((2, 3, 6, 5), (2, 6, 3, 4), (((2,), (1,)), ((0, 1), (0, 2)))),
    "vector": ((8,), (8, 7), (((0,), (0,)), ((), ()))),
    "inner": ((8,), (8,), (((0,), (0,)), ((), ()))),
    "outer": ((5,), (7,), (((), ()), ((), ()))),
}


def operands(name):
    lhs, rhs, dims = DIMS[name]
    keys = jax.random.split(jax.random.key(3))
    pair = (
        jax.random.normal(key, shape, jnp.bfloat16)
        for key, shape in zip(keys, (lhs, rhs), strict=True)
    )
    return *pair, dims


def in_float64(lhs, rhs, dims):
    with jax.enable_x64(True):
        left, right = (jnp.asarray(np.asarray(x, np.float64)) for x in (lhs, rhs))
        return np.asarray(jax.lax.dot_general(left, right, dims))


def full_dot(lhs, rhs, dims):
    return jax.lax.dot_general(lhs.astype(jnp.float32), rhs.astype(jnp.float32), dims)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", DIMS)
def test_by_rows_the_sums_are_those_of_float32(name, swapped):
    lhs, rhs, dims = operands(name)
    exact = in_float64(lhs, rhs, dims)
    steps = mirrored(labelled(lhs.shape, rhs.shape, dims)) if swapped else ()
    for function in (rows_dot, jax.jit(rows_dot, static_argnums=(2, 3, 4))):
        result = function(lhs, rhs, dims, "float32", steps)
        assert (result.shape, result.dtype) == (exact.shape, jnp.float32)
        np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5)
    rounded = rows_dot(lhs, rhs, dims, "bfloat16", steps)
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(np.float32), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(("name", "result"), in_turns(DIMS, ["float32", "bfloat16"]))
def test_by_rows_derivatives_are_those_of_the_dot(name, result):
    lhs, rhs, dims = operands(name)

    def by_rows(lhs, rhs):
        return rows_dot(lhs, rhs, dims, result, ())

    cotangent = jax.random.normal(jax.random.key(4), by_rows(lhs, rhs).shape, jnp.bfloat16)
    _, pull = jax.vjp(by_rows, lhs, rhs)
    _, exact = jax.vjp(lambda a, b: full_dot(a, b, dims), lhs, rhs)
    for got, want in zip(
        pull(cotangent.astype(result)), exact(cotangent.astype(jnp.float32)), strict=True
    ):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(
            got.astype(np.float32), want.astype(np.float32), rtol=2**-7, atol=1e-2
        )
    tangents = (lhs * 2, rhs)
    _, forward = jax.jvp(by_rows, (lhs, rhs), tangents)
    np.testing.assert_allclose(
        forward.astype(np.float32), 3 * in_float64(lhs, rhs, dims), rtol=2**-6, atol=5e-2
    )


@pytest.mark.parametrize("places", [(0, 0), (1, None), (None, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("name", ["weight gradient", "scores", "values' gradient"])
def test_by_rows_its_backward_pass_can_be_mapped(name, places):
    lhs, rhs, dims = operands(name)

    def gradients(lhs, rhs):
        return jax.grad(lambda *pair: rows_dot(*pair, dims, "float32", ()).sum(), (0, 1))(lhs, rhs)

    stacked = [
        x if place is None else jnp.stack([x, x * 2, x * 3], place)
        for x, place in zip((lhs, rhs), places, strict=True)
    ]
    got = jax.vmap(gradients, places)(*stacked)
    for i in range(3):
        chosen = [
            x if place is None else jnp.take(x, i, place)
            for x, place in zip(stacked, places, strict=True)
        ]
        for mapped, single in zip(got, gradients(*chosen), strict=True):
            np.testing.assert_allclose(
                mapped[i].astype(np.float32), single.astype(np.float32), rtol=2**-6, atol=2e-2
            )


def test_by_rows_a_constant_operand_costs_no_backward_dot():
    lhs, rhs, dims = operands("forward")
    jaxpr = jax.make_jaxpr(
        lambda w: jax.vjp(lambda w: rows_dot(lhs, w, dims, "float32", ()), w)[1](jnp.ones((5, 7)))
    )(rhs)
    assert len(named(jaxpr, "duotone_dot")) == 1


WHOLE_PROGRAMS = {
    "transposed before": lambda x, w: x.T @ w,
    "transposed after": lambda x, w: (x @ w).T,
    "transposed both": lambda x, w: (w.T @ x).T,
    "weight gradient": lambda x, w: jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w),
    "batch": lambda x, w: jnp.einsum("bij,bik->bjk", x.reshape(4, 16, 64), w.reshape(4, 16, 64)),
    "attention": lambda x, w: jnp.einsum(
        "bqhd,bkhd->bhqk", x.reshape(2, 8, 4, 64), w.reshape(2, 8, 4, 64)
    ),
    "attention gradient": lambda x, w: jax.grad(
        lambda v: jnp.sum(jnp.einsum("bhqk,bkhd->bqhd", x.reshape(2, 4, 8, 64)[..., :8], v) ** 2)
    )(w.reshape(2, 8, 4, 64)),
    "chain": lambda x, w: jnp.tanh(x @ w) @ jnp.tanh(w @ x).T,
    "scan": lambda x, w: jax.lax.scan(lambda c, _: (jnp.tanh(c.T @ w), None), x, None, 3)[0],
    "checkpoint": lambda x, w: jax.grad(lambda w: jax.checkpoint(lambda w: x.T @ w)(w).sum())(w),
}


@pytest.mark.parametrize("transform", ["autocast", "grad"])
@pytest.mark.parametrize("name", WHOLE_PROGRAMS)
def test_no_layout_fails_when_it_runs(name, transform):
    """Catches ``UNIMPLEMENTED … DotThunk … BF16 x BF16 = F32``: compiled, and failing at run time.

    Binding these dots with half operands and a float32 result, as they stand, fails for several of
    them with jaxlib 0.10 and 0.12.
    """
    x, w = (jax.random.normal(jax.random.key(i), (64, 64)) / 8 for i in (5, 6))
    plain = WHOLE_PROGRAMS[name]
    mixed = half(plain, "bfloat16")
    if transform == "grad":
        plain, mixed = (
            jax.grad(lambda x, w, f=f: jnp.sum(jnp.sin(f(x, w))), (0, 1)) for f in (plain, mixed)
        )
    for got, want in zip(
        jax.tree.leaves(jax.jit(mixed)(x, w)), jax.tree.leaves(plain(x, w)), strict=True
    ):
        scale = float(jnp.abs(want).max())
        np.testing.assert_allclose(got, want, atol=4e-2 * scale + 1e-3)


@pytest.mark.parametrize("form", ["plain", "rows", "widened"])
def test_every_form_gives_the_same_sums(form, monkeypatch):
    def forms(half, **_):
        return dataclasses.replace(TABLE["other"], dots=form)

    monkeypatch.setattr("duotone.jaxpr.pipeline.current_forms", forms)
    text = str(jax.make_jaxpr(half(jnp.matmul, "bfloat16"))(X, W))
    assert ("optimization_barrier" in text) is (form == "rows")
    rounded = (x.astype(jnp.bfloat16).astype(jnp.float32) for x in (X, W))
    result = jax.jit(half(jnp.matmul, "bfloat16"))(X, W)
    np.testing.assert_allclose(result, jnp.matmul(*rounded), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not FAST_CPU_FLAGS & cpu_flags(), reason="a CPU without bfloat16 instructions")
@pytest.mark.parametrize("name", ["forward", "backward", "weight gradient", "attention"])
def test_the_compiled_dot_is_one_of_bfloat16_operands(name):
    """On this CPU the form reaches the bfloat16 kernel; a plain weight gradient does not."""
    x = jnp.ones((256, 256))
    programs = {
        "forward": jnp.matmul,
        "backward": lambda x, w: x @ w.T,
        "weight gradient": lambda x, w: jax.grad(lambda w: jnp.sum(x @ w))(w),
        "attention": lambda x, w: jnp.einsum(
            "bqhd,bkhd->bhqk", x.reshape(1, 256, 4, 64), w.reshape(1, 256, 4, 64)
        ),
    }
    text = jax.jit(half(programs[name], "bfloat16")).lower(x, x).compile().as_text() or ""
    dots = re.findall(r"^.* dot\(%?([\w.]+), %?([\w.]+)\)", text, re.MULTILINE)
    kinds = {
        kind
        for pair in dots
        for operand in pair
        for kind in re.findall(rf"{re.escape(operand)} = (\w+)\[", text)
    }
    assert kinds == {"bf16"}
