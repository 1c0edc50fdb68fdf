"""``Policy(segment_sums="half")``: what adds up segments is half if only its list forbids it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.errors import EnvironmentVariableError

NODES, EDGES, WIDTH = 64, 512, 16
HALF = duotone.Policy(segment_sums="half", ignore_performance=True)
FULL = duotone.Policy(ignore_performance=True)


def graph(nodes: int = NODES, edges: int = EDGES) -> tuple[Any, Any]:
    begins, ends = np.random.default_rng(0).integers(0, nodes, (2, edges), np.int32)
    return begins, np.sort(ends)


def arguments() -> tuple[Any, ...]:
    first, second = jax.random.split(jax.random.key(0))
    x = jax.random.normal(first, (NODES, WIDTH))
    return 0.3 * jax.random.normal(second, (2, WIDTH, WIDTH)), x, *graph()


def loss(weights: Any, x: Any, begins: Any, ends: Any) -> Any:
    y = jnp.tanh(x @ weights[0])
    y = jax.ops.segment_sum(y[begins], ends, NODES) @ weights[1]
    return jnp.mean(y**2)


def scatters(function: Any, *args: Any, policy: Any = HALF, dtype: str = "bfloat16") -> list[Any]:
    seen = duotone.explain(function, *args, dtype=dtype, policy=policy)
    return [o for o in seen.operations if o.operation == "scatter-add"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_messages_and_their_gradients_are_added_in_half_only_where_asked_for(dtype: str):
    full = scatters(jax.grad(loss), *arguments(), policy=FULL, dtype=dtype)
    half = scatters(jax.grad(loss), *arguments(), dtype=dtype)
    assert len(full) == len(half) == 2
    assert {o.rule for o in full} == {"deny"}
    assert [(o.paint, o.rule) for o in half] == [("half", "downstream")] * 2
    assert all("segment_sums='half'" in o.reason for o in half)


@pytest.mark.parametrize(("dtype", "most"), [("float16", 2e-2), ("bfloat16", 0.1)])
def test_gradients_are_as_near_as_half_sums_allow(dtype: str, most: float):
    wanted = jax.grad(loss)(*arguments())
    got = duotone.grad(loss, dtype=dtype, policy=HALF)(*arguments())
    assert got.dtype == jnp.float32
    assert np.linalg.norm(got - wanted) <= most * np.linalg.norm(wanted)


def test_the_gradient_of_an_embedding_is_float32():
    def embedded(table: Any, weights: Any, words: Any) -> Any:
        return jnp.mean(jnp.tanh(table[words] @ weights) ** 2)

    words = np.arange(32 * WIDTH) % 8  # many more updates than elements
    args = (jnp.ones((8, WIDTH)), jnp.ones((WIDTH, WIDTH)), words)
    found = scatters(jax.grad(embedded, (0, 1)), *args, policy=HALF)
    assert [o.paint for o in found] == ["full"]


def test_a_softmax_over_edges_sums_in_float32():
    def attention(weights: Any, x: Any, begins: Any, ends: Any) -> Any:
        y = x @ weights[0]
        raised = jnp.exp(y[begins] - y[ends])
        return (raised / jax.ops.segment_sum(raised, ends, NODES)[ends]) @ weights[1]

    assert [o.paint for o in scatters(attention, *arguments())] == ["full"]


def test_what_is_added_to_positions_is_float32():
    def moved(x: Any, weights: Any, ends: Any) -> Any:
        places = jnp.arange(NODES, dtype=jnp.float32)[:, None] * jnp.ones((1, WIDTH))
        return places.at[ends].add(x @ weights) @ weights

    args = (jnp.ones((EDGES, WIDTH)), jnp.ones((WIDTH, WIDTH)), graph()[1])
    assert [(o.paint, o.rule) for o in scatters(moved, *args)] == [("full", "position")]


@pytest.mark.parametrize(("dtype", "most"), [("float16", 512), ("bfloat16", 64)])
def test_sums_that_half_cannot_count_are_float32(dtype: str, most: int):
    def pooled(x: Any, weights: Any, ends: Any) -> Any:
        return jax.ops.segment_sum(x @ weights, ends, 8) @ weights

    for updates, paint, rule in ((most, "half", "downstream"), (most + 1, "full", "segment")):
        args = (jnp.ones((8 * updates, 8)), jnp.ones((8, 8)), np.arange(8 * updates) % 8)
        (found,) = scatters(pooled, *args, dtype=dtype)
        assert (found.paint, found.rule) == (paint, rule)
    removed = HALF.replace(rules_remove={"segment"})
    (found,) = scatters(pooled, *args, dtype=dtype, policy=removed)
    assert found.paint == "half"


def test_a_half_sum_is_stored_half_also_for_readers_that_compute_full():
    def logged(x: Any, weights: Any, begins: Any, ends: Any) -> Any:
        return jnp.exp(jax.ops.segment_sum((x @ weights)[begins], ends, NODES)) @ weights

    args = (jnp.ones((NODES, WIDTH)), jnp.ones((WIDTH, WIDTH)), *graph())
    assert [(o.paint, o.stored) for o in scatters(logged, *args)] == [("half", "half")]


def test_the_environment_asks_for_half_and_code_wins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DUOTONE_SEGMENT_SUMS", "half")
    assert {o.paint for o in scatters(jax.grad(loss), *arguments(), policy=FULL)} == {"half"}
    monkeypatch.setenv("DUOTONE_SEGMENT_SUMS", "bf16")
    with pytest.raises(EnvironmentVariableError, match=r"SEGMENT_SUMS is 'bf16'.*full or half"):
        duotone.Policy().merged_with_environment()


def test_a_sum_that_the_user_keeps_stays_full():
    kept = HALF.replace(deny_add={"scatter-add"})
    assert {o.paint for o in scatters(jax.grad(loss), *arguments(), policy=kept)} == {"full"}
