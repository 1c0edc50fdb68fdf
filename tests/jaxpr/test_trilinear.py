"""Trilinear sums, carried out: the gradient of an attention, and how wrong it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.jaxpr.pipeline import rewriter_of
from duotone.jaxpr.rules import half_rules
from duotone.jaxpr.running.rewrite import Rewriter
from tests.precision.test_trilinear import ARRAYS, MATCHED, gradient, painted, plain

HALF = jnp.bfloat16


def rewritten(function: Any, *args: Any) -> Rewriter:
    """The function in the forms of a TPU; carried out one operation after the other.

    A CPU's compiler drops roundings between two operations in float32.
    """
    found = painted(function, *args)
    assert found.optimizations.named("trilinear")
    return rewriter_of(found)


def by_hand(q: Any, k: Any, v: Any, ct: Any) -> Any:
    """Dots in half, the softmax in float32 and passed on in half."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(HALF), k.astype(HALF))
    scores = scores.astype(jnp.float32) / 8**0.5
    shares = jax.nn.softmax(scores).astype(HALF)
    out = jnp.einsum("bhqk,bkhd->bqhd", shares, v.astype(HALF))
    return jnp.sum(out.astype(jnp.float32) * ct)


def loss(q: Any, k: Any, v: Any, ct: Any) -> Any:
    return jnp.sum(plain(q, k, v) * ct)


def hostile(kind: str) -> tuple[Any, ...]:
    """Arrays that half can hold, so that only what is computed is rounded."""
    q, k, v = ARRAYS
    ct = jax.random.normal(jax.random.key(9), v.shape)
    if "offset" in kind:
        v = v + 30
    if "sharp" in kind:
        q = q * 8
    if "tails" in kind:
        v = v**3
    if "both" in kind:
        v, ct = v + 30, ct + 30
    return tuple(x.astype(HALF).astype(jnp.float32) for x in (q, k, v, ct))


@functools.cache
def expected(kind: str) -> list[np.ndarray]:
    """Gradients with respect to queries and keys, in float64."""
    arrays = [np.asarray(x, np.float64) for x in hostile(kind)]
    with jax.enable_x64(True):
        args = [jnp.asarray(x) for x in arrays]
        return [np.asarray(g) for g in jax.grad(loss, argnums=(0, 1))(*args)]


def errors(kind: str, got: Sequence[Any]) -> np.ndarray:
    pairs = zip(got, expected(kind), strict=True)
    return np.array([np.linalg.norm(np.asarray(g) - e) / np.linalg.norm(e) for g, e in pairs])


def ours(kind: str) -> np.ndarray:
    args = hostile(kind)
    return errors(kind, rewritten(jax.grad(loss, argnums=(0, 1)), *args)(*args))


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("ordinary", 1.0),
        ("tails", 1.0),
        ("sharp", 1.05),
        ("offset", 0.15),
        ("offset and sharp", 0.5),
        ("both offset", 0.1),
    ],
)
def test_as_good_as_by_hand_and_better_where_values_have_an_offset(kind: str, limit: float) -> None:
    args = hostile(kind)
    hand = errors(kind, jax.grad(by_hand, argnums=(0, 1))(*args))
    assert (ours(kind) <= limit * hand).all(), (ours(kind), hand)


