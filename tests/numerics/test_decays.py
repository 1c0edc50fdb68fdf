"""Gates near 1 that a program multiplies step after step: their distance from 1 counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative

STEPS, WIDTH = 256, 32
W = jax.random.normal(jax.random.key(0), (WIDTH, WIDTH)) / WIDTH**0.5
X = jax.random.normal(jax.random.key(1), (STEPS, 8, WIDTH))


def gate(w: Any, x: Any) -> Any:
    return jax.nn.sigmoid(x @ w + 6.0)


def recurrence(w: Any, x: Any) -> Any:
    def step(state: Any, now: Any) -> Any:
        kept, new = now
        state = kept * state + (1 - kept) * new
        return state, state

    gates = gate(w, x), jnp.tanh(x @ w.T)
    return lax.scan(step, jnp.zeros_like(x[0]), gates)[1]


def gate_inside(w: Any, x: Any) -> Any:
    def step(state: Any, now: Any) -> Any:
        kept = gate(w, now)
        state = kept * state + (1 - kept) * jnp.tanh(now @ w.T)
        return state, jnp.tanh(state @ w)

    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


def growth(w: Any, x: Any) -> Any:
    """The value of a portfolio: each step multiplies it by one plus a return."""

    def step(value: Any, factor: Any) -> Any:
        return value * factor, value * factor

    return lax.scan(step, jnp.ones_like(x[0]), 1 + 0.01 * (x @ w))[1]


def compounded(w: Any, x: Any) -> Any:
    """The same value by a running product, whose derivative multiplies parts of the factors."""
    return jnp.cumprod(1 + 0.01 * (x @ w), 0)


def matrix_state(w: Any, x: Any) -> Any:
    """Gated linear attention."""

    def step(state: Any, now: Any) -> Any:
        kept, key, value = now
        state = kept[:, :, None] * state + key[:, :, None] * value[:, None]
        return state, jnp.einsum("bkd,bk->bd", state, key) / WIDTH

    start = jnp.zeros((8, WIDTH, WIDTH), x.dtype)
    return lax.scan(step, start, (gate(w, x), x @ w.T, jnp.tanh(x @ w)))[1]


def associative(w: Any, x: Any) -> Any:
    def combine(one: Any, other: Any) -> Any:
        return one[0] * other[0], one[1] * other[0] + other[1]

    kept = gate(w, x)
    return lax.associative_scan(combine, (kept, (1 - kept) * jnp.tanh(x @ w.T)))[1]


def running(w: Any, x: Any) -> Any:
    return jnp.cumprod(gate(w, x), 0) * x


def loss_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(lambda w, x: jnp.mean(function(w, x) ** 2))


PROGRAMS = [recurrence, gate_inside, matrix_state, associative, running, growth, compounded]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", PROGRAMS)
def test_a_recurrence_is_as_exact_as_its_dots(function: Callable[..., Any], half: str) -> None:
    program = loss_of(function)
    (value, found), want = mixed(program, half, W, X), reference(program, W, X)
    assert relative(value, want[0]) < 2e-3
    assert relative(found, want[1]) < 0.02


@pytest.mark.parametrize("function", PROGRAMS)
def test_without_the_rule_the_same_test_fails(function: Callable[..., Any]) -> None:
    program = loss_of(function)
    found = mixed(program, "bfloat16", W, X, rules_remove={"cancellation"})
    assert relative(found[1], reference(program, W, X)[1]) > 0.02


def sigmoids(function: Callable[..., Any], *args: Any) -> set[tuple[str, str]]:
    seen = duotone.explain(function, *args, dtype="bfloat16").operations
    found = {(o.paint, o.rule) for o in seen if o.operation == "logistic"}
    assert found
    return found


def test_the_gates_of_networks_are_left_alone() -> None:
    def lstm(w: Any, x: Any) -> Any:
        def step(state: Any, now: Any) -> Any:
            hidden, cell = state
            mixed = now @ w + hidden @ w
            cell = jax.nn.sigmoid(mixed) * cell + jnp.tanh(mixed)
            hidden = jnp.tanh(cell) * jax.nn.sigmoid(mixed + 1)
            return (hidden, cell), hidden

        return lax.scan(step, (jnp.zeros_like(x[0]),) * 2, x)[1].sum()

    def highway(w: Any, x: Any) -> Any:
        for _ in range(4):
            kept = gate(w, x)
            x = kept * x + (1 - kept) * jnp.tanh(x @ w)
        return (x @ w).sum()

    def gated_unit(w: Any, x: Any) -> Any:
        one, other = jnp.split(jax.nn.sigmoid(x @ w), 2, -1)
        return ((one * other) @ w[:16]).sum()

    for function in (lstm, highway, gated_unit):
        assert "cancellation" not in {rule for _, rule in sigmoids(function, W, X)}, function


def test_the_reason_names_the_product() -> None:
    assert sigmoids(running, W, X) == {("full", "cancellation")}
    seen = duotone.explain(associative, W, X, dtype="bfloat16").operations
    (reason,) = {o.reason for o in seen if o.rule == "cancellation"}
    assert "running product" in reason
