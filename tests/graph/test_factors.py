"""Factors taken out of sums: which sums, which factors, and the same numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.graph.graph import HALF_TYPES
from duotone.policy import Policy
from duotone.road import paint_jaxpr, rewriter_of
from duotone.targets.forms import TABLE
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
    rewriter = rewriter_of(painted, Policy())
    return painted.plans.factored, jax.make_jaxpr(rewriter)(*args), rewriter(*args)


def normed(weights: Any, scale: Any, bias: Any, x: Any) -> Any:
    y = x @ weights
    y = (y - y.mean((0, 1))) * scale + bias
    return jnp.sum(jnp.tanh(y) ** 2)


def test_gradients_of_a_mean_and_of_a_bias_are_one_sum() -> None:
    gradient = jax.grad(normed, argnums=(0, 1, 2))
    factored, program, got = carried_out(gradient, WEIGHTS, SCALE, BIAS, X)
    assert len(factored) == 1
    (plan,) = factored.values()
    assert (plan.negative, len(plan.factors)) == (True, 1)
    summed = [eqn.invars[0] for eqn in named(program, "reduce_sum") if eqn.outvars[0].aval.shape]
    assert len(summed) > len(set(summed))
    kept = carried_out(gradient, WEIGHTS, SCALE, BIAS, X, device="cpu")
    assert not kept[0]
    assert carried_out(gradient, WEIGHTS, SCALE, BIAS, X, device="tpu")[0] == factored
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
