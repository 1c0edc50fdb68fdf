"""Carries that only move values to half readers are stored in half: cached keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import duotone
from tests.jaxpr.programs import named, traced

WIDTH, LENGTH = 32, 16
W = jax.random.normal(jax.random.key(0), (3, WIDTH, WIDTH)) / 6
X = jax.random.normal(jax.random.key(1), (4, WIDTH))
KEEPS = {"upstream"}

Update = Callable[[Any, Any, Any], Any]


def write(cache: Any, row: Any, i: Any) -> Any:
    return lax.dynamic_update_slice(cache, row[:, None], (0, i, 0))


def attend(w: Any, x: Any, cache: Any, i: Any, update: Update = write) -> Any:
    """One query over all keys so far, which are the values too."""
    cache = update(cache, x @ w[0], i)
    scores = jnp.einsum("bd,bmd->bm", x @ w[1], cache)
    scores = jnp.where(jnp.arange(LENGTH) <= i, scores, -1e30)
    read = jnp.einsum("bm,bmd->bd", jax.nn.softmax(scores), cache)
    return jnp.tanh(x + read @ w[2]), cache


def generate(w: Any, x: Any, cache: Any = None, update: Update = write) -> tuple[Any, Any]:
    cache = jnp.zeros((4, LENGTH, WIDTH)) if cache is None else cache

    def step(carry: Any, i: Any) -> Any:
        x, cache = attend(w, carry[0], carry[1], i, update)
        return (x, cache), x

    (_, cache), rows = lax.scan(step, (x, cache), jnp.arange(LENGTH))
    return rows, cache


def layers(w: Any, x: Any) -> Any:
    """Two scanned layers with a stacked cache, inside the loop over tokens."""

    def step(carry: Any, i: Any) -> Any:
        x, caches = lax.scan(lambda x, cache: attend(w, x, cache, i), *carry)
        return (x, caches), x

    return lax.scan(step, (x, jnp.zeros((2, 4, LENGTH, WIDTH))), jnp.arange(LENGTH))[1]


def rows_of(w: Any, x: Any, cache: Any = None) -> Any:
    return generate(w, x, cache)[0]


def stored(fn: Any, *args: Any, operation: str = "dynamic_update_slice", **settings: Any) -> str:
    """The precision in which the cache is stored."""
    seen = duotone.explain(fn, W, X, *args, dtype="bfloat16", **settings)
    (update,) = [o for o in seen.operations if o.operation == operation and len(o.shape) == 3]
    return update.stored


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("fn", [rows_of, layers])
def test_a_cache_is_half_and_each_number_stays_the_same(fn, half):
    assert stored(fn) == "half"
    full = duotone.Policy(rules_remove=KEEPS)
    assert stored(fn, policy=full) == "full"
    found = jax.jit(duotone.autocast(fn, dtype=half))(W, X)
    wanted = jax.jit(duotone.autocast(fn, dtype=half, policy=full))(W, X)
    np.testing.assert_array_equal(found, wanted)


def test_an_argument_is_cast_before_the_loop():
    cache = jnp.ones((4, LENGTH, WIDTH))
    assert stored(rows_of, cache) == "half"
    program = traced(duotone.autocast(rows_of, dtype="bfloat16"), W, X, cache)
    (scan,) = named(program, "scan")
    assert "bf16[4,16,32]" in [atom.aval.str_short(short_dtypes=True) for atom in scan.invars]


def test_a_cache_that_is_returned_or_read_in_float32_stays_float32():
    assert stored(generate) == "full"

    def measured(w: Any, x: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            x, cache = attend(w, carry[0], carry[1], i)
            return (x, cache), (x, jnp.exp(cache).sum())

        return lax.scan(step, (x, jnp.zeros((4, LENGTH, WIDTH))), jnp.arange(LENGTH))[1]

    assert stored(measured) == "full"


def test_a_carry_that_computes_stays_float32():
    """Sums over iterations would be rounded in each of them."""

    def added(cache: Any, row: Any, i: Any) -> Any:
        return cache + write(jnp.zeros_like(cache), row, i)

    def fn(w: Any, x: Any) -> Any:
        return generate(w, x, update=added)[0]

    assert stored(fn, operation="add") == "full"


def test_a_mask_may_write_the_cache():
    def masked(cache: Any, row: Any, i: Any) -> Any:
        return jnp.where((jnp.arange(LENGTH) == i)[None, :, None], row[:, None], cache)

    def fn(w: Any, x: Any) -> Any:
        return generate(w, x, update=masked)[0]

    found = jax.jit(duotone.autocast(fn, dtype="bfloat16"))(W, X)
    wanted = jax.jit(duotone.autocast(rows_of, dtype="bfloat16"))(W, X)
    np.testing.assert_array_equal(found, wanted)
    program = traced(duotone.autocast(fn, dtype="bfloat16"), W, X)
    (scan,) = named(program, "scan")
    assert "bf16[4,16,32]" in [atom.aval.str_short(short_dtypes=True) for atom in scan.invars]
