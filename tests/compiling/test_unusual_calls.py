"""Calls that people write and no example shows: the right result, or an error with the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.errors import ArgumentError, ArgumentTypeError, LeakedTracerError
from tests.compiling.test_cluster_jit import X, assert_same, layer, said, weights
from tests.compiling.test_cluster_jit import step as train


def test_results_that_are_no_arrays_stay_what_they_are() -> None:
    fn = duotone.bucketed(lambda x: {"y": x * 2, "name": "n", "k": 3, "none": None}, 0)
    out = fn(jnp.ones(5))
    assert (out["y"].shape, out["name"], out["k"], out["none"]) == ((5,), "n", 3, None)
    assert jax.jit(lambda x: fn(x)["y"])(jnp.ones(5)).shape == (5,)
    with pytest.raises(ArgumentError, match="changes result"):
        duotone.bucketed(lambda x: (x, x.shape[0]), 0)(jnp.ones(5))


def test_a_length_of_zero() -> None:
    fn = duotone.bucketed(lambda x: (x * 2, jnp.sum(x)), 0)
    twice, total = fn(jnp.ones(0))
    assert (twice.shape, float(total)) == ((0,), 0.0)
    assert fn(jnp.ones(1))[0].shape == (1,)


def test_a_function_that_takes_some_lengths_only() -> None:
    def quarters(x: Any) -> Any:
        assert x.shape[0] % 4 == 0, "not a multiple of 4"
        return x.reshape(-1, 4).sum(1)

    fn = duotone.bucketed(quarters, 0)
    for length in (8, 4, 12):
        assert fn(jnp.ones(length)).shape == (length // 4,)
    with pytest.raises(AssertionError, match="not a multiple of 4") as caught:
        fn(jnp.ones(13))
    assert "at a length of 13" in "".join(caught.value.__notes__)


def test_an_error_of_the_function_is_its_own_and_leaves_nothing_behind() -> None:
    def fail(x: Any) -> Any:
        raise KeyError("mine")

    fn = duotone.bucketed(fail, 0)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            fn(jnp.ones(5))
    assert (fn.counts.compiles, fn.counts.hits, fn.counts.programs) == (2, 0, 0)


def test_an_argument_with_a_default_may_be_left_out() -> None:
    def add(x: Any, y: Any = None, *, z: Any = None) -> Any:
        return x if y is None else x + y

    fn = duotone.bucketed(add, {"x": 0, 1: 0, "z": 0})
    assert fn(jnp.ones(5)).shape == (5,)
    np.testing.assert_array_equal(fn(jnp.ones(5), jnp.ones(5)), np.full(5, 2.0))


def test_without_jit() -> None:
    fn = duotone.bucketed(lambda x, mask: jnp.sum(x * mask), 0, mask="mask")
    with jax.disable_jit():
        assert float(fn(jnp.ones(5))) == 5.0


def test_random_keys() -> None:
    def noise(x: Any, key: Any) -> Any:
        key, mine = jax.random.split(key)
        return x + 0 * jax.random.uniform(mine), key

    out, key = duotone.bucketed(noise, 0)(jnp.ones(5), jax.random.key(0))
    assert out.shape == (5,)
    assert key == jax.random.split(jax.random.key(0))[0]
    with pytest.raises(ArgumentTypeError, match="cannot be padded; pass one key and split it"):
        duotone.bucketed(lambda k: k, 0)(jax.random.split(jax.random.key(0), 5))


def test_results_stay_on_the_devices_of_the_arguments() -> None:
    script = """
import jax, numpy as np, duotone
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

fn, devices = duotone.bucketed(lambda x: x * 2, 0), jax.devices()
for device in devices:
    for length in (4, 3):
        out = fn(jax.device_put(np.ones((length, 2)), device))
        assert (out.devices(), out.shape) == ({device}, (length, 2))
split = NamedSharding(Mesh(np.array(devices), ("d",)), P(None, "d"))
for length in (4, 3):
    out = fn(jax.device_put(np.ones((length, 2)), split))
    assert (out.sharding, out.shape) == (split, (length, 2))
"""
    flags = "--xla_force_host_platform_device_count=2"
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        check=True,
        timeout=300,
    )


def test_bad_masks_and_neutral_numbers() -> None:
    fn = duotone.bucketed(lambda x, mask: x, 0, mask="mask")
    with pytest.raises(ArgumentError, match=r"bucketed\(.*called with 'mask', the mask that"):
        fn(jnp.ones(5), mask=jnp.ones(5))
    for number in (0.5, float("inf"), 300, [0, 1]):
        with pytest.raises(ArgumentTypeError, match="not an int8 number"):
            duotone.bucketed(lambda x: x, 0, neutral=number)(jnp.ones(3, jnp.int8))
    with pytest.raises(ArgumentError, match="neutral names 'y', which axis does not; name 'x'"):
        duotone.bucketed(lambda x: x, {"x": 0}, neutral={"y": 1})
    with pytest.raises(ArgumentError, match="0 and 'x' are the same argument"):
        duotone.bucketed(lambda x: x, {0: 0, "x": 1})


def test_without_jit_the_function_is_called() -> None:
    fn = duotone.cluster_jit(train, min_cluster_size=16)
    with jax.disable_jit():
        mine = fn(weights(), X)
    assert_same(mine, jax.jit(train)(weights(), X))


def test_references_are_compiled_whole(caplog: pytest.LogCaptureFixture) -> None:
    def written(weights: Any, x: Any) -> Any:
        held = jax.new_ref(x)
        for each in weights:
            held[...] = layer(each, held[...])
        return held[...]

    w = weights() * 4
    assert_same(duotone.cluster_jit(written, min_cluster_size=16)(w, X), jax.jit(written)(w, X))
    assert "since it has references" in said(caplog)


def test_a_leak_names_the_function() -> None:
    kept: list[Any] = []
    jax.make_jaxpr(lambda x: kept.append(x))(1.0)
    for wrap in (duotone.cluster_jit, duotone.reroll):
        with pytest.raises(LeakedTracerError, match=rf"{wrap.__name__}\(.*uses a traced"):
            wrap(lambda x: x + kept[0])(X)
