"""``reroll`` and ``autocast`` around each other, and functions with derivatives of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone

POLICY = duotone.Policy(ignore_performance=True)
W, X = 0.2 * jax.random.normal(jax.random.key(0), (8, 8)), jnp.ones((8, 8))


def net(w: Any, x: Any) -> Any:
    for _ in range(40):
        x = jnp.tanh(x @ w) + 0.5 * x
    return x


def loss(w: Any, x: Any) -> Any:
    return jnp.mean(net(w, x) ** 2)


def half(fn: Callable[..., Any]) -> Callable[..., Any]:
    return duotone.autocast(fn, dtype="float16", policy=POLICY)


@pytest.mark.parametrize(
    ("composed", "plain", "loops"),
    [
        (half(duotone.reroll(net)), net, 1),
        (duotone.reroll(half(net)), net, 1),
        (half(duotone.reroll(jax.grad(loss))), jax.grad(loss), 2),
        (duotone.reroll(half(jax.grad(loss))), jax.grad(loss), 2),
        (jax.grad(half(duotone.reroll(loss))), jax.grad(loss), 2),
    ],
)
def test_both_orders_roll(composed: Any, plain: Any, loops: int) -> None:
    program = str(jax.make_jaxpr(composed)(W, X))
    assert program.count("= scan[") == loops
    assert "f16" in program
    expected = plain(W, X)
    np.testing.assert_allclose(composed(W, X), expected, atol=0.1 * float(abs(expected).max()))


def test_a_rule_of_derivatives_stays_next_to_the_loop() -> None:
    @jax.custom_jvp
    def walk(x: Any) -> Any:
        for _ in range(40):
            x = x + 0.1 * jnp.sin(x) * jnp.cos(x)
        return x

    walk.defjvp(lambda primals, tangents: (walk(*primals), 7.0 * tangents[0]))
    rolled = duotone.reroll(lambda x: walk(2.0 * x))
    assert "= scan[" in str(jax.make_jaxpr(rolled)(X))
    np.testing.assert_allclose(rolled(X), walk(2.0 * X), rtol=1e-5)
    gradient = jax.grad(lambda x: jnp.sum(rolled(x)))
    np.testing.assert_allclose(gradient(X), jnp.full_like(X, 14.0))
    np.testing.assert_allclose(jax.vmap(gradient)(X), jnp.full_like(X, 14.0))
