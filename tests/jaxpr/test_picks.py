"""Picks, carried out: the same numbers and as good a gradient, from fewer elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import paint_jaxpr, rewriter_of
from duotone.jaxpr.rules import expressions
from duotone.jaxpr.rules.optimizations import taken as taken_of
from duotone.jaxpr.running.rewrite import Rewriter
from duotone.policy.policy import Policy
from tests.jaxpr.programs import named
from tests.precision.test_picks import indexed, loss, taken

KEYS = jax.random.split(jax.random.key(0), 3)
X = jax.random.normal(KEYS[0], (2, 8, 16))
WEIGHTS = jax.random.normal(KEYS[1], (16, 128))
LABELS = jax.random.randint(KEYS[2], (2, 8), 0, 128)
HALVES = ("float16", "bfloat16")


def both(function: Callable[..., Any], *args: Any, half: str = "bfloat16") -> list[Rewriter]:
    """The rewritten function, and the same without picks."""
    jaxpr = jax.make_jaxpr(function)(*args)
    policies = (Policy(), Policy(optimizations_remove=["picks"]))
    painted, plain = (
        paint_jaxpr(jaxpr, policy, HALF_TYPES[half], forms=TABLE["tpu"]) for policy in policies
    )
    assert painted.optimizations.named("picks")
    assert not plain.optimizations.named("picks")
    return [rewriter_of(painted), rewriter_of(plain)]


def exposed(weights: Any, x: Any, labels: Any) -> Any:
    """Every picked number, with a prior for each class and what is out of bounds."""
    values = jax.nn.log_softmax(x @ weights) * 2 - jnp.sin(jnp.arange(128.0))[None, None]
    rows, columns = jnp.ogrid[: x.shape[0], : x.shape[1]]
    return values.at[rows, columns, labels].get(mode="fill")


def clipped(weights: Any, x: Any, labels: Any) -> Any:
    values = jax.nn.log_softmax(x @ weights)
    return jnp.take_along_axis(values, labels[..., None], axis=-1, mode="clip")


def mapped(weights: Any, x: Any, labels: Any) -> Any:
    return jax.vmap(lambda x, labels: loss(weights, x, labels))(x, labels)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [loss, indexed, exposed, clipped, mapped])
def test_the_same_numbers_bit_for_bit(function: Any, half: str) -> None:
    """One operation after the other: a compiler may drop the rounding of what it picks from."""
    labels = LABELS.at[0, :3].set(jnp.array([127, 128, -200]))
    with_picks, without = both(function, WEIGHTS, X, labels, half=half)
    (got,), (expected,) = (r(WEIGHTS, X, labels) for r in (with_picks, without))
    np.testing.assert_array_equal(got, expected)
    if function is exposed:
        assert np.isnan(got[0, 1])
        assert np.isfinite(got[1]).all()


def test_no_large_array_is_picked_from_in_full() -> None:
    """But for a derivative, of which a compiler leaves the value out."""
    for rewriter, dtype in zip(
        both(loss, WEIGHTS, X, LABELS), (jnp.bfloat16, jnp.float32), strict=True
    ):
        program = jax.make_jaxpr(rewriter)(WEIGHTS, X, LABELS)
        unread = [eqn.invars[0] for eqn in named(program, "duotone_instead")]
        gathers = [eqn for eqn in named(program, "gather") if eqn.outvars[0] not in unread]
        large = [eqn.invars[0].aval for eqn in gathers if eqn.invars[0].aval.size > 1000]
        assert [aval.dtype for aval in large] == [dtype]


def _gradient_error(rewriter: Callable[..., Any], weights: Any) -> float:
    """Of the gradient with respect to ``x``, where predictions are sure; against float64."""

    def rounded(x: Any) -> Any:
        return x.astype(jnp.bfloat16).astype(jnp.float64)

    with jax.enable_x64(True):
        x = rounded(X)
        logits = x @ rounded(weights)
        best = jnp.argmax(logits, -1)
        sure = np.asarray(jnp.max(jax.nn.softmax(logits), -1) > 0.99)
        expected = np.asarray(jax.grad(lambda x: loss(rounded(weights), x, best))(x))[sure]
    got = jax.grad(lambda x: rewriter(weights, x, best.astype(jnp.int32))[0])(X)
    got = np.asarray(got, np.float64)[sure]
    assert sure.sum() > 4, "too few to judge by"
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def test_a_gradient_taken_later_adds_up_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sure prediction the gradient is what ``softmax`` lacks of 1: no half can hold it."""
    weights = WEIGHTS * 3
    with_picks, without = both(loss, weights, X, LABELS)
    picked, plain = (_gradient_error(rewriter, weights) for rewriter in (with_picks, without))
    assert picked <= 1.01 * plain

    own_derivative = {"instead": lambda plain, result: result}
    monkeypatch.setattr(expressions, "_OPERATIONS", {**expressions._OPERATIONS, **own_derivative})
    assert _gradient_error(with_picks, weights) > 2 * picked


