"""Dots of a weight: its gradient is the float32 sum, whoever differentiates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

from duotone.devices.table import TABLE
from duotone.jaxpr import pipeline
from duotone.jaxpr.rules.dots import rows_dot
from duotone.jaxpr.rules.weight_dots import DotForm, of_weight
from tests.jaxpr.programs import dtypes, named, traced
from tests.jaxpr.programs import half as rewritten
from tests.numerics.oracle import ulps
from tests.quick import in_turns

FORMS = (("plain", "float16"), ("rows", "bfloat16"), ("widened", "bfloat16"))
KEYS = jax.random.split(jax.random.key(0), 4)
X = jax.random.normal(KEYS[0], (96, 24))
W = jax.random.normal(KEYS[1], (24, 16)) / 5

Function = Callable[[Any, Any], Any]


def half(function: Callable[..., Any], dtype: Any = "float16") -> Any:
    """``function`` rewritten, its derivatives left to JAX."""
    return rewritten(function, dtype, rules_remove=["backward"])


def heads(x: Any, w: Any) -> Any:
    return jnp.einsum("bi,ihd->bhd", x, w.reshape(24, 4, 4)).sum(1)


def scanned(x: Any, w: Any) -> Any:
    stacked = jnp.concatenate([w, -w], 1).reshape(24, 2, 16).transpose(1, 0, 2)
    return jax.lax.scan(lambda c, w: (c + x @ w, None), jnp.zeros((96, 16)), stacked)[0] + x @ w


PROGRAMS: dict[str, Function] = {
    "right": lambda x, w: x @ w,
    "left": lambda x, w: (w.T @ x.T).T,
    "transposed": lambda x, w: x @ w.T.reshape(16, 24).T,
    "heads": heads,
    "tied": lambda x, w: (x @ w) @ w.T @ w,
    "checkpoint": lambda x, w: jax.checkpoint(lambda w: x @ w)(w),
    "constant of a loop": lambda x, w: jax.lax.fori_loop(
        0, 3, lambda _, c: c + x @ w, jnp.zeros((96, 16))
    ),
    "slices of a loop": scanned,
    "jit": lambda x, w: jax.jit(jnp.matmul)(x, w),
    "vmap": lambda x, w: jax.vmap(lambda row: row @ w)(x),
}


@pytest.fixture(params=FORMS, ids=lambda form: form[0])
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A half type, with dots in a form that runs on a CPU."""
    kind, name = request.param
    row = dataclasses.replace(TABLE["other"], dots=kind)
    monkeypatch.setattr("duotone.jaxpr.pipeline.current_forms", lambda *_, **__: row)
    return name


def squared(function: Function) -> Function:
    return lambda x, w: (jnp.tanh(function(x, w)) ** 2).sum()


# In these each weight is an operand of dots, or a loop's slice, directly or moved.
@pytest.mark.parametrize("name", ["right", "left", "transposed", "heads", "tied", "vmap", "jit"])
def test_the_gradient_of_a_weight_is_the_float32_sum(name: str, dtype: str) -> None:
    """No half number lies between the last backward dot and the gradient."""
    gradient = jax.grad(half(squared(PROGRAMS[name]), dtype), 1)
    program = jax.make_jaxpr(gradient)(X, W)
    products = [eqn for eqn in named(program, "duotone_dot") if dtypes(eqn)[-1] == "float32"]
    assert len(products) == (3 if name == "tied" else 1)


@pytest.mark.parametrize(("name", "dtype"), in_turns(PROGRAMS, FORMS), indirect=["dtype"], ids=str)
def test_gradients_are_those_of_float32(name: str, dtype: str) -> None:
    eps = float(jnp.finfo(dtype).eps)
    function = squared(PROGRAMS[name])
    for wrt in (0, 1):
        got = jax.jit(jax.grad(half(function, dtype), wrt))(X, W)
        want = jax.jit(jax.grad(function, wrt))(X, W)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, atol=8 * eps * float(jnp.abs(want).max()))


