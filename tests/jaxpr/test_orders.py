"""Axes of a dot in the order of its large array: the same products, the same sums."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import paint_jaxpr, rewriter_of
from duotone.jaxpr.rules.dots import in_steps
from duotone.policy.policy import Policy
from duotone.precision.optimize.dot_orders import Dot, operand_in_order, result_in_order, swapped
from tests.jaxpr.programs import named

bound: list[Any] = []


def dot(lhs: Any, rhs: Any, dims: Any) -> Any:
    """Binds a dot and remembers it."""
    bound.append((lhs.shape, rhs.shape, dims))
    return lax.dot_general(lhs, rhs, dims)


def labelled(left: tuple[int, ...], right: tuple[int, ...], dims: Any) -> Dot:
    """The axes of a dot of operands of these shapes."""
    contracted, batch = dims
    theirs = [len(left) + axis for axis in range(len(right))]
    for pair in dims:
        for axis, label in zip(pair[1], pair[0], strict=True):
            theirs[axis] = label
    mine = [axis for axis in range(len(left)) if axis not in (*contracted[0], *batch[0])]
    out = [*batch[0], *mine, *[label for label in theirs if label >= len(left)]]
    sizes = dict(zip((*range(len(left)), *theirs), (*left, *right), strict=True))
    return Dot((range(len(left)), theirs), out, sizes)


def carried_out(lhs: Any, rhs: Any, dims: Any, steps: Any) -> Any:
    return in_steps(dot, lhs, rhs, dims, steps)


@st.composite
def dots(draw: Any) -> tuple[Any, Any, Any]:
    """Operands of whole numbers, so that every order of a sum gives the same, and dimensions."""
    batch, contracted = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    sizes = [draw(st.integers(1, 4)) for _ in range(batch + contracted)]
    arrays, contracts, batches = [], [], []
    for seed in range(2):
        kept = [draw(st.integers(1, 7)) for _ in range(draw(st.integers(0, 2)))]
        order = draw(st.permutations(range(len(sizes) + len(kept))))
        shape = [(sizes + kept)[axis] for axis in order]
        random = np.random.default_rng(seed + draw(st.integers(0, 99)))
        arrays.append(random.integers(-3, 4, shape).astype(np.float32))
        places = [order.index(axis) for axis in range(len(sizes))]
        batches.append(tuple(places[:batch]))
        contracts.append(tuple(places[batch:]))
    return arrays[0], arrays[1], (tuple(contracts), tuple(batches))


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(dots(), st.randoms(use_true_random=False))
def test_a_result_in_another_order_is_the_same(case: Any, random: Any) -> None:
    lhs, rhs, dims = case
    wanted = lax.dot_general(lhs, rhs, dims)
    permutation = list(range(wanted.ndim))
    random.shuffle(permutation)
    steps = result_in_order(labelled(lhs.shape, rhs.shape, dims), permutation)
    if steps is not None:
        np.testing.assert_array_equal(carried_out(lhs, rhs, dims, steps), wanted)
    mirrored = swapped(labelled(lhs.shape, rhs.shape, dims))
    np.testing.assert_array_equal(carried_out(lhs, rhs, dims, mirrored), wanted)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(dots(), st.integers(0, 1), st.randoms(use_true_random=False))
def test_an_operand_as_it_was_gives_the_same(case: Any, slot: int, random: Any) -> None:
    lhs, rhs, dims = case
    permutation = list(range((lhs, rhs)[slot].ndim))
    random.shuffle(permutation)
    steps = operand_in_order(labelled(lhs.shape, rhs.shape, dims), slot, permutation)
    if steps is not None:
        got = carried_out(lhs, rhs, dims, steps)
        np.testing.assert_array_equal(got, lax.dot_general(lhs, rhs, dims))


def test_the_scores_of_grouped_attention_come_in_the_order_that_is_asked_for() -> None:
    keys, queries = np.ones((2, 9, 3, 4)), np.ones((2, 8, 3, 5, 4))
    dims = (((3,), (4,)), ((0, 2), (0, 2)))  # (batch, groups, keys, queries, heads)
    bound.clear()
    steps = result_in_order(labelled(keys.shape, queries.shape, dims), (0, 1, 4, 3, 2))
    got = carried_out(keys, queries, dims, steps)
    assert got.shape == (2, 3, 9, 8, 5)
    ((left, right, _),) = bound
    assert (left, right) == ((2, 5, 3, 8, 4), (2, 9, 3, 4))


def test_small_results_and_mixed_orders_stay() -> None:
    wide, tall = (4, 64), (8, 8, 2)
    rows, outer = (((1,), (1,)), ((), ())), (((2,), (2,)), ((), ()))
    assert result_in_order(labelled(wide, wide, rows), (1, 0)) is None
    assert result_in_order(labelled(tall, tall, outer), (2, 0, 3, 1)) is None  # right, left, right
    assert operand_in_order(labelled(wide, wide, rows), 0, (1, 0)) is None
    assert operand_in_order(labelled(wide, (2, 64), rows), 0, (1, 0)) is not None


def grouped(query: Any, key: Any, value: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqghd,bkgd->bghqk", query, key))
    return jnp.einsum("bghqk,bkgd->bqghd", weights, value)


@pytest.mark.parametrize("half", HALF_TYPES)
def test_a_painted_attention_reads_its_scores_as_dots_write_them(half: str) -> None:
    """Each dot that makes or reads scores has them in the order in which the program has them."""
    keys = jax.random.split(jax.random.key(0), 3)
    query = jax.random.normal(keys[0], (2, 16, 2, 4, 8))
    key, value = (jax.random.normal(k, (2, 16, 2, 8)) for k in keys[1:])
    gradient = jax.grad(lambda *a: jnp.sum(jnp.sin(grouped(*a))), argnums=(0, 1, 2))
    jaxpr = jax.make_jaxpr(gradient)(query, key, value)
    rewriter = rewriter_of(paint_jaxpr(jaxpr, Policy(), HALF_TYPES[half], forms=TABLE["gpu"]))
    shapes = [
        atom.aval.shape
        for eqn in named(jax.make_jaxpr(rewriter)(query, key, value), "dot_general")
        for atom in (*eqn.invars, *eqn.outvars)
        if atom.aval.size == 2 * 2 * 4 * 16 * 16
    ]
    assert set(shapes) == {(2, 2, 4, 16, 16)}
    for got, wanted in zip(rewriter(query, key, value), gradient(query, key, value), strict=True):
        scale = float(jnp.abs(wanted).max())
        tolerance = 8 * float(jnp.finfo(half).eps)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * scale)
