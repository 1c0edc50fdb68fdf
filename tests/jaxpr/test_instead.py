"""One value with the derivative of another: derivatives of every order, and transposes.

JAX drops the rule of a function with a derivative of its own where it evaluates a loop in part,
which it does between the first and the second derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import duotone
from duotone.devices.assumed import assuming
from duotone.devices.specifications import find_target
from duotone.jaxpr.rules.instead import instead

KEYS = jax.random.split(jax.random.key(0), 3)
X = jax.random.normal(KEYS[0], (8, 8))
W = jax.random.normal(KEYS[1], (8, 8)) / 3
AWAY = jax.random.normal(KEYS[2], (8, 8)) / 10
ERROR = {"float16": 5e-3, "bfloat16": 2e-2}


def looped(x: Any, w: Any) -> Any:
    """A dot in every turn of a loop, with a weight from outside."""
    turn = lambda c, _: (jnp.sin(c @ w), None)  # noqa: E731
    return jnp.mean(lax.scan(turn, x, None, length=3)[0] ** 2)


def nested(x: Any, w: Any) -> Any:
    """A weight that is made anew in each turn, and cast before an inner loop."""

    def turn(c: Any, _: None) -> tuple[Any, None]:
        weight = w * jnp.mean(jnp.cos(c))
        return lax.fori_loop(0, 2, lambda _, d: jnp.sin(d @ weight), c), None

    return jnp.mean(lax.scan(turn, x, None, length=2)[0] ** 2)


def sliced(x: Any, w: Any) -> Any:
    """A stack of weights, one for each turn."""
    turn = lambda c, weight: (jnp.sin(c @ weight), None)  # noqa: E731
    return jnp.mean(lax.scan(turn, x, jnp.stack([w, w.T]))[0] ** 2)


def classified(x: Any, w: Any) -> Any:
    """The log-probability of a label in every turn: a gather that is carried out as a pick."""

    def turn(c: Any, _: None) -> tuple[Any, Any]:
        logits = c @ w
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.arange(8)[:, None] % 3, 1)
        return jnp.sin(logits), jnp.mean(picked)

    return jnp.mean(lax.scan(turn, x, None, length=2)[1])


def attended(x: Any, w: Any) -> Any:
    """Attention in every turn, of which a TPU's derivative is a trilinear sum."""

    def turn(c: Any, _: None) -> tuple[Any, None]:
        return jax.nn.softmax(c @ w @ c.T) @ c, None

    return jnp.mean(lax.scan(turn, x, None, length=2)[0] ** 2)


def along(f: Callable[..., Any], x: Any, w: Any) -> tuple[Any, Any]:
    """The derivative of both gradients along a direction of the weight."""
    return jax.jvp(lambda w: jax.grad(f, argnums=(0, 1))(x, w), (w,), (AWAY,))[1]


def twice(f: Callable[..., Any], x: Any, w: Any) -> tuple[Any, Any]:
    """The gradient of a number that is made of a gradient."""
    inner = lambda x, w: jnp.sum(jax.grad(f, argnums=1)(x, w) * AWAY)  # noqa: E731
    return jax.grad(inner, argnums=(0, 1))(x, w)


def assert_close(got: Any, expected: Any, tolerance: float) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(one - other) / np.linalg.norm(other) < tolerance


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("second", [along, twice])
@pytest.mark.parametrize("f", [looped, nested, sliced])
def test_second_derivatives_through_loops(f: Any, second: Any, half: str) -> None:
    assert_close(second(duotone.autocast(f, dtype=half), X, W), second(f, X, W), ERROR[half])


@pytest.mark.parametrize("target", ["h200", "v5e"])
@pytest.mark.parametrize("f", [looped, nested, classified, attended])
def test_second_derivatives_in_the_forms_of_a_device(f: Any, target: str) -> None:
    half = "bfloat16"
    policy = duotone.Policy(rules_remove=["backward"])  # with it, dots that no CPU has are there
    with assuming(find_target(target).device()):
        got = along(duotone.autocast(f, dtype=half, policy=policy), X, W)
    assert_close(got, along(f, X, W), 2 * ERROR[half])


def test_a_weight_in_a_rule_of_the_user() -> None:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return x @ W

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] @ W))
    loss = lambda x: jnp.mean(f(x) ** 2)  # noqa: E731
    got = jax.grad(duotone.autocast(loss, dtype="float16"))(X)
    assert_close(got, jax.grad(loss)(X), ERROR["float16"])


@pytest.mark.parametrize(
    "linear",
    [
        lambda v: v @ W,
        lambda v: lax.scan(lambda c, _: (c + v @ W, None), v, None, length=3)[0],
    ],
)
def test_a_linear_function_is_transposed(linear: Callable[[Any], Any]) -> None:
    painted = duotone.autocast(linear, dtype="float16")
    (got,), (expected,) = (jax.linear_transpose(f, X)(X) for f in (painted, linear))
    assert_close(got, expected, ERROR["float16"])


def test_the_derivative_is_that_of_the_first() -> None:
    f = lambda x: instead(jnp.sin(x), (3 * x).astype(jnp.float16))  # noqa: E731
    value, tangent = jax.jvp(f, (jnp.float32(1.0),), (jnp.float32(1.0),))
    assert value == 3.0
    assert tangent.dtype == jnp.float16
    np.testing.assert_allclose(tangent, np.cos(1.0), rtol=1e-3)
    assert jax.grad(lambda x: instead(x, 2 * x))(1.0) == 1.0
    assert jax.grad(lambda x: instead(1.0, 2 * x))(1.0) == 0.0


def test_of_which_operand_is_mapped_does_not_matter() -> None:
    rows = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.vmap(instead)(rows, 2 * rows), 2 * rows)
    got = jax.vmap(instead, in_axes=(None, 1), out_axes=1)(X, jnp.stack([X, 2 * X], 1))
    np.testing.assert_array_equal(got, jnp.stack([X, 2 * X], 1))
    got = jax.vmap(lambda x: jax.grad(lambda y: instead(y * x, 0.0))(1.0))(rows)
    np.testing.assert_array_equal(got, rows)