def test_a_gradient_of_what_was_compiled() -> None:
    with_picks, without = both(loss, WEIGHTS, X, LABELS)
    got, expected = (
        jax.grad(jax.jit(lambda x, r=r: r(WEIGHTS, x, LABELS)[0]))(X) for r in (with_picks, without)
    )
    eps = float(jnp.finfo(jnp.bfloat16).eps)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2 * eps * float(jnp.abs(expected).max()))


OUTSIDE = LABELS.at[0, :3].set(jnp.array([128, 999, -200]))


@pytest.mark.parametrize("function", [loss, indexed])
def test_what_is_out_of_bounds_has_no_gradient(function: Any) -> None:
    def summed(r: Rewriter, x: Any) -> Any:
        return r(WEIGHTS, x, OUTSIDE)[0]

    got, expected = (
        jax.grad(lambda x, r=r: summed(r, x))(X) for r in both(function, WEIGHTS, X, OUTSIDE)
    )
    np.testing.assert_array_equal(got, expected)
    if function is loss:
        assert not got[0, :3].any()


def test_what_is_out_of_bounds_and_masked_makes_no_gradient_nan() -> None:
    """A product with NaN lies between the masked number and the temperature."""

    def masked(weights: Any, x: Any, labels: Any, temperature: Any) -> Any:
        values = taken(jax.nn.log_softmax(x @ weights) * temperature, labels)
        return -jnp.where(labels[..., None] < 128, values, 0.0).sum()

    got, expected = (
        jax.grad(lambda t, r=r: r(WEIGHTS, X, jnp.abs(OUTSIDE), t)[0])(2.0)
        for r in both(masked, WEIGHTS, X, jnp.abs(OUTSIDE), 2.0)
    )
    assert np.isfinite(expected)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_forward_mode_too() -> None:
    with_picks, without = both(loss, WEIGHTS, X, LABELS)
    got, expected = (
        jax.jvp(lambda x, r=r: r(WEIGHTS, x, OUTSIDE)[0], (X,), (jnp.ones_like(X),))[1]
        for r in (with_picks, without)
    )
    np.testing.assert_array_equal(got, expected)


def test_inside_what_is_recomputed() -> None:
    checkpointed = jax.checkpoint(loss)
    with_picks, without = both(checkpointed, WEIGHTS, X, LABELS)
    for change in (lambda r: r, jax.grad):
        got, expected = (
            change(lambda x, r=r: r(WEIGHTS, x, LABELS)[0])(X) for r in (with_picks, without)
        )
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)


def test_in_a_program_that_lets_no_rank_be_promoted() -> None:
    with jax.numpy_rank_promotion("raise"):
        with_picks, without = both(indexed, WEIGHTS, X, LABELS)
        got, expected = (r(WEIGHTS, X, LABELS)[0] for r in (with_picks, without))
    np.testing.assert_array_equal(got, expected)


def test_indices_that_became_equal_are_not_called_unique() -> None:
    def function(weights: Any, x: Any) -> Any:
        values = jax.nn.log_softmax(x @ weights)
        each = jnp.arange(4)
        return values.at[0, 0, each].get(unique_indices=True, indices_are_sorted=True)

    with_picks, _ = both(function, WEIGHTS, X)
    gathers = named(jax.make_jaxpr(with_picks)(WEIGHTS, X), "gather")
    unique = {eqn.invars[0].aval.shape: eqn.params["unique_indices"] for eqn in gathers}
    assert unique == {(2, 8, 128): True, (2, 8, 1): False}


def test_under_vmap_and_jit() -> None:
    with_picks, _ = both(loss, WEIGHTS, X, LABELS)
    many = jnp.stack([X, 2 * X])
    got = jax.jit(jax.vmap(lambda x: with_picks(WEIGHTS, x, LABELS)[0]))(many)
    # Compiled for a CPU the rounding of logits may be dropped here and not there.
    eps = float(jnp.finfo(jnp.bfloat16).eps)
    for each, x in zip(got, many, strict=True):
        np.testing.assert_allclose(each, with_picks(WEIGHTS, x, LABELS)[0], rtol=eps)


def test_taken_is_what_a_gather_of_the_broadcast_operand_takes() -> None:
    (eqn,) = named(jax.make_jaxpr(taken)(jnp.zeros((2, 8, 128)), LABELS), "gather")
    small = jnp.arange(16.0).reshape(2, 8, 1)
    at = LABELS[..., None, None]
    got = taken_of(eqn, small, at)
    np.testing.assert_array_equal(got, small)
