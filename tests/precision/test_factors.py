"""Factors taken out of sums: which sums, which factors, and the same numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.painted import PaintedProgram
from duotone.jaxpr.pipeline import paint_jaxpr, rewriter_of
from duotone.policy.policy import Policy
from duotone.precision.optimize.optimization import Optimization
from tests.jaxpr.programs import named

KEYS = jax.random.split(jax.random.key(0), 4)
X = jax.random.normal(KEYS[0], (16, 8, 32))
WEIGHTS = jax.random.normal(KEYS[1], (32, 24)) / 5
SCALE = jax.random.normal(KEYS[2], (1, 1, 24)) + 2
BIAS = jax.random.normal(KEYS[3], (1, 1, 24))


def carried_out(function: Any, *args: Any, device: str = "gpu") -> tuple[Any, Any, Any]:
    """What is taken out of which sum, the program, its results."""
    jaxpr = jax.make_jaxpr(function)(*args)
    painted = paint_jaxpr(jaxpr, Policy(), HALF_TYPES["bfloat16"], forms=TABLE[device])
    rewriter = rewriter_of(painted)
    return _factors(painted), jax.make_jaxpr(rewriter)(*args), rewriter(*args)


def _factors(painted: PaintedProgram) -> dict[int, Optimization]:
    return painted.optimizations.named("factors") | painted.optimizations.named("passing_factors")


def normed(weights: Any, scale: Any, bias: Any, x: Any) -> Any:
    y = x @ weights
    y = (y - y.mean((0, 1))) * scale + bias
    return jnp.sum(jnp.tanh(y) ** 2)


def test_gradients_of_a_mean_and_of_a_bias_are_one_sum() -> None:
    gradient = jax.grad(normed, argnums=(0, 1, 2))
    factored, program, got = carried_out(gradient, WEIGHTS, SCALE, BIAS, X)
    assert len(factored) == 1
    (plan,) = factored.values()
    assert [step.name for step in plan.steps[-2:]] == ["multiply", "negate"]
    assert [step.name for step in plan.steps].count("read") == 2
    summed = [eqn.invars[0] for eqn in named(program, "reduce_sum") if eqn.outvars[0].aval.shape]
    assert len(summed) > len(set(summed))
    kept = carried_out(gradient, WEIGHTS, SCALE, BIAS, X, device="cpu")
    assert not kept[0]
    passing = carried_out(gradient, WEIGHTS, SCALE, BIAS, X, device="tpu")[0]
    assert {node: found.steps for node, found in passing.items()} == {
        node: found.steps for node, found in factored.items()
    }
    # A sum that differs in its last bit may be rounded to half the other way, here and there.
    tolerance = float(jnp.finfo(jnp.bfloat16).eps) / 8
    for g, k in zip(got, kept[2], strict=True):
        np.testing.assert_allclose(g, k, rtol=0, atol=tolerance * float(jnp.abs(k).max()))


@pytest.mark.parametrize("kind", ["varies", "far", "half"])
def test_what_is_no_common_factor_stays(kind: str) -> None:
    """A factor that varies along the summed axis; one that a dot divides from the sum."""

    def function(x: Any, weights: Any, scale: Any) -> Any:
        y = jnp.exp(x) if kind != "half" else x @ weights
        product = y * (jnp.exp(x) if kind == "varies" else scale)
        if kind == "far":
            later = product @ weights
            return (product + later.sum()).sum(0)
        return product.sum(0), product @ weights

    x, weights = X[0], WEIGHTS[:, :1] @ jnp.ones((1, 32))
    factored, _, _ = carried_out(function, x, weights, jnp.ones((1, 32)))
    assert not factored


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("projected", [True, False])
def test_on_tpus_what_goes_along_a_shortcut_stays(shortcut: bool, projected: bool) -> None:
    """The kernel that makes a gradient adds it up; one that goes on is left as it was."""

    def norm(y: Any, scale: Any, bias: Any) -> Any:
        return (y - y.mean((0, 1))) * scale + bias

    def function(weights: Any, scale: Any, bias: Any, x: Any) -> Any:
        y = norm(x @ weights @ weights.T, scale, bias)
        if shortcut:
            y += norm(x @ (weights + 1) @ weights.T, scale, bias) if projected else x
        return jnp.sum(jnp.tanh(y @ weights) ** 2)

    wide = jax.random.normal(KEYS[2], (1, 1, 32)) + 2
    args = (WEIGHTS, wide, jnp.zeros((1, 1, 32)), X)
    gradient = jax.grad(function, argnums=(0, 1, 2, 3))
    assert carried_out(gradient, *args)[0]
    assert bool(carried_out(gradient, *args, device="tpu")[0]) != shortcut


def test_factors_may_stand_in_a_call() -> None:
    """In which nothing is half."""

    def function(x: Any, scale: Any, weights: Any) -> Any:
        inner = jax.jit(lambda x, s: -(jnp.sin(x) * jnp.exp(s)))(x, scale)
        return inner.sum(-1), x @ weights

    x, scale = X[0], jnp.ones((8, 1))
    factored, _, got = carried_out(function, x, scale, WEIGHTS)
    assert factored
    np.testing.assert_allclose(got[0], function(x, scale, WEIGHTS)[0], rtol=1e-5)
