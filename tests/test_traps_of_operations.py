"""The traps of rewriting jaxprs, of single operations: regions, dtypes, constants, state, leaves.

Each test is one of them, with a program in which the trap would spring.
"""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import duotone
from duotone.devices.table import TABLE
from duotone.jaxpr import pipeline
from tests.catalogue.evaluate import primitives_in
from tests.traps import HALVES, W, X, close, dtypes_of, equations, mixed, rewritten

# Programs that some primitives carry for one dtype


@pytest.mark.parametrize("half", HALVES)
def test_scatter_is_rebuilt_for_half(half: str):
    for name in ("set", "add", "multiply", "min", "max", "subtract"):

        def f(x: Any, name: str = name) -> Any:
            y = x @ W
            update = getattr(y.at[np.array([0, 2])], name)
            return update(y[1:3]) @ W

        everything = {"allow_add": primitives_in(jax.make_jaxpr(f)(X)) & _SCATTERS}
        close(jax.jit(mixed(f, half, **everything))(X), jax.jit(f)(X), half)


_SCATTERS = {"scatter", *(f"scatter-{n}" for n in ("add", "mul", "min", "max", "sub"))} | {
    f"scatter_{n}" for n in ("add", "mul", "min", "max", "sub")
}


@pytest.mark.parametrize("half", HALVES)
def test_a_scatter_with_a_region_of_its_own_keeps_it(half: str):
    def f(x: Any) -> Any:
        return (x @ W).at[0].apply(jnp.tanh) @ W

    close(jax.jit(mixed(f, half))(X), jax.jit(f)(X), half)


def test_a_reduction_with_a_region_of_its_own_stays_float32():
    def f(x: Any) -> Any:
        return lax.reduce(x @ W, np.float32(0), lambda a, b: a * 0.5 + b * 0.5, (0,)) @ W

    (eqn,) = equations(rewritten(f, X), "reduce")
    assert set(dtypes_of(eqn)) == {"float32"}
    close(mixed(f)(X), f(X))


# Operations that are left alone


def test_custom_root_shows_up_as_a_custom_jvp_and_keeps_its_derivative():
    def root(x: Any) -> Any:
        def solve(g: Any, start: Any) -> Any:
            return lax.fori_loop(0, 20, lambda _, y: 0.5 * (y + x / y), start)

        return lax.custom_root(
            lambda y: y * y - x, jnp.ones_like(x), solve, lambda g, y: y / g(jnp.ones_like(y))
        )

    def f(x: Any) -> Any:
        return jnp.sum(root(jnp.abs(x @ W) + 1) @ W)

    assert {"custom_jvp_call", "call_hi_primitive"} & primitives_in(jax.make_jaxpr(f)(X))
    close(jax.grad(mixed(f))(X), jax.grad(f)(X), ulp=16)
    close(mixed(jax.grad(f))(X), jax.grad(f)(X), ulp=16)


def test_an_unknown_primitive_is_left_alone_and_reported():
    def f(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((12, 8), np.float32)
        return pl.pallas_call(double, out_shape=shape, interpret=True)(x @ W) @ W

    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    (eqn,) = equations(rewritten(f, X), "pallas_call")
    assert set(dtypes_of(eqn)) == {"float32"}
    assert duotone.explain(f, X).summary.unlisted == {"pallas_call": 1}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("cholesky", lambda y: lax.linalg.cholesky(y @ y.T + 9 * jnp.eye(12))),
        ("complex", lambda y: lax.real(lax.complex(y, y)) @ W),
        ("bitcast_convert_type", lambda y: lax.bitcast_convert_type(y, np.int32)),
    ],
)
def test_what_has_no_half_form_stays_float32_even_if_listed(name: str, function: Any):
    jaxpr = rewritten(lambda x: function(x @ W), X, allow_add={name})
    for eqn in equations(jaxpr, name):
        assert not {"float16", "bfloat16"} & set(dtypes_of(eqn))


# Parameters that bear dtypes


@pytest.mark.parametrize("half", HALVES)
def test_preferred_element_type_follows(half: str, monkeypatch: pytest.MonkeyPatch):
    # Some CPUs take another form of dots; this is about the plain one.
    monkeypatch.setattr(pipeline, "current_forms", lambda *_, **__: TABLE["gpu"])

    def f(x: Any) -> Any:
        return jnp.dot(x, W, preferred_element_type=np.float32) @ W

    dots = equations(rewritten(f, X, half=half), "dot_general")
    (first,) = [eqn for eqn in dots if dtypes_of(eqn) == [half] * 3]
    assert str(first.params["preferred_element_type"]) == half


@pytest.mark.parametrize("half", HALVES)
def test_new_dtype_follows(half: str):
    def f(x: Any, i: Any) -> Any:
        return jnp.where(x > 0, x @ W, i.astype(np.float32)) @ W

    ids = np.ones((12, 8), np.int8)
    conversions = equations(rewritten(f, X, ids, half=half), "convert_element_type")
    from_integer = [e for e in conversions if str(e.invars[0].aval.dtype) == "int8"]
    assert [str(e.params["new_dtype"]) for e in from_integer] == [half]