def error_of_gradient(dtype: str) -> float:
    """ULP in float32 of the gradient of a sum over rows, whose operands half holds exactly."""
    x, w = (a.astype(dtype).astype(jnp.float32) for a in (X, W))
    got = jax.grad(lambda w: half(jnp.matmul, dtype)(x, w).sum())(w)
    want = np.asarray(x, np.float64).sum(0)[:, None].repeat(16, 1)
    scale = np.abs(np.asarray(x, np.float64)).sum(0)[:, None].repeat(16, 1)
    return float(ulps(np.asarray(got), want, "float32", scale))


def test_a_weight_gradient_is_not_rounded_to_half(dtype: str) -> None:
    assert error_of_gradient(dtype) < 16


def test_a_gradient_that_is_rounded_is_caught(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: no weight is looked for, and JAX transposes the dot."""
    row = pipeline.current_forms("")
    without = dataclasses.replace(row, optimizations=row.optimizations - {"weight_gradients"})
    monkeypatch.setattr(pipeline, "current_forms", lambda *_, **__: without)
    assert error_of_gradient(dtype) > 500


@pytest.mark.parametrize("name", ["right", "heads", "tied"])
def test_second_derivatives_and_tangents(name: str, dtype: str) -> None:
    """Forward over reverse, reverse over reverse, and a tangent of both operands."""
    eps = float(jnp.finfo(dtype).eps)
    function = squared(PROGRAMS[name])
    mixed, direction = half(function, dtype), jnp.cos(W)

    def along(f: Function, w: Any) -> Any:
        return (jax.grad(f, 1)(X, w) * direction).sum()

    pairs = [
        (
            jax.jvp(lambda w, f=f: jax.grad(f, 1)(X, w), (W,), (direction,))[1],
            jax.grad(lambda w, f=f: along(f, w))(W),
            jax.jvp(f, (X, W), (jnp.cos(X), direction))[1],
        )
        for f in (mixed, function)
    ]
    for got, want in zip(*pairs, strict=True):
        np.testing.assert_allclose(got, want, atol=40 * eps * float(jnp.abs(want).max()))
    assert float(jnp.abs(pairs[1][0]).max()) > 0


def test_gradients_for_each_example(dtype: str) -> None:
    eps = float(jnp.finfo(dtype).eps)

    def each(function: Function) -> Any:
        return jax.vmap(lambda row: jax.grad(function, 1)(row[None], W))(X[:5])

    function = squared(PROGRAMS["right"])
    got, want = each(half(function, dtype)), each(function)
    np.testing.assert_allclose(got, want, atol=8 * eps * float(jnp.abs(want).max()))


def test_what_is_not_asked_for_costs_no_dot(dtype: str) -> None:
    """Neither the gradient of the operand next to the weight, nor anything in the forward pass."""
    forward = traced(half(jnp.matmul, dtype), X, W)
    assert len(named(forward, "dot_general")) == 1
    program = jax.make_jaxpr(jax.grad(lambda w: half(jnp.matmul, dtype)(X, w).sum()))(W)
    assert len(named(program, "duotone_dot")) == 1


def test_of_two_arguments_the_smaller_is_the_weight(dtype: str) -> None:
    """The gradient of what is most likely an activation stays half up to its cast."""

    def gradients(x: Any, w: Any) -> Any:
        return jax.grad(lambda x, w: half(jnp.matmul, dtype)(x, w).sum(), (0, 1))(x, w)

    products = named(jax.make_jaxpr(gradients)(X, W), "duotone_dot")
    (wide,) = [eqn for eqn in products if dtypes(eqn)[-1] == "float32"]
    assert sorted(wide.outvars[0].aval.shape) == sorted(W.shape)


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("kind", ["plain", "rows", "widened"])
def test_the_derivative_by_itself(kind: str, slot: int) -> None:
    name = "float16" if kind == "plain" else "bfloat16"
    lhs, rhs = X[:8].astype(name), W.astype(name)
    numbers = (((1,), (0,)), ((), ()))
    form = DotForm(kind, numbers, "float32", name)
    result = rows_dot(lhs, rhs, numbers, "float32", ())

    def dot(full: Any) -> Any:
        return of_weight(result, lhs, rhs, full, slot, form)

    full = (X[:8], W)[slot]
    cotangent = jnp.cos(dot(full))
    (got,) = jax.vjp(dot, full)[1](cotangent)
    rounded = np.asarray(cotangent.astype(name), np.float64)
    exact = rounded @ np.asarray(rhs, np.float64).T
    if slot:
        exact = np.asarray(lhs, np.float64).T @ rounded
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)


def test_a_weight_that_the_function_closes_over(dtype: str) -> None:
    gradient = jax.grad(lambda w: half(lambda x: jnp.tanh(x @ w).sum(), dtype)(X))
    products = named(jax.make_jaxpr(gradient)(W), "duotone_dot")
    assert "float32" in [dtypes(eqn)[-1] for eqn in products]


def test_of_a_recurrent_network_the_weights_are_those_of_all_steps(dtype: str) -> None:
    """An input of one step is smaller than the weight that it is multiplied with."""

    def network(x: Any, w: Any) -> Any:
        def step(carry: Any, row: Any) -> tuple[Any, None]:
            return jnp.tanh(carry + row[None] @ w), None

        return jax.lax.scan(step, jnp.zeros((1, 16)), x)[0].sum()

    products = named(jax.make_jaxpr(jax.grad(half(network, dtype), 1))(X, W), "duotone_dot")
    shapes = [eqn.outvars[0].aval.shape for eqn in products if dtypes(eqn)[-1] == "float32"]
    assert sorted(shapes[0]) == sorted(W.shape)


def kept_by(function: Function, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Types of the residuals that are not arguments."""
    print_saved_residuals(function, X, W)
    lines = capsys.readouterr().out.splitlines()
    return sorted(line.split()[0] for line in lines if "argument" not in line)


def test_policies_of_checkpoint_find_the_dots(capsys: pytest.CaptureFixture[str]) -> None:
    def network(x: Any, w: Any) -> Any:
        return jnp.sin(jnp.tanh(x @ w) @ w.T).sum()

    policy = jax.checkpoint_policies.dots_saveable
    full, mixed = (jax.checkpoint(f, policy=policy) for f in (network, half(network)))
    assert kept_by(full, capsys) == ["f32[96,16]", "f32[96,24]"]
    assert kept_by(mixed, capsys) == ["f16[96,16]", "f16[96,24]"]


def test_no_residual_is_kept_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """Four dots that read one slice keep one half copy of it, not four."""

    def network(x: Any, w: Any) -> Any:
        def step(carry: Any, row: Any) -> tuple[Any, None]:
            gates = [jnp.tanh(carry + row @ (w * gate)) for gate in (1.0, 2.0, 3.0, 4.0)]
            return sum(gates[1:], start=gates[0]), None

        return jax.lax.scan(step, jnp.zeros((8, 16)), x.reshape(12, 8, 24))[0].sum()

    assert kept_by(half(network), capsys).count("f16[12,8,24]") <= 1


def test_equal_dots_of_weights_are_lowered_once() -> None:
    def network(x: Any, weights: Any) -> Any:
        for weight in weights:
            x = x @ weight
        return x

    for function, name in ((half, "rows_dot_of_weight"), (rewritten, "plain_dot_in_rows")):
        program = function(network, "bfloat16")
        lowered = jax.jit(program).lower(jnp.ones((16, 16)), [jnp.ones((16, 16))] * 6).as_text()
        assert lowered.count(f" call @{name}") == 6
        assert lowered.count(f"func.func private @{name}") <= 3, "first, inner, last"


def test_only_programs_without_a_derivative_of_their_own_have_dots_with_one() -> None:
    rows = traced(rewritten(lambda x, w: jnp.tanh(x @ w) @ w.T, "bfloat16"), X, W)
    (call,) = named(rows, "custom_jvp_call")
    assert named(call.params["call_jaxpr"], "dot_general")
    assert not named(call.params["call_jaxpr"], "custom_jvp_call")
    assert len(named(traced(half(lambda x, w: x @ w, "bfloat16"), X, W), "custom_jvp_call")) == 2
