"""What equations are to the lists: some are another operation than their name says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import duotone

X = np.asarray(jax.random.normal(jax.random.key(1), (32, 24)) * 3)
W = np.asarray(jax.random.normal(jax.random.key(2), (24, 24)) / 5)


def pooled(x: Any, w: Any, terms: int = 2) -> Any:
    """Sums of neighbours between two dots: what an upsampling's gradient does."""
    y = x @ w
    return y.reshape(32, -1, terms).sum(-1) @ w[: 24 // terms]


def rule_of(fn: Any, *args: Any, half: str = "float16") -> str:
    """The rule that painted the sum."""
    seen = duotone.explain(fn, *args, dtype=half)
    (found,) = [o for o in seen.operations if o.operation == "reduce_sum"]
    return f"{found.paint} {found.rule}"


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_sum_of_two_terms_is_an_addition(half):
    assert rule_of(pooled, X, W, half=half) == "half downstream"
    assert rule_of(lambda x, w: pooled(x, w, 3), X, W, half=half) == "full deny"


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_it_is_rounded_once_like_an_addition(half):
    """Bit for bit what the sum of two half numbers rounds to."""
    x = X.astype(half).astype(np.float32)
    sums = duotone.autocast(lambda x: pooled(x, jnp.eye(24)), dtype=half)(x)
    pairs = x.astype(np.float64).reshape(32, 12, 2)
    exact = (pairs[..., 0] + pairs[..., 1]).astype(half).astype(np.float32)
    np.testing.assert_array_equal(sums[:, :12], exact)


def test_a_sum_that_leaves_the_function_stays_float32():
    assert rule_of(lambda x, w: (x @ w).reshape(32, 12, 2).sum(-1), X, W).startswith("full")


def test_how_many_terms_a_symbolic_axis_has_is_not_known():
    (rows,) = export.symbolic_shape("rows")
    x = jax.ShapeDtypeStruct((rows, 24), jnp.float32)
    assert rule_of(lambda x, w: (x @ w).sum(0) @ w, x, W) == "full deny"
    two = jax.ShapeDtypeStruct((2, 24), jnp.float32)
    assert rule_of(lambda x, w: (x @ w).sum(0) @ w, two, W) == "half downstream"
