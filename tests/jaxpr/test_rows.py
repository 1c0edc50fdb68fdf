"""Maxima and sums of rows recomputed: from what is in memory, and the same numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.devices.table import TABLE
from duotone.graph.forms import WIDENED
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr import pipeline
from duotone.jaxpr.painted import PaintedProgram
from duotone.ops.traits import Trait
from duotone.policy.policy import Policy
from duotone.precision.levels import find_levels
from duotone.precision.optimize import row_statistics as rows
from tests.jaxpr.programs import named

KEYS = jax.random.split(jax.random.key(0), 5)
W = jax.random.normal(KEYS[0], (32, 32)) / 5
BIAS = jax.random.normal(KEYS[1], (64, 64))
X = jax.random.normal(KEYS[2], (4, 64, 32))
KEEP = jax.random.bernoulli(KEYS[3], 0.9, (4, 64, 64))
POLICY = Policy()
GPU = dataclasses.replace(TABLE["gpu"], dots=WIDENED)
"""What runs on the device at hand in place of a GPU, whose dots CPUs do not have."""
REDUCTIONS = ("reduce_max", "reduce_sum")


def scores(w: Any, bias: Any, x: Any) -> Any:
    return jnp.einsum("bqd,bkd->bqk", x @ w, x) / 4 + bias


def dropped(w: Any, bias: Any, x: Any) -> Any:
    """Dots read what is left of the quotient, so the exponentials come from the scores."""
    shares = jax.nn.softmax(scores(w, bias, x))
    return jnp.where(KEEP, shares / 0.9, 0) @ x


def biased(w: Any, bias: Any, x: Any) -> Any:
    return jax.nn.softmax(scores(w, bias, x)) @ x


def compared(w: Any, bias: Any, x: Any) -> Any:
    """A value downstream of a dot is compared with the maximum."""
    logits = scores(w, bias, x)
    most = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    e = jnp.exp(logits - most)
    y = jnp.where(KEEP, e / e.sum(-1, keepdims=True), 0) @ x
    later = jnp.einsum("bqd,bkd->bqk", y, x)
    return jnp.where(later == most, later, later * e)


def columns(w: Any, bias: Any, x: Any) -> Any:
    shares = jax.nn.softmax(scores(w, bias, x), axis=1)
    return jnp.where(KEEP, shares / 0.9, 0) @ x


Attention = Callable[[Any, Any, Any], Any]


def step(attention: Attention) -> Attention:
    return jax.grad(lambda *args: (attention(*args) ** 2).sum(), argnums=(0, 1, 2))


def painted(attention: Attention, dtype: str = "bfloat16", *removed: str) -> PaintedProgram:
    """As for a GPU."""
    policy = POLICY.replace(optimizations_remove=removed)
    jaxpr = jax.make_jaxpr(step(attention))(W, BIAS, X)
    return pipeline.paint_jaxpr(jaxpr, policy, HALF_TYPES[dtype], forms=GPU)


def rewriter(attention: Attention, dtype: str = "bfloat16", *removed: str) -> Any:
    return jax.jit(pipeline.rewriter_of(painted(attention, dtype, *removed)))


def again(found: PaintedProgram) -> list[str]:
    """The operations of what is recomputed."""
    graph = found.built.graph
    values = found.optimizations.recompute.recomputed
    return sorted(graph.nodes[graph.values[v].producer].op for v in values)


def error(got: Any, wanted: Any) -> float:
    parts = zip(got, wanted, strict=True)
    return max(float(np.linalg.norm(g - w) / np.linalg.norm(w)) for g, w in parts)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_maximum_and_the_sum_come_with_the_exponentials(dtype: str) -> None:
    name = rows.ROW_STATISTICS
    assert set(REDUCTIONS) <= set(again(painted(dropped, dtype)))
    assert set(REDUCTIONS).isdisjoint(again(painted(dropped, dtype, name)))
    wanted = step(dropped)(W, BIAS, X)
    kept = error(rewriter(dropped, dtype, name)(W, BIAS, X), wanted)
    assert error(rewriter(dropped, dtype)(W, BIAS, X), wanted) <= 1.05 * kept


def test_nothing_of_the_first_calculation_but_the_scores_is_read_later() -> None:
    """All residuals of a softmax after its scores' dot are the scores and what dots read."""

    def small(removed: tuple[str, ...]) -> int:
        found = painted(dropped, "bfloat16", *removed)
        graph, reads = found.built.graph, found.optimizations.recompute.reads
        levels = find_levels(graph, found.classes)
        return sum(
            levels.is_far(value, node.index) and graph.values[value].size == 4 * 64
            for node in graph.nodes
            for value in node.inputs
            if (node.index, value) not in reads
        )

    assert small(()) < small((rows.ROW_STATISTICS,))


def test_a_comparison_reads_the_first_maximum() -> None:
    """A second one may be off by a bit, and all or nothing would be equal to it."""
    found = painted(compared)
    graph, reads = found.built.graph, found.optimizations.recompute.reads
    comparing = [
        node
        for node in graph.nodes
        if Trait.EQUALITY in found.classes.nodes[node.index].entry.traits
    ]
    assert comparing
    assert not any((node.index, value) in reads for node in comparing for value in node.inputs)
    assert "reduce_max" in again(found)


def test_columns_are_left_alone() -> None:
    """No kernel holds whole columns."""
    assert set(REDUCTIONS).isdisjoint(again(painted(columns)))


def test_a_row_that_fits_no_kernel_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST_ROW", 63)
    assert set(REDUCTIONS).isdisjoint(again(painted(dropped)))


@pytest.mark.parametrize("attention", [biased, dropped])
def test_the_gradient_of_a_bias_adds_up_what_the_dots_read(attention: Attention) -> None:
    """It was rounded for them; in memory it is half, for both."""
    held, free = (rewriter(attention, "bfloat16", *r) for r in ((), (rows.MATERIALIZE_ROWS,)))
    counts = [
        [
            eqn
            for eqn in named(jax.make_jaxpr(each)(W, BIAS, X), "optimization_barrier")
            if eqn.invars[0].aval.shape == KEEP.shape
        ]
        for each in (held, free)
    ]
    assert len(counts[0]) == len(counts[1]) + 1
    wanted = step(attention)(W, BIAS, X)
    got = held(W, BIAS, X)
    assert error(got, wanted) <= 1.1 * error(free(W, BIAS, X), wanted)
