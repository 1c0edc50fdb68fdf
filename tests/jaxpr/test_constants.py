"""Large constants that a function closes over: cast once, not at each call."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.jaxpr.running import constants
from duotone.jaxpr.running.inside import collecting

SIZE = 256
TABLE = jax.random.normal(jax.random.key(0), (SIZE, SIZE))
X = jnp.ones((2, SIZE))


def casts(function: Any, *args: Any) -> list[tuple[int, ...]]:
    """Shapes of what a rewritten program casts to half."""
    found = []

    def look(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            to = eqn.params.get("new_dtype")
            if eqn.primitive.name == "convert_element_type" and to in (jnp.float16, jnp.bfloat16):
                found.append(eqn.invars[0].aval.shape)
            for param in eqn.params.values():
                inner = getattr(param, "jaxpr", param)
                if hasattr(inner, "eqns"):
                    look(inner)

    look(jax.make_jaxpr(function)(*args).jaxpr)
    return found


@pytest.fixture(params=["float16", "bfloat16"])
def half(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_program_holds_the_half(half: str) -> None:
    fast = duotone.autocast(lambda x: x @ TABLE, dtype=half)
    assert (SIZE, SIZE) not in casts(fast, X)
    as_argument = duotone.autocast(lambda x, table: x @ table, dtype=half)
    assert (SIZE, SIZE) in casts(as_argument, X, TABLE)
    np.testing.assert_array_equal(fast(X), as_argument(X, TABLE))
    np.testing.assert_allclose(
        jax.grad(lambda x: jnp.sum(jnp.sin(fast(x))))(X),
        jax.grad(lambda x: jnp.sum(jnp.sin(as_argument(x, TABLE))))(X),
        rtol=1e-3,
    )


def test_it_is_the_same_half_everywhere(half: str) -> None:
    first = constants.constant_in_half(TABLE, jnp.dtype(half), np.inf)
    assert constants.constant_in_half(TABLE, jnp.dtype(half), np.inf) is first
    assert first.dtype == half


def test_it_is_kept_no_longer_than_a_program_holds_it() -> None:
    before = len(constants._HALVES)
    table = jnp.ones((SIZE, SIZE))
    made = constants.constant_in_half(table, jnp.dtype("float16"), np.inf)
    assert len(constants._HALVES) == before + 1
    del table, made
    gc.collect()
    assert len(constants._HALVES) == before


def test_what_half_cannot_hold_becomes_its_largest_number() -> None:
    mask = jnp.where(jnp.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 2 == 0, 0.0, -1e9)
    mask = mask.at[0, 0].set(-jnp.inf)
    made = constants.constant_in_half(mask, jnp.dtype("float16"), 65504.0)
    assert (float(made[0, 0]), float(made[0, 1])) == (-np.inf, -65504.0)


def test_a_loop_finds_it_cast_before(half: str) -> None:
    def steps(x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ TABLE / 16), None), x, None, length=3)[0]

    fast = duotone.autocast(steps, dtype=half)
    assert (SIZE, SIZE) not in casts(fast, X)
    gradient = jax.grad(lambda x: jnp.sum(fast(x)))(X)
    want = jax.grad(lambda x: jnp.sum(steps(x)))(X)
    assert np.linalg.norm(gradient - want) < 0.1 * np.linalg.norm(want)


def test_explain_casts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must run nothing; so a program inside has the cast as an operation."""
    monkeypatch.setattr("duotone.jaxpr.running.rewrite.constant_in_half", None)
    fast = duotone.autocast(lambda x: x @ TABLE, dtype="float16")
    with pytest.raises(TypeError, match="not callable"):
        fast(X)
    with collecting():
        assert (SIZE, SIZE) in casts(fast, X)
