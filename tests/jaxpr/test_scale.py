"""The scale of exponentials calculated again: left out where it cancels, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone import _road as road
from duotone.graph.graph import HALF_TYPES
from duotone.graph.reforms import scale
from duotone.graph.reforms.residuals import Recompute
from duotone.policy import Policy
from duotone.targets.forms import TABLE
from tests.jaxpr.programs import half

KEYS = jax.random.split(jax.random.key(0), 3)
W = jax.random.normal(KEYS[0], (32, 32)) / 5
X = jax.random.normal(KEYS[1], (64, 32))
POLICY = Policy()

Attention = Callable[[Any, Any], Any]


def logits(w: Any, x: Any) -> Any:
    return (x @ w) @ x.T / 4


def softmax(w: Any, x: Any) -> Any:
    return jax.nn.softmax(logits(w, x)) @ x


def parts(w: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """Exponentials, their sum, numbers behind a dot of their quotient, and a later dot of it."""
    scores = logits(w, x)
    e = jnp.exp(scores - jax.lax.stop_gradient(scores.max(1, keepdims=True)))
    s = e.sum(1, keepdims=True)
    quotient = e / s
    y = quotient @ x
    return e, s, y @ x.T, jax.lax.dot_general(quotient, y, (((0,), (0,)), ((), ())))


def read_later(w: Any, x: Any) -> Any:
    """Exponentials over their sum, behind a dot: the factor cancels."""
    e, s, y, dot = parts(w, x)
    return y * e / s, dot


def squared(w: Any, x: Any) -> Any:
    e, s, y, dot = parts(w, x)
    return (y * e) * (y * e) / s**2, dot


def exponentials(w: Any, x: Any) -> Any:
    e, _, y, dot = parts(w, x)
    return y * e, dot


def sums(w: Any, x: Any) -> Any:
    e, s, y, dot = parts(w, x)
    return y * e / s + s, dot


def activation(w: Any, x: Any) -> Any:
    e, s, y, dot = parts(w, x)
    return y * e / s + jnp.tanh(y * s), dot


def added(w: Any, x: Any) -> Any:
    e, s, y, dot = parts(w, x)
    return (y + y * e) * e / s**2, dot


def plan(
    function: Callable[..., Any], dtype: str = "bfloat16", policy: Policy = POLICY
) -> Recompute:
    jaxpr = jax.make_jaxpr(function)(W, X)
    painted = road.paint_jaxpr(jaxpr, policy, HALF_TYPES[dtype], forms=TABLE["gpu"])
    return painted.reforms.recompute


def step(attention: Attention) -> Callable[[Any, Any], Any]:
    return jax.value_and_grad(lambda w, x: (attention(w, x) ** 2).sum(), argnums=(0, 1))


def same(got: Any, wanted: Any) -> None:
    """Equal but for roundings to bfloat16."""
    eps = float(jnp.finfo("bfloat16").eps)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        np.testing.assert_allclose(g, w, rtol=0, atol=8 * eps * np.abs(w).max())


def error(got: Any, wanted: Any) -> float:
    parts = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    return max(float(np.linalg.norm(g - w) / np.linalg.norm(w)) for g, w in parts)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_sum_of_a_softmax_is_not_kept(dtype: str) -> None:
    found = plan(step(softmax), dtype)
    (made,) = found.products.values()
    assert made.divisor is None
    wanted = step(softmax)(W, X)
    kept = half(step(softmax), dtype, reforms_remove={"free_scales"})(W, X)
    assert error(half(step(softmax), dtype)(W, X), wanted) <= 1.05 * error(kept, wanted)


@pytest.mark.parametrize("attention", [read_later, squared])
def test_a_factor_that_cancels_is_left_out(attention: Attention) -> None:
    (made,) = plan(attention).products.values()
    assert made.divisor is None
    same(half(attention, "bfloat16")(W, X), attention(W, X))


@pytest.mark.parametrize("attention", [exponentials, sums, activation, added])
def test_a_factor_that_does_not_cancel_stays(attention: Attention) -> None:
    (made,) = plan(attention).products.values()
    assert made.divisor is not None
    same(half(attention, "bfloat16")(W, X), attention(W, X))


def test_a_factor_that_does_not_cancel_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale._Factor, "_power_of", lambda *_: 0)
    (made,) = plan(exponentials).products.values()
    assert made.divisor is None
    with pytest.raises(AssertionError):
        same(half(exponentials, "bfloat16")(W, X), exponentials(W, X))


def test_what_computes_in_half_keeps_the_scale() -> None:
    """Another scale might leave the range of float16."""

    def late(w: Any, x: Any) -> Any:
        e, s, y, dot = parts(w, x)
        with jax.named_scope("late"):
            return y * e / s, dot

    (made,) = plan(late, "float16", Policy(keep_half=("*late*",))).products.values()
    assert made.divisor is not None


@pytest.mark.parametrize("many", [1, 3])
def test_layers_and_transformations(many: int) -> None:
    """Scanned, checkpointed and mapped softmaxes give what they give with their sums kept."""

    def layers(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            return jnp.tanh(softmax(w, x)), None

        return jax.lax.scan(jax.checkpoint(layer), x, jnp.stack([w] * many))[0]

    train = step(lambda w, x: jax.vmap(layers, (None, 0))(w, jnp.stack([x, 2 * x])))
    without = half(train, "bfloat16", reforms_remove={"free_scales"})
    same(half(train, "bfloat16")(W, X), without(W, X))
