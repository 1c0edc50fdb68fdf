"""``duotone.bucketed``: the results of the true length, few programs, and what is refused."""

from __future__ import annotations

import concurrent.futures
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.errors import ArgumentError, ArgumentTypeError


def rows(x: Any) -> Any:
    return jnp.cumsum(x, axis=0) * 2.0


@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray])
def test_results_are_cut_to_the_length(kind: Any) -> None:
    fn = duotone.bucketed(rows, 0)
    for length in (5, 7, 8, 6):
        x = kind(np.arange(length * 2.0, dtype=np.float32).reshape(length, 2))
        np.testing.assert_allclose(fn(x), rows(jnp.asarray(x)), rtol=1e-6)
    assert (fn.counts.calls, fn.counts.compiles, fn.counts.hits) == (4, 1, 3)


def test_named_arguments_pytrees_and_sizes() -> None:
    def step(params: Any, batch: Any, *, scale: float = 1.0) -> Any:
        return {"y": batch["x"] * params * scale, "n": jnp.max(batch["m"])}

    fn = duotone.bucketed(step, {"batch": 1}, sizes=[4, 16], neutral=-1e9)
    batch = {"x": jnp.ones((2, 5)), "m": jnp.arange(10.0).reshape(2, 5)}
    out = fn(2.0, batch, scale=3.0)
    assert out["y"].shape == (2, 5)
    assert float(out["n"]) == 9.0
    assert fn(2.0, batch=batch)["y"].shape == (2, 5)


def test_shapes_that_follow_the_length_unevenly() -> None:
    fn = duotone.bucketed(lambda x: (x[::2], x.reshape(-1, 1), jnp.ones(3)), 0, sizes=[12])
    for length in (5, 6, 9):
        a, b, c = fn(jnp.arange(float(length)))
        assert (a.shape, b.shape, c.shape) == (((length + 1) // 2,), (length, 1), (3,))


def test_a_mask_says_what_is_padding() -> None:
    def mean(x: Any, mask: Any) -> Any:
        return jnp.sum(x * mask) / jnp.sum(mask)

    fn = duotone.bucketed(mean, 0, mask="mask", neutral=7)
    assert float(fn(jnp.arange(5.0))) == 2.0
    np.testing.assert_allclose(jax.grad(fn)(jnp.ones(5)), np.full(5, 0.2), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(fn)(jnp.ones(5)), 1.0)


def test_padding_that_changes_a_result_is_an_error_that_names_it() -> None:
    fn = duotone.bucketed(lambda x: {"sum": jnp.sum(x), "mean": jnp.mean(x)}, 0)
    message = r"padding axis 0 of argument 0 from 5 changes result\['mean'\] by up to 0\.375"
    with pytest.raises(ArgumentError, match=message):
        fn(jnp.ones(5))
    with pytest.raises(ArgumentError, match="changes result"):
        fn(jnp.ones(5))  # it is not taken for verified
    assert duotone.bucketed(jnp.mean, 0, verify=False)(jnp.ones(5)) == 0.625


def test_the_neutral_number_counts() -> None:
    with pytest.raises(ArgumentError, match="changes result"):
        duotone.bucketed(jnp.prod, 0)(jnp.full(3, 2.0))
    assert float(duotone.bucketed(jnp.prod, 0, neutral=1)(jnp.full(3, 2.0))) == 8.0


def test_inside_of_traces_and_two_lengths() -> None:
    def both(a: Any, b: Any) -> Any:
        return a @ b.T

    fn = duotone.bucketed(duotone.bucketed(both, {"a": 0}), {"b": 0})
    a, b = jnp.ones((3, 2)), jnp.ones((5, 2))
    np.testing.assert_allclose(jax.jit(fn)(a, b), both(a, b))


def test_programs_are_dropped() -> None:
    fn = duotone.bucketed(rows, 0, sizes=[4, 8, 12, 16], programs=2)
    for length in (4, 8, 12, 16, 16, 4):
        assert fn(jnp.ones((length, 1))).shape == (length, 1)
    counts = fn.counts
    assert (counts.compiles, counts.evictions, counts.programs) == (5, 3, 2)


def test_threads_share_one_compilation() -> None:
    traces = []

    def noted(x: Any) -> Any:
        traces.append(x.shape)
        return x * 2

    fn = duotone.bucketed(noted, 0, sizes=[8], verify=False)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: fn(jnp.ones(n)).shape, [3, 4, 5, 6, 7] * 8))
    assert results == [(n,) for n in [3, 4, 5, 6, 7] * 8]
    assert fn.counts.compiles == 1


@pytest.mark.slow
def test_a_soak_of_calls_from_threads() -> None:
    from benchmarks.compile_time import soak

    seen = soak(calls=2_000)
    assert seen["right"] == seen["calls"]
    assert seen["programs kept"] <= 10
    assert seen["threads left"] == 0


def bucketed_as(*args: Any, **kwargs: Any) -> Any:
    return functools.partial(duotone.bucketed, lambda x, m=None: x, *args, **kwargs)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (bucketed_as(0, sizes=[8, 4]), ArgumentError, r"sizes \[8, 4\] do not increase"),
        (bucketed_as(0, sizes=[0, 4]), ArgumentError, "do not increase from 1"),
        (bucketed_as(0, sizes=[]), ArgumentError, "no whole numbers"),
        (bucketed_as(0, sizes="pow3"), ArgumentError, "'pow3'; pass 'pow2'"),
        (bucketed_as(0, sizes=8), ArgumentTypeError, "sizes is 8"),
        (bucketed_as({"y": 0}), ArgumentError, "no argument 'y'"),
        (bucketed_as({}), ArgumentError, "names no argument"),
        (bucketed_as(0.5), ArgumentTypeError, "axis is 0.5"),
        (bucketed_as(0, mask="mm"), ArgumentError, "did you mean 'm'"),
        (bucketed_as(0, programs=0), ArgumentError, "programs is 0"),
    ],
)
def test_bad_settings(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_bad_calls() -> None:
    fn = duotone.bucketed(lambda x, y: x, {0: 0, "y": 0}, sizes=[4])
    with pytest.raises(ArgumentError, match="'y': 3"):
        fn(jnp.ones(2), jnp.ones(3))
    with pytest.raises(ArgumentError, match="length of 5 is beyond the largest of sizes, 4"):
        fn(jnp.ones(5), jnp.ones(5))
    with pytest.raises(ArgumentError, match="without 'y'"):
        fn(jnp.ones(2))
    with pytest.raises(ArgumentError, match="has no axis 0"):
        fn(jnp.float32(1), jnp.ones(2))
    with pytest.raises(ArgumentTypeError, match="neutral"):
        duotone.bucketed(lambda x: x, 0, neutral="zero")(jnp.ones(3))
