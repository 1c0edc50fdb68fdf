"""Additions that the convolution before them carries out: which ones, in what types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone._road import Painted, paint_jaxpr, rewriter_of
from duotone.graph.graph import HALF_TYPES
from duotone.policy import Policy
from duotone.targets.forms import TABLE

KEYS = jax.random.split(jax.random.key(0), 4)
X = jax.random.normal(KEYS[0], (2, 8, 8, 4))
FIRST = jax.random.normal(KEYS[1], (3, 3, 4, 4)) / 6
SECOND = jax.random.normal(KEYS[2], (3, 3, 4, 4)) / 6
BIAS = jax.random.normal(KEYS[3], (4,))


def conv(x: Any, kernel: Any) -> Any:
    """A convolution that keeps size and channels."""
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def biased(x: Any, bias: Any) -> Any:
    """A bias between two convolutions."""
    return conv(conv(x, FIRST) + bias.reshape(1, 1, 1, -1), SECOND)


def painted_for(function: Callable[..., Any], *args: Any, device: str = "gpu") -> Painted:
    """A program painted in bfloat16."""
    jaxpr = jax.make_jaxpr(function)(*args)
    return paint_jaxpr(jaxpr, Policy(), HALF_TYPES["bfloat16"], forms=TABLE[device])


def carried_out(function: Callable[..., Any], *args: Any, device: str = "gpu") -> Any:
    """Its first result."""
    return rewriter_of(painted_for(function, *args, device=device), Policy())(*args)[0]


def test_a_bias_between_convolutions_is_added_in_half() -> None:
    painted = painted_for(biased, X, BIAS)
    (node,) = painted.reforms.named("epilogues")
    assert painted.painting.rules[node] == "mixed"
    program = jax.make_jaxpr(rewriter_of(painted, Policy()))(X, BIAS)
    (addition,) = [eqn for eqn in program.eqns if eqn.primitive.name == "add"]
    assert {var.aval.dtype.name for var in addition.invars} == {"bfloat16"}


def test_the_result_is_as_good() -> None:
    exact = biased(X, BIAS)
    errors = [
        float(jnp.linalg.norm(carried_out(biased, X, BIAS, device=device) - exact))
        for device in ("gpu", "cpu")
    ]
    assert errors[0] < 1.3 * errors[1]
    np.testing.assert_allclose(carried_out(biased, X, BIAS), exact, atol=0.05)


def test_the_gradient_of_the_bias_is_summed_in_full() -> None:
    painted = painted_for(biased, X, BIAS)

    def loss(bias: Any) -> Any:
        return jnp.sum(rewriter_of(painted, Policy())(X, bias)[0])

    program = jax.make_jaxpr(jax.grad(loss))(BIAS)
    sums = [eqn for eqn in program.eqns if eqn.primitive.name == "reduce_sum"]
    assert sums
    assert {eqn.invars[0].aval.dtype.name for eqn in sums} == {"float32"}


def read_by_two(x: Any, bias: Any) -> Any:
    """The convolution's result is kept for a second reader."""
    y = conv(x, FIRST)
    return conv(y + bias, SECOND) + conv(jnp.maximum(y, 0), SECOND)


def behind_a_dot(x: Any, bias: Any) -> Any:
    """A dot leaves its sum to a kernel that takes a float32 bias."""
    return conv(x @ FIRST[0, 0] + bias, SECOND)


def of_the_same_size(x: Any, bias: Any) -> Any:
    """What is added is as large as the result, so a cast would be one more array."""
    return conv(conv(x, FIRST) + jnp.exp(x) * bias, SECOND)


@pytest.mark.parametrize("function", [read_by_two, behind_a_dot, of_the_same_size])
def test_what_is_no_epilogue(function: Callable[..., Any]) -> None:
    assert not painted_for(function, X, BIAS).reforms.named("epilogues")


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_other_devices_add_in_full(device: str) -> None:
    assert not painted_for(biased, X, BIAS, device=device).reforms.named("epilogues")