@pytest.mark.parametrize("fault", ["parts", "result", "sign"])
def test_these_errors_tell_faults(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares that do not add up to 1, a rounded result, a wrong sum."""
    good = ours("offset")
    if fault == "parts":
        monkeypatch.setattr(Rewriter, "rounded", lambda _, x: x)
    else:
        apply_optimization = half_rules.apply_optimization

        def wrong(*args: Any) -> Any:
            result = apply_optimization(*args)
            shares = any(step.name == "expand" for step in args[3].steps)
            if fault == "result" and shares:
                return result.astype(HALF).astype(jnp.float32)
            return -result if fault == "sign" and not shares else result

        monkeypatch.setattr(half_rules, "apply_optimization", wrong)
    assert (ours("offset") > 2 * good).all()


def downstream(kind: str) -> Callable[..., Any]:
    """A gradient in which what comes back to the attention is kept in full."""

    def function(q: Any, k: Any, v: Any, x: Any, ct: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8**0.5
        out = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)
        return jnp.sum((jnp.sin(x + out) if kind == "shortcut" else x * out) * ct)

    return jax.grad(function, argnums=(0, 1))


@pytest.mark.parametrize("kind", ["shortcut", "gate"])
def test_what_comes_back_in_full_is_rounded_alike(kind: str) -> None:
    """As the dot reads it, so that the offset cancels: by hand's error is 0.05."""
    q, k, v = (x.swapaxes(1, 2) for x in hostile("offset")[:3])
    x = jax.random.normal(jax.random.key(5), v.shape).astype(HALF).astype(jnp.float32)
    args = (q, k, v, x, jax.random.normal(jax.random.key(6), v.shape))
    function = downstream(kind)
    arrays = [np.asarray(x, np.float64) for x in args]
    with jax.enable_x64(True):
        want = [np.asarray(w) for w in function(*[jnp.asarray(x) for x in arrays])]
    got = [np.asarray(g) for g in rewritten(function, *args)(*args)]
    for g, w in zip(got, want, strict=True):
        assert np.linalg.norm(g - w) <= 0.01 * np.linalg.norm(w)


@pytest.mark.parametrize("attention", MATCHED)
def test_the_same_gradient_in_every_form(attention: Callable[..., Any]) -> None:
    """Axes in every order: against float64."""
    function = gradient(attention)
    got = rewritten(function, *ARRAYS)(*ARRAYS)
    with jax.enable_x64(True):
        wide = function(*[jnp.asarray(np.asarray(x, np.float64)) for x in ARRAYS])
        want = [np.asarray(w) for w in wide]
    for g, w in zip(map(np.asarray, got), want, strict=True):
        assert g.shape == w.shape
        assert np.linalg.norm(g - w) <= 0.03 * np.linalg.norm(w)


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_a_gradient_of_the_gradient(offset: float) -> None:
    """A rewritten program is differentiated once more, like the original form."""
    q, k, v, ct = hostile("offset" if offset else "ordinary")

    def function(q: Any, k: Any, v: Any, ct: Any) -> Any:
        return jax.grad(loss)(q, k, v, ct)

    def twice(first: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda q, k, v, ct: jnp.sum(first(q, k, v, ct) * k))

    rewriter = rewritten(function, q, k, v, ct)
    got = np.asarray(twice(lambda *args: rewriter(*args)[0])(q, k, v, ct))
    arrays = [np.asarray(x, np.float64) for x in (q, k, v, ct)]
    with jax.enable_x64(True):
        want = np.asarray(twice(function)(*[jnp.asarray(x) for x in arrays]))
    assert np.linalg.norm(got - want) <= 0.02 * np.linalg.norm(want)


def _shares(x: Any) -> Any:
    e = jnp.exp(x - jax.lax.stop_gradient(x.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


def test_what_a_plan_reads_may_stand_in_a_call() -> None:
    """In which nothing else is half or carried out in another form."""

    def function(q: Any, k: Any, v: Any, g: Any) -> Any:
        shares = jax.jit(_shares)(jnp.einsum("bhqd,bhkd->bhqk", q, k))
        out = jnp.einsum("bhqk,bhkd->bhqd", shares, v)
        back = jnp.einsum("bhqd,bhkd->bhqk", g, v)
        return out, (shares * back).sum(-1)

    args = tuple(x.swapaxes(1, 2) for x in (*ARRAYS, ARRAYS[0]))
    got = rewritten(function, *args)(*args)
    for one, other in zip(got, function(*args), strict=True):
        assert jnp.linalg.norm(one - other) <= 0.02 * jnp.linalg.norm(other)
