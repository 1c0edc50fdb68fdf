"""``duotone.cluster_jit``: the same results, equal parts compiled once, and what is declined."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.compiling import background_compile as background
from duotone.compiling.cluster_parts import Sizes, find_clusters
from duotone.compiling.cluster_program import clusters_of, compile_clusters
from duotone.compiling.listing import list_program
from duotone.errors import ArgumentError, ArgumentTypeError, UnknownOperationError
from tests.compiling.unrolled import random_program
from tests.quick import in_turns

ANY = Sizes(8, None, frozenset())
LAYERS, WIDTH = 12, 8


def layer(weights: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ weights["in"]) * jax.nn.sigmoid(x @ weights["gate"])
    x = x + hidden @ weights["out"]
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def network(weights: Any, x: Any) -> Any:
    for each in weights:
        x = layer(each, x)
    return x


def loss(weights: Any, x: Any) -> Any:
    return jnp.mean(jnp.sin(network(weights, x)))


def step(weights: Any, x: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def weights() -> Any:
    def one(key: Any) -> Any:
        names = ("in", "gate", "out")
        keys = jax.random.split(key, len(names))
        return {
            name: 0.3 * jax.random.normal(key, (WIDTH, WIDTH))
            for name, key in zip(names, keys, strict=True)
        }

    return [one(key) for key in jax.random.split(jax.random.key(0), LAYERS)]


X = np.linspace(-1.0, 1.0, 8 * WIDTH, dtype=np.float32).reshape(8, WIDTH)


def assert_same(mine: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert x.dtype == y.dtype
        assert x.weak_type == y.weak_type
        scale = float(np.abs(np.asarray(y)).max()) if y.size else 1.0
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(scale, 1e-6))


def run_parts(fn: Callable[..., Any], args: Any, sizes: Sizes = ANY) -> list[Any]:
    """The results of a function of arrays, in clusters whether or not they would win."""
    leaves, tree = jax.tree.flatten(args)
    jaxpr = jax.make_jaxpr(lambda *x: jax.tree.leaves(fn(*jax.tree.unflatten(tree, x))))(*leaves)
    return compile_clusters(clusters_of(jaxpr, sizes), leaves, frozenset(), 2)(*leaves)


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def test_a_training_step_in_clusters(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "duotone"):
        mine = duotone.cluster_jit(step, min_cluster_size=16)(weights(), X)
    assert "parts of" in said(caplog)
    assert_same(mine, jax.jit(step)(weights(), X))


def test_equal_parts_share_a_program() -> None:
    found = clusters_of(jax.make_jaxpr(step)(weights(), X), Sizes(16, None, frozenset()))
    assert not found.declined
    assert found.compiled * 3 < found.operations
    assert max(len(cluster.parts) for cluster in found.clusters) >= LAYERS - 2
    parts = sorted((part.start, part.end) for cluster in found.clusters for part in cluster.parts)
    assert parts[0][0] == 0
    assert parts[-1][1] == len(found.listing.eqns)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))


@pytest.mark.parametrize("seed", in_turns(range(8)))
def test_a_random_program_gives_the_same(seed: int) -> None:
    fn, args = random_program(seed)
    expected = jax.tree.leaves(jax.jit(fn)(*args))
    assert_same(run_parts(fn, args), expected)
    assert_same(run_parts(fn, args, Sizes(1, 5, frozenset({"mul", "tanh"}))), expected)


def test_the_memory_is_what_is_alive() -> None:
    """Ten steps of one array each: the argument, what a step reads and what it makes."""
    x = jnp.ones((1000,))
    jaxpr = jax.make_jaxpr(lambda x: [x := jnp.sin(x) for _ in range(10)][-1])(x)
    single = Sizes(1, 1, frozenset())
    program = compile_clusters(clusters_of(jaxpr, single), [x], frozenset(), 2)
    assert 2 * x.nbytes <= program.most_bytes <= 4 * x.nbytes
    keep = jax.make_jaxpr(lambda x: [x := jnp.sin(x) for _ in range(10)])(x)
    program = compile_clusters(clusters_of(keep, single), [x], frozenset(), 2)
    assert program.most_bytes >= 11 * x.nbytes


def test_the_turn_of_a_loop_is_an_operand() -> None:
    def counted(x: Any) -> Any:
        for turn in range(40):
            x = jnp.sin(x * (1.0 + 0.1 * turn)) + turn
        return x

    found = clusters_of(jax.make_jaxpr(counted)(X), ANY)
    assert max(len(cluster.parts) for cluster in found.clusters) > 10
    assert any(cluster.passed for cluster in found.clusters)
    assert_same(run_parts(counted, (X,)), [jax.jit(counted)(X)])


def test_a_wrong_literal_would_be_seen() -> None:
    """The test above compares something: clusters that ignore the turn give another result."""

    def counted(x: Any, factor: float) -> Any:
        for turn in range(40):
            x = jnp.sin(x * (1.0 + factor * turn)) + turn
        return x

    with pytest.raises(AssertionError):
        assert_same(run_parts(lambda x: counted(x, 0.0), (X,)), [jax.jit(counted)(X, 0.1)])


def test_effects_happen_once_in_order() -> None:
    seen: list[int] = []

    def noisy(x: Any) -> Any:
        for turn in range(40):
            jax.debug.callback(lambda turn=turn, **_: seen.append(turn), ordered=True)
            for _ in range(8):
                x = jnp.sin(x) + 0.1
        return x

    mine = duotone.cluster_jit(noisy, min_cluster_size=16)
    expected = jax.jit(lambda x: noisy(x))
    for _ in range(2):
        seen.clear()
        jax.block_until_ready(mine(X))
        jax.effects_barrier()
        assert seen == list(range(40))
    assert_same(mine(X), expected(X))


def test_random_keys_and_weak_types_pass_through() -> None:
    def noise(key: Any, x: Any) -> Any:
        total = 0.0
        for _ in range(40):
            key, use = jax.random.split(key)
            x = x + 0.01 * jax.random.normal(use, x.shape)
            total = total + 1.0
        return key, x, jnp.asarray(1.0) * total, 3

    key = jax.random.key(1)
    mine, theirs = duotone.cluster_jit(noise, min_cluster_size=8)(key, X), noise(key, X)
    assert mine[3] == theirs[3]
    assert (jax.random.key_data(mine[0]) == jax.random.key_data(theirs[0])).all()
    assert_same(mine[1:3], theirs[1:3])
    assert_same(run_parts(lambda x: noise(key, x)[1:3], (X,)), list(theirs[1:3]))


def test_inside_of_traces_it_is_the_function() -> None:
    mine = duotone.cluster_jit(loss)
    w = weights()
    assert_same(jax.grad(mine)(w, X), jax.grad(loss)(w, X))
    assert_same(jax.vmap(mine, (None, 0))(w, X[None]), jax.vmap(loss, (None, 0))(w, X[None]))
    inside = jax.make_jaxpr(mine)(w, X)
    assert len(inside.eqns) == len(jax.make_jaxpr(loss)(w, X).eqns)


def test_around_jit_and_autocast(caplog: pytest.LogCaptureFixture) -> None:
    w = weights()
    expected = jax.jit(step)(w, X)
    assert_same(duotone.cluster_jit(jax.jit(step), min_cluster_size=16)(w, X), expected)
    half = duotone.autocast(step, dtype="bfloat16", policy=duotone.Policy(ignore_performance=True))
    w = w * 4
    with caplog.at_level(logging.INFO, "duotone"):
        assert_same(duotone.cluster_jit(half, min_cluster_size=16)(w, X), half(w, X), 2e-2)
    assert "operations are compiled; at most" in said(caplog)


def test_arguments_that_are_donated_are_gone() -> None:
    w = jax.tree.map(jnp.array, weights())
    kept = jax.tree.map(np.array, w)  # a view would keep the buffers
    fn = duotone.cluster_jit(step, min_cluster_size=16, donate_argnums=0)
    mine = fn(w, X)
    assert any(leaf.is_deleted() for leaf in jax.tree.leaves(w))
    assert_same(mine, jax.jit(step)(kept, X))
    again = fn(mine[0], X)
    assert_same(again, jax.jit(step)(jax.jit(step)(kept, X)[0], X), 1e-4)


def test_a_value_that_is_handed_through_is_nobodys_to_use() -> None:
    """A small ``jit`` function gives its argument back, and one result twice."""

    @jax.jit
    def twice(x: Any) -> Any:
        y = jnp.sin(x)
        return jax.lax.optimization_barrier(x), y, y

    def fn(x: Any) -> Any:
        total = x
        for _ in range(60):
            a, b, c = twice(total)
            total = jnp.tanh(a + b) * 0.5 + jnp.cos(c)
        return total, x

    x = jnp.array(X)
    mine = duotone.cluster_jit(fn, min_cluster_size=2)
    for _ in range(2):
        assert_same(mine(x), jax.jit(fn)(X))
    leaves = run_parts(fn, (x,), Sizes(1, 1, frozenset()))
    assert not x.is_deleted()
    assert_same(leaves, list(jax.jit(fn)(X)))


@pytest.mark.parametrize("dtype", ["float64", "int64", "float16"])
def test_numpy_arrays_of_any_type(dtype: str) -> None:
    fn = duotone.cluster_jit(lambda w, x: network(w, x * 1.0), min_cluster_size=16)
    w, x = weights(), X.astype(dtype)
    assert_same(fn(w, x), jax.jit(lambda w, x: network(w, x * 1.0))(w, x), 1e-2)


def test_arguments_that_are_not_donated_stay() -> None:
    w = weights()
    duotone.cluster_jit(step, min_cluster_size=16)(w, X)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(w))


@pytest.mark.parametrize("excluded", [{"dot_general"}, {"tanh", "div"}])
def test_excluded_operations_stand_alone(excluded: set[str]) -> None:
    sizes = Sizes(16, None, frozenset(excluded))
    found = clusters_of(jax.make_jaxpr(network)(weights(), X), sizes)
    for cluster in found.clusters:
        for part in cluster.parts:
            names = [e.primitive.name for e in found.listing.eqns[part.start : part.end]]
            assert len(names) == 1 or excluded.isdisjoint(names)
    assert_same(run_parts(network, (weights(), X), sizes), [jax.jit(network)(weights(), X)])


def test_parts_have_at_most_the_largest_size() -> None:
    found = clusters_of(jax.make_jaxpr(step)(weights(), X), Sizes(4, 12, frozenset()))
    sizes = [
        int(found.listing.weights[part.start : part.end].sum())
        for cluster in found.clusters
        for part in cluster.parts
        if part.end - part.start > 1
    ]
    assert max(sizes) <= 12


def test_scopes_are_clusters_forwards_and_backwards() -> None:
    def scoped(weights: Any, x: Any) -> Any:
        for place, each in enumerate(weights):
            with duotone.cluster_scope(f"layer {place}"):
                x = layer(each, x)
        return jnp.mean(jnp.sin(x))

    found = clusters_of(
        jax.make_jaxpr(jax.grad(scoped))(weights(), X), Sizes(1000, None, frozenset())
    )
    counts = sorted((len(cluster.parts) for cluster in found.clusters), reverse=True)
    assert counts[0] >= LAYERS - 1
    assert counts[1] >= LAYERS - 2
    assert not found.declined
    assert_same(duotone.cluster_jit(jax.grad(scoped))(weights(), X), jax.grad(loss)(weights(), X))


def test_a_program_that_repeats_nothing_is_compiled_whole(caplog: pytest.LogCaptureFixture) -> None:
    fn = duotone.cluster_jit(lambda x: jnp.sin(x) + 1.0)
    with caplog.at_level(logging.WARNING, "duotone"):
        assert_same(fn(X), jnp.sin(X) + 1.0)
        fn(X)
    assert said(caplog).count("compiled whole, since clusters would save") == 1


def test_many_programs_that_save_little_are_declined() -> None:
    """Each program costs the compiler something of its own."""
    found = clusters_of(jax.make_jaxpr(step)(weights(), X), Sizes(16, None, frozenset()))
    few = dataclasses.replace(found, operations=2000, compiled=700, clusters=found.clusters[:1] * 9)
    many = dataclasses.replace(few, clusters=found.clusters[:1] * 10)
    assert not few.declined
    assert many.declined.startswith("700 of 2000 operations in 10 programs would take half as long")


def test_the_whole_program_takes_over(caplog: pytest.LogCaptureFixture) -> None:
    fn = duotone.cluster_jit(step, min_cluster_size=16, background=True)
    w = weights()
    with caplog.at_level(logging.INFO, "duotone"):
        first = fn(w, X)
        background._THREAD.submit(lambda: None).result()
        second = fn(w, X)
        third = fn(w, X)
    assert said(caplog).count("takes over") == 1
    expected = jax.jit(step)(w, X)
    for mine in (first, second, third):
        assert_same(mine, expected)


def test_an_error_in_the_background_is_raised_once() -> None:
    def fail() -> Any:
        raise MemoryError("no room")

    program = background.Swapped("the program of step", lambda x: x, fail)
    background._THREAD.submit(lambda: None).result()
    with pytest.raises(MemoryError, match="no room") as caught:
        program(1)
    assert "while compiling the program of step" in caught.value.__notes__[0]
    assert program(2) == 2


def test_an_error_of_the_compiler_names_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of registers")

    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    with pytest.raises(RuntimeError, match="out of registers") as caught:
        duotone.cluster_jit(step, min_cluster_size=16)(weights(), X)
    assert "operations at" in caught.value.__notes__[0]


def test_threads_share_a_function() -> None:
    fn = duotone.cluster_jit(step, min_cluster_size=16)
    w, barrier = weights(), threading.Barrier(4)

    def call() -> Any:
        barrier.wait()
        return fn(w, X)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(call) for _ in range(4)]]
    expected = jax.jit(step)(w, X)
    for mine in results:
        assert_same(mine, expected)


def test_other_types_are_another_program() -> None:
    fn = duotone.cluster_jit(network, min_cluster_size=16)
    w = weights()
    assert_same(fn(w, X), network(w, X))
    assert_same(fn(w, X[:2]), network(w, X[:2]))


def test_constants_of_the_function_are_found() -> None:
    w = weights()
    fn = duotone.cluster_jit(lambda x: network(w, x), min_cluster_size=16)
    assert_same(fn(X), network(w, X))


def test_an_empty_program_and_an_argument_returned() -> None:
    assert run_parts(lambda x: (x, 1.0), (X,))[1] == 1.0
    assert not find_clusters(list_program(jax.make_jaxpr(lambda x: x)(X)), ANY).clusters


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"min_cluster_size": 0}, ArgumentError, "at least 1"),
        ({"min_cluster_size": 1.5}, ArgumentTypeError, "whole number"),
        ({"min_cluster_size": 64, "max_cluster_size": 8}, ArgumentError, "below min_cluster_size"),
        ({"exclude_ops": "tanh"}, ArgumentTypeError, "pass a list of strings"),
        ({"exclude_ops": [1]}, ArgumentTypeError, "pass a list of strings"),
        ({"threads": 0}, ArgumentError, "at least 1"),
        ({"donate_argnums": "x"}, ArgumentTypeError, "donate_argnums"),
        ({"donate_argnums": -1}, ArgumentError, "donate_argnums"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        duotone.cluster_jit(step, **options)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dot_genral", "did you mean 'dot_general'"),
        ("MatMul", "its JAX primitive is 'dot_general'"),
    ],
)
def test_an_excluded_operation_that_does_not_exist_is_named(name: str, hint: str) -> None:
    """Catches: a misspelt name that excludes nothing, so that the search finds nothing."""
    excluding = duotone.cluster_jit(step, exclude_ops=[name])
    with pytest.raises(UnknownOperationError, match=f"exclude_ops names '{name}': .*{hint}"):
        excluding(weights(), X)


def test_bad_functions_and_names() -> None:
    with pytest.raises(ArgumentTypeError, match="not callable"):
        duotone.cluster_jit(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="cluster_scope"), duotone.cluster_scope(3):  # type: ignore[arg-type]
        pass