def test_a_dot_algorithm_is_kept():
    preset = lax.DotAlgorithmPreset.F32_F32_F32

    def f(x: Any) -> Any:
        return jnp.dot(x @ W, W, precision=preset)

    dots = equations(rewritten(f, X), "dot_general")
    (full,) = [dot for dot in dots if set(dtypes_of(dot)) == {"float32"}]
    assert len(dots) == 2
    assert full.params["precision"] == preset


def test_out_dtype_of_mul_follows():
    (eqn,) = equations(rewritten(lambda x: ((x @ W) * (x @ W)) @ W, X, half="bfloat16"), "mul")
    assert set(dtypes_of(eqn)) == {"bfloat16"}
    assert eqn.params.get("out_dtype") in (None, jnp.bfloat16)


# Constants


@pytest.mark.parametrize("mask", [-1e9, float(np.finfo(np.float32).min), -np.inf])
@pytest.mark.parametrize("half", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_masks_stay_finite_or_infinite_as_they_were(mask: float, half: str):
    def attention(x: Any) -> Any:
        scores = jnp.where(jnp.tri(12, dtype=bool), (x @ W) @ x.T, mask)
        return jax.nn.softmax(scores) @ x

    def added(x: Any) -> Any:
        bias = jnp.where(jnp.tri(12, dtype=bool), 0.0, max(mask, -1e30))
        return jax.nn.softmax((x @ W) @ x.T + bias) @ x

    def filled(x: Any) -> Any:
        columns = np.array([0, 99, 2, 3, 4, 99, 6, 7, 8, 9, 10, 99])
        scores = jnp.take((x @ W) @ x.T, columns, 1, mode="fill", fill_value=mask)
        return jax.nn.softmax(scores) @ x

    def nothing_but_masked(x: Any) -> Any:
        rows = jnp.take(x @ W, np.array([99, 1]), 0, mode="fill", fill_value=max(mask, -3e38))
        return jax.nn.softmax(rows) @ W

    for f in (attention, added, filled, nothing_but_masked):
        close(mixed(f, half)(X), f(X), half, 16)
        gradient = jax.grad(lambda x, f=f: jnp.sum(mixed(f, half)(x)))(X)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("half", HALVES)
def test_an_epsilon_that_half_cannot_hold_does_not_become_zero(half: str):
    def f(x: Any) -> Any:
        y = x @ W
        return (y / (jnp.sqrt(jnp.sum(y * y, -1, keepdims=True)) + 1e-8)) @ W

    zeros = np.zeros((12, 8), np.float32)
    assert np.isfinite(mixed(f, half)(zeros)).all()
    close(mixed(f, half)(X), f(X), half)


def test_a_gather_may_fill_with_a_complex_number():
    def f(x: Any) -> Any:
        rows = jnp.take(x + 1j, np.array([0, 9]), 0, mode="fill", fill_value=1j)
        return jnp.real(rows) @ W + jnp.imag(rows) @ W

    close(mixed(f)(X), f(X))


# State


@pytest.mark.parametrize("half", HALVES)
def test_an_update_between_two_dots_is_computed_in_float32(half: str):
    # A GAN: the new discriminator feeds the generator's loss in the same step.
    def step(w: Any, g: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        new = w - 2.0**-13 * gradient
        return new, jax.grad(lambda g: jnp.mean((x @ g) @ new))(g)

    wanted, _ = step(W, W, X)
    got, _ = mixed(step, half)(W, W, X)
    moved = np.abs(np.asarray(wanted) - W).max()
    assert np.abs(np.asarray(got) - np.asarray(wanted)).max() <= 0.02 * moved


# Leaves


def test_leaves_that_are_no_arrays_are_static_and_returned_as_they_are():
    marker = object()

    def f(tree: Any, x: Any) -> Any:
        assert tree["n"] == 3
        assert tree["flag"] is True
        y = tree["activation"](x @ W) if tree["name"] == "tanh" else x
        return {"y": y, "n": tree["n"], "name": tree["name"], "f": tree["activation"], "m": marker}

    tree = {"n": 3, "flag": True, "name": "tanh", "activation": jnp.tanh, "none": None}
    out = mixed(f)(tree, X)
    assert out["n"] == 3
    assert type(out["n"]) is int
    assert out["name"] == "tanh"
    assert out["f"] is jnp.tanh
    assert out["m"] is marker


def test_a_python_scalar_stays_concrete_and_weakly_typed():
    def f(x: Any, count: int, scale: float) -> Any:
        for _ in range(count):
            x = (x @ W) * scale
        return x, scale

    out, scale = mixed(f)(X, 2, 0.5)
    assert type(scale) is float
    close(out, f(X, 2, 0.5)[0])


def test_many_values_of_a_python_number_are_reported_once(caplog: pytest.LogCaptureFixture):
    f = mixed(lambda x, scale: (x @ W) * scale)
    with caplog.at_level(logging.WARNING, "duotone"):
        for i in range(20):
            jax.eval_shape(lambda x, i=i: f(x, i / 7), X)
    assert sum("pass it as an array" in r.message for r in caplog.records) == 1
