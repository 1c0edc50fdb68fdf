"""What equations are to the lists: some are another operation than their name says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import duotone
from tests.jaxpr.programs import named

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


@pytest.mark.parametrize(
    ("bits", "expected"),
    [((8, 23), "half"), ((11, 52), "half"), ((8, 22), "full"), ((5, 23), "full")],
)
def test_a_rounding_to_all_digits_of_float32_moves_its_operand(bits, expected):
    def program(x, w):
        return (jnp.tanh(jax.lax.reduce_precision(x @ w, *bits)) @ w.T).sum()

    seen = duotone.explain(program, X, W, dtype="bfloat16")
    (rounding,) = [o for o in seen.operations if o.operation == "reduce_precision"]
    (between,) = [o for o in seen.operations if o.operation == "tanh"]
    assert (rounding.paint, between.paint) == (expected, expected)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_half_rounding_has_the_digits_of_half(half):
    """So no compiler keeps more of them in one of two passes that must agree."""
    seen = jax.make_jaxpr(
        duotone.autocast(lambda x, w: jax.lax.reduce_precision(x @ w, 8, 23) @ w.T, dtype=half)
    )(X, W)
    (rounding,) = named(seen, "reduce_precision")
    info = jnp.finfo(half)
    assert rounding.invars[0].aval.dtype == half
    assert (rounding.params["exponent_bits"], rounding.params["mantissa_bits"]) == (
        info.nexp,
        info.nmant,
    )


def test_a_sum_that_leaves_the_function_stays_float32():
    assert rule_of(lambda x, w: (x @ w).reshape(32, 12, 2).sum(-1), X, W).startswith("full")


def test_how_many_terms_a_symbolic_axis_has_is_not_known():
    (rows,) = export.symbolic_shape("rows")
    x = jax.ShapeDtypeStruct((rows, 24), jnp.float32)
    assert rule_of(lambda x, w: (x @ w).sum(0) @ w, x, W) == "full deny"
    two = jax.ShapeDtypeStruct((2, 24), jnp.float32)
    assert rule_of(lambda x, w: (x @ w).sum(0) @ w, two, W) == "half downstream"
