"""Reductions of windows and their gradients, elementwise: the same numbers as XLA's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import duotone
from duotone import _jax
from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import lower_for_values, paint_jaxpr
from duotone.jaxpr.rules import pooling
from tests.jaxpr.test_windows import CPU, rewritten, running

REDUCTIONS = {"max": (lax.max, -jnp.inf), "min": (lax.min, jnp.inf), "sum": (lax.add, 0.0)}
PRIMITIVES = ("reduce_window", "select_and_scatter")


def pool(name: str, window: tuple[int, ...], strides: tuple[int, ...], padding: Any) -> Any:
    operation, start = REDUCTIONS[name]
    return lambda x: lax.reduce_window(x, start, operation, window, strides, padding)


def gradient(reduce: Any) -> Any:
    """The gradient of a weighted sum: each window has another cotangent."""

    def weighted(x: Any) -> Any:
        made = reduce(x)
        return (made * jnp.cos(jnp.arange(made.size, dtype=made.dtype)).reshape(made.shape)).sum()

    return jax.grad(weighted)


def values(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    """Whole numbers from 0 to 3: most windows have several maxima."""
    return jnp.floor(jax.random.uniform(jax.random.key(seed), shape, maxval=4.0))


WINDOWS: list[tuple[tuple[int, ...], tuple[int, ...], Any]] = [
    ((1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    ((1, 3, 2, 1), (1, 1, 3, 1), "VALID"),
    ((1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    ((1, 4, 5, 1), (1, 3, 2, 1), ((0, 0), (3, 1), (0, 4), (0, 0))),
    ((1, 2, 3, 1), (1, 4, 2, 1), "VALID"),
    ((1, 1, 1, 2), (1, 1, 1, 1), "VALID"),
]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(("window", "strides", "padding"), WINDOWS)
def test_windows_and_their_gradients(
    window: tuple[int, ...], strides: tuple[int, ...], padding: Any, name: str
) -> None:
    reduce = pool(name, window, strides, padding)
    x = values((2, 9, 8, 3))
    for function in (reduce, gradient(reduce)):
        program, (found,) = rewritten(function, x, forms=CPU)
        np.testing.assert_allclose(found, function(x), rtol=1e-6, atol=1e-6)
        assert not any(primitive in program for primitive in PRIMITIVES)


def test_programs_without_half_run_by_such_forms_and_no_others() -> None:
    function = gradient(pool("max", (1, 3, 3, 1), (1, 2, 2, 1), "SAME"))
    x, at = values((2, 9, 8, 3)), jnp.arange(4)

    def both(x: Any) -> Any:
        picked = jax.grad(lambda rows: jnp.sum(rows[at, at - 3] ** 2))(x[0, :, 0])
        return function(x), picked  # optimization one_hot was chosen for mixed programs

    jaxpr = jax.make_jaxpr(both)(x)
    as_written = str(jax.make_jaxpr(_jax.jaxpr_as_fun(jaxpr))(x))
    for removed in ((), ("pooling",)):
        policy = duotone.Policy(optimizations_remove=removed)
        painted = paint_jaxpr(jaxpr, policy, HALF_TYPES["bfloat16"], forms=CPU)
        run = lower_for_values(jaxpr, painted)
        program = jax.make_jaxpr(run)(x)
        by_forms = not any(primitive in running(program) for primitive in PRIMITIVES)
        assert painted.changed == by_forms == (not removed)
        assert by_forms or str(program) == as_written
        for found, wanted in zip(run(x), both(x), strict=True):
            np.testing.assert_array_equal(found, wanted)
    seen = duotone.explain(both, x, dtype="bfloat16").summary
    assert (seen.operations_half, set(seen.optimizations)) == (0, {"pooling"})


@pytest.mark.parametrize("size", [(11,), (4, 5, 6)])
def test_one_and_three_axes(size: tuple[int, ...]) -> None:
    ones = (1,) * len(size)
    window, strides = ((1, *(factor * one for one in ones), 1) for factor in (3, 2))
    function = gradient(pool("max", window, strides, "SAME"))
    x = values((2, *size, 3))
    program, (found,) = rewritten(function, x, forms=CPU)
    np.testing.assert_allclose(found, function(x), rtol=1e-6)
    assert not any(primitive in program for primitive in PRIMITIVES)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["max", "min"])
def test_no_cotangent_is_lost_to_numbers_that_are_not_finite(name: str, special: float) -> None:
    """Planted fault: without the frame of truth values, the padding is selected."""
    window, strides, padding = WINDOWS[0]
    x = values((2, 9, 8, 3)).at[:, ::2].set(special).at[1].set(special)
    reduce = pool(name, window, strides, padding)
    _, (found,) = rewritten(reduce, x, forms=CPU)
    np.testing.assert_array_equal(found, reduce(x))
    _, (found,) = rewritten(gradient(reduce), x, forms=CPU)
    cotangents = np.cos(np.arange(np.size(reduce(x)), dtype=np.float32))
    np.testing.assert_allclose(np.sum(found), np.sum(cotangents), rtol=1e-5)


def test_sums_of_half_operands_are_float32() -> None:
    """Planted fault: added up in bfloat16, 300 ones are 256."""

    def total(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (100,), (1,), "VALID")

    x = jnp.full((100,), 3, jnp.bfloat16)
    (eqn,) = jax.make_jaxpr(total)(x).jaxpr.eqns
    np.testing.assert_array_equal(pooling.pooled(eqn, x), np.array([300.0]))


@pytest.mark.parametrize(
    ("window", "strides"),
    [((1, 2, 2, 1), (1, 2, 2, 1)), ((1, 12, 12, 1), (1, 1, 1, 1))],
    ids=["no overlap", "many elements"],
)
def test_other_windows_stay(window: tuple[int, ...], strides: tuple[int, ...]) -> None:
    x = jnp.ones((1, 16, 16, 2))
    assert "reduce_window" in rewritten(pool("max", window, strides, "SAME"), x, forms=CPU)[0]


def test_gradients_without_overlap_and_float64_and_switches() -> None:
    function = gradient(pool("max", (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    x = values((2, 9, 8, 3))
    program, (found,) = rewritten(function, x, forms=CPU)
    assert "select_and_scatter" not in program
    np.testing.assert_allclose(found, function(x), rtol=1e-6)
    assert "select_and_scatter" in rewritten(function, x, removed=("pooling",), forms=CPU)[0]
    assert "select_and_scatter" in rewritten(function, x, forms=TABLE["gpu"])[0]
    with jax.enable_x64(True):
        wide = x.astype("float64")
        assert "select_and_scatter" in rewritten(function, wide, forms=CPU)[0]


def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of several maxima is selected, not the first."""
    right = pooling._elements
    monkeypatch.setattr(pooling, "_elements", lambda *args: reversed(list(right(*args))))
    with pytest.raises(AssertionError):
        test_windows_and_their_gradients(*WINDOWS[0], "max")
