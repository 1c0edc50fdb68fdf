"""Half values that are read where they are in memory: what the rewritten program says of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import paint_jaxpr, rewriter_of
from duotone.policy.policy import Policy
from tests.jaxpr.programs import named

KEYS = jax.random.split(jax.random.key(0), 2)
X = jax.random.normal(KEYS[0], (2, 16, 8))
WEIGHTS = jax.random.normal(KEYS[1], (8, 24)) / 3
BIAS = jnp.linspace(-1, 1, 24)


def attention(weights: Any, bias: Any, x: Any) -> Any:
    """Query, key and value are slices of one dense layer's result."""
    joint = (x @ weights + bias).reshape(*x.shape[:2], 3, -1)
    query, key, value = (joint[:, :, i] for i in range(3))
    shares = jax.nn.softmax(query @ key.swapaxes(1, 2))
    return jnp.sum((shares @ value) ** 2)


def rewritten(removed: str = "materialize_widened") -> Any:
    """As for a TPU, which gains from ``materialize_parts`` only."""
    gradient = jax.grad(attention, argnums=(0, 1, 2))
    jaxpr = jax.make_jaxpr(gradient)(WEIGHTS, BIAS, X)
    policy = Policy(optimizations_remove=[removed])
    painted = paint_jaxpr(jaxpr, policy, HALF_TYPES["bfloat16"], forms=TABLE["tpu"])
    return rewriter_of(painted)


def test_a_bias_before_slices_adds_up_what_the_dots_read() -> None:
    held, free = rewritten(), rewritten("materialize_parts")
    programs = [jax.make_jaxpr(r)(WEIGHTS, BIAS, X) for r in (held, free)]
    barriers = [named(program, "optimization_barrier") for program in programs]
    added = [eqn for eqn in barriers[0] if eqn.invars[0].aval.shape == (2, 16, 24)]
    assert len(added) == len(barriers[0]) - len(barriers[1]) == 1
    (read,) = added[0].invars
    assert read.aval.dtype == jnp.bfloat16
    dots = [eqn for eqn in named(programs[0], "dot_general") if read in eqn.invars]
    assert len(dots) == 2
    for got, expected in zip(held(WEIGHTS, BIAS, X), free(WEIGHTS, BIAS, X), strict=True):
        np.testing.assert_array_equal(got, expected)


def normed_attention(weights: Any, x: Any) -> Any:
    """Query, key and value are dense layers of one normed array."""
    centred = x - jnp.mean(x, -1, keepdims=True)
    normed = centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
    query, key, value = (normed @ weight for weight in jnp.split(weights, 3, -1))
    shares = jax.nn.softmax(query @ key.swapaxes(1, 2))
    return jnp.sum((shares @ value) ** 2)


def test_what_dots_add_up_to_is_read_in_half_where_several_widen_it() -> None:
    """The gradient downstream of queries, keys and values, which the norm's derivative reads."""
    x = jax.random.normal(KEYS[0], (2, 16, 8))
    results = []
    for removed in ((), ["materialize_parts"]):
        jaxpr = jax.make_jaxpr(jax.grad(normed_attention, argnums=(0, 1)))(WEIGHTS, x)
        policy = Policy(optimizations_remove=removed)
        painted = paint_jaxpr(jaxpr, policy, HALF_TYPES["bfloat16"], forms=TABLE["tpu"])
        program = jax.make_jaxpr(rewriter_of(painted))(WEIGHTS, x)
        sums = {eqn.outvars[0] for eqn in named(program, "add_any")}
        held = [e for e in named(program, "optimization_barrier") if e.invars[0] in sums]
        assert [e.invars[0].aval.dtype for e in held] == [jnp.bfloat16] * (not removed)
        results.append(rewriter_of(painted)(WEIGHTS, x))
    for got, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("columns", "count"), [(64, 1), (60, 0)])
def test_what_is_cut_out_of_a_padded_dot_is_not_materialized(columns: int, count: int) -> None:
    """Its readers cut it out themselves; a kernel of its own would write it once more."""

    def loss(w: Any, x: Any) -> Any:
        y = x @ w
        return jnp.sum((y @ w.T) ** 2) + jnp.sum(jnp.exp(y) * jnp.sum(y, 1, keepdims=True))

    arrays = jnp.ones((32, columns)), jnp.ones((16, 32))
    jaxpr = jax.make_jaxpr(loss)(*arrays)
    painted = paint_jaxpr(jaxpr, Policy(), HALF_TYPES["bfloat16"], forms=TABLE["gpu"])
    assert sum(bool(cast.materialized) for cast in painted.plan.casts) == count
