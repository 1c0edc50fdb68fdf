"""Difference quotients: a small divisor magnifies what rounding leaves of a small difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative

STEP = 5e-3
W = jax.random.normal(jax.random.key(0), (64, 64)) / 8
X = jax.random.normal(jax.random.key(1), (32, 64))


def network(w: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) @ w.T) @ w[:, :8]


def curve(w: Any, x: Any) -> Any:
    """The network at points that are close to one another."""
    places = jnp.linspace(0, 1, 257, dtype=x.dtype)[:, None]
    return network(w, jnp.sin(places * x[:1]))


def central(w: Any, x: Any) -> Any:
    return (network(w, x + STEP) - network(w, x - STEP)) / (2 * STEP)


def second(w: Any, x: Any) -> Any:
    step = 2 * STEP  # float32 has too few digits for less
    there, here, back = (network(w, x + shift) for shift in (step, 0.0, -step))
    return (there - 2 * here + back) / step**2


def neighbours(w: Any, x: Any) -> Any:
    values = curve(w, x)
    return (values[1:] - values[:-1]) * 256


def gradient(w: Any, x: Any) -> Any:
    return jnp.gradient(curve(w, x), 1 / 256, axis=0)


def laplacian(w: Any, x: Any) -> Any:
    values = curve(w, x)
    around = jnp.roll(values, 1, 0) + jnp.roll(values, -1, 0)
    return ((around - 2 * values) / (1 / 32) ** 2)[1:-1]


def fluxes(w: Any, x: Any) -> Any:
    """A function of neighbours, in place of the neighbours."""
    values = curve(w, x)
    return (jnp.tanh(values[1:]) - jnp.tanh(values[:-1])) * 256


def two_points(w: Any, x: Any) -> Any:
    """The network at two near points, next to each other on the last axis."""
    points = jnp.stack([x + STEP, x - STEP], axis=1)
    values = (jnp.tanh(jnp.tanh(points @ w) @ w.T) @ w[:, :1])[..., 0]
    return (values[:, 0] - values[:, 1]) / (2 * STEP)


def in_a_loop(w: Any, x: Any) -> Any:
    return jax.lax.map(lambda row: central(w, row[None]), x)


def after_an_encoder(w: Any, x: Any) -> Any:
    return central(w, jnp.tanh(x @ w[::-1]))


def thresholds(w: Any, x: Any) -> Any:
    """The likelihood of counts: what a distribution has between two thresholds."""
    means, counts = 64 * network(w, x), jnp.round(40 * x[:, :8])
    upper, lower = (jax.nn.sigmoid((counts + edge - means) / 8) for edge in (0.5, -0.5))
    return jnp.log(upper - lower + 1e-6)


def corners(w: Any, x: Any) -> Any:
    """The corners of boxes whose centres and sizes a network predicts, in pixels."""
    centres, sizes = jnp.split(jax.nn.sigmoid(jnp.tanh(x @ w) @ w[:, :4] + w[0, :4]), 2, axis=-1)
    return 64 * jnp.concatenate([centres - sizes / 2, centres + sizes / 2], axis=-1)


def joined(w: Any, x: Any) -> Any:
    """The results of two calls of the network, next to each other on the last axis."""
    calls = [jnp.tanh(jnp.tanh(p @ w) @ w.T) @ w[:, :1] for p in (x + STEP, x - STEP)]
    values = jnp.concatenate(calls, -1)
    return (values[:, :1] - values[:, 1:]) / (2 * STEP)


def areas(w: Any, x: Any) -> Any:
    """The areas of boxes in pixels; the network predicts classes as well."""
    features = jnp.tanh(x @ w) @ w
    centres, sizes = jnp.split(jax.nn.sigmoid(features[:, :4]), 2, -1)
    boxes = 64 * jnp.concatenate([centres - sizes / 2, centres + sizes / 2], -1)
    return jnp.prod(boxes[:, 2:] - boxes[:, :2], -1) / 4096 + jnp.tanh(features[:, 4:]).mean()


PROGRAMS = [central, second, neighbours, fluxes, two_points, joined, gradient, laplacian, in_a_loop]


def loss_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(lambda w, x: jnp.mean(function(w, x) ** 2))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", PROGRAMS)
def test_a_quotient_is_as_exact_as_in_float32(function: Callable[..., Any], half: str) -> None:
    program = loss_of(function)
    (value, found), want = mixed(program, half, W, X), reference(program, W, X)
    assert relative(value, want[0]) < 1e-3
    assert relative(found, want[1]) < 0.01


@pytest.mark.parametrize("function", PROGRAMS)
def test_without_the_rule_the_same_test_fails(function: Callable[..., Any]) -> None:
    program, off = loss_of(function), {"rules_remove": {"quotient"}}
    found, want = mixed(program, "bfloat16", W, X, **off), reference(program, W, X)
    assert relative(found[1], want[1]) > 0.01


@pytest.mark.parametrize("half", HALVES)
def test_what_both_sides_read_stays_half(half: str) -> None:
    """The rounding of an encoder is the same on both sides."""
    program = loss_of(after_an_encoder)
    found, want = mixed(program, half, W, X), reference(program, W, X)
    assert relative(found[1], want[1]) < {"float16": 2e-3, "bfloat16": 0.02}[half]
    dots = [o for o in explained(after_an_encoder, half) if o.operation == "dot_general"]
    assert (dots[0].paint, dots[0].rule) == ("half", "allow")
    assert {o.rule for o in dots[1:]} == {"quotient"}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [thresholds, corners, areas])
def test_parts_and_functions_of_one_result_are_as_exact_as_its_dots(
    function: Callable[..., Any], half: str
) -> None:
    program = loss_of(function)
    (value, found), want = mixed(program, half, W, X), reference(program, W, X)
    assert relative(value, want[0]) < 1e-3
    assert relative(found, want[1]) < 0.03


def explained(function: Callable[..., Any], half: str = "bfloat16") -> Any:
    return duotone.explain(function, W, X, dtype=half).operations


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda w, x: 100 * jnp.abs(network(w, x) - x[:, :8]), id="weighted error"),
        pytest.param(
            lambda w, x: 1024 * (network(w, x).mean() - network(w, x + 1).mean()), id="scaled loss"
        ),
        pytest.param(lambda w, x: (network(w, x) - x.mean()) / 0.02, id="standardized"),
        pytest.param(
            lambda w, x: jax.nn.softmax((x @ w) @ (x @ w).T / 0.02) @ (x @ w), id="temperature"
        ),
        pytest.param(lambda w, x: (x @ w - jnp.tanh(x) @ jnp.tanh(w)) * 50, id="two layers"),
        pytest.param(lambda w, x: (network(w, x + 1) - network(w, x)) / 1.0, id="large step"),
        pytest.param(lambda w, x: thresholds(w, x).mean(), id="thresholds"),
        pytest.param(corners, id="corners"),
        pytest.param(areas, id="areas"),
    ],
)
def test_what_only_looks_like_a_quotient_stays_half(function: Callable[..., Any]) -> None:
    found = explained(jax.grad(lambda w, x: function(w, x).sum()))
    assert "quotient" not in {o.rule for o in found}
    assert "half" in {o.paint for o in found if o.operation == "dot_general"}


def test_a_long_row_of_rolls_is_searched_once() -> None:
    """Each roll reads the one before twice: a search of all ways through 64 would never end."""

    def shifted(w: Any, x: Any) -> Any:
        start = rolled = jnp.tanh(x @ w)
        total = jnp.zeros_like(start)
        for _ in range(64):
            rolled = jnp.roll(rolled, 1, 0)
            total = total + (rolled - start) / STEP
        return total

    assert "quotient" in {o.rule for o in explained(shifted)}


def test_the_reason_is_reported_and_the_user_has_the_last_word() -> None:
    denied = [o for o in explained(central) if o.rule == "quotient"]
    assert {o.operation for o in denied} == {"dot_general"}
    assert all("divided by a small number" in o.reason for o in denied)
    policy = duotone.Policy(keep_half=["*dot_general"])
    seen = duotone.explain(central, W, X, dtype="bfloat16", policy=policy)
    assert {o.paint for o in seen.operations if o.operation == "dot_general"} == {"half"}
