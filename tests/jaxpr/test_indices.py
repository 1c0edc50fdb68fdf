"""Indices worked out before any call, and how many updates go to one place."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.graph.graph import HALF_TYPES, Paint
from duotone.jaxpr.pipeline import paint_jaxpr, rewriter_of
from duotone.policy.policy import Policy
from tests.jaxpr.programs import named

X = jax.random.normal(jax.random.key(0), (3, 5, 5))
ROWS, COLUMNS = np.tril_indices(5, -1)


def painted(function: Any, *args: Any) -> Any:
    return paint_jaxpr(jax.make_jaxpr(function)(*args), Policy(), HALF_TYPES["float16"])


def scatters(function: Any, *args: Any) -> list[Any]:
    return [n for n in painted(function, *args).built.graph.nodes if n.op.startswith("scatter")]


def gradient_of(take: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.sin(take(x))))


TAKES = {
    "pairs": (lambda x: x[:, ROWS, COLUMNS], 1.0),
    "from the end": (lambda x: x[:, ROWS - 5, COLUMNS], 1.0),
    "one axis": (lambda x: x[:, jnp.arange(4) + 1], 1.0),
    "transposed": (lambda x: x[:, COLUMNS[::-1], ROWS[::-1]], 1.0),
    "reversed": (lambda x: x[np.array([2, 0])], 1.0),
    "clipped": (lambda x: x.at[:, np.array([0, 7, 9])].get(mode="clip"), 2.0),
    "dropped": (lambda x: x.at[:, np.array([0, 7, 9])].get(mode="fill"), 1.0),
    "twice": (lambda x: x[:, np.array([1, 0, 1])], 2.0),
}


@pytest.mark.parametrize("name", TAKES)
def test_updates_of_one_place_are_counted(name: str) -> None:
    take, count = TAKES[name]
    (node,) = scatters(gradient_of(take), X)
    assert node.attributes["updates"] == count
    assert node.list_key == ("scatter_once" if count == 1 else node.op)


def test_it_is_half_between_dots() -> None:
    """The gradient of what is picked from a dot's result, as of a matrix of interactions."""

    def loss(features: Any, weights: Any) -> Any:
        picked = jnp.einsum("bif,bjf->bij", features, features)[:, ROWS, COLUMNS]
        return jnp.sum((picked @ weights) ** 2)

    args = jax.random.normal(jax.random.key(1), (3, 8, 16)), jnp.ones((10, 8))
    found = painted(jax.grad(loss), *args)
    (node,) = [n for n in found.built.graph.nodes if n.op.startswith("scatter")]
    assert found.painting.compute[node.index] is Paint.HALF
    rewriter = rewriter_of(found)
    (scatter,) = named(jax.make_jaxpr(rewriter)(*args), "scatter-add")
    assert {var.aval.dtype.name for var in scatter.invars} == {"float16", "int32"}
    wanted = jax.grad(loss)(*args)
    atol = 4 * float(jnp.finfo("float16").eps) * float(jnp.abs(wanted).max())
    np.testing.assert_allclose(rewriter(*args)[0], wanted, rtol=0, atol=atol)


def test_what_is_computed_with_indices_that_are_given_is_unknown() -> None:
    def picked(x: Any, rows: Any) -> Any:
        return gradient_of(lambda x: x[:, rows])(x)

    (node,) = scatters(picked, X, jnp.arange(2))
    assert (node.attributes.get("updates"), node.list_key) == (None, node.op)


def test_adding_to_something_else_than_zeros_is_no_move() -> None:
    (node,) = scatters(lambda x: x.at[:, ROWS, COLUMNS].add(1.0), X)
    assert (node.attributes["updates"], node.list_key) == (1.0, node.op)


@hypothesis.settings(deadline=None, max_examples=25)
@hypothesis.given(st.lists(st.integers(-7, 7), min_size=1, max_size=9), st.integers(0, 2**32 - 1))
def test_indices_are_those_of_the_device(numbers: list[int], seed: int) -> None:
    """Counted from what is known in advance, against what a scatter of ones counts."""
    random = np.random.default_rng(seed)
    constant, other = np.array(numbers), random.integers(-9, 9, len(numbers))

    def indices() -> Any:
        found = jnp.where(jnp.asarray(constant) > other, constant * 3, other - constant)
        found = jnp.concatenate([found, jnp.minimum(found, 2)[::-1][:0], jnp.arange(3)])
        return jnp.maximum(found, -6).reshape(-1, 1)[:, 0]

    def take(x: Any) -> Any:
        return x.at[indices()].get(mode="fill", fill_value=0)

    (node,) = scatters(jax.grad(lambda x: jnp.sum(take(x))), jnp.ones(12))
    counted = jnp.zeros(12).at[indices()].add(1.0, mode="drop")
    if "updates" in node.attributes:
        assert node.attributes["updates"] == float(counted.max())
