"""Operands that JAX traces and that are not arrays: mutable arrays (Refs), tokens, own types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import ShapedArray
from jax.experimental import hijax

import duotone
from duotone.blaming.findings import Verdict
from tests.jaxpr.programs import half

HiType: Any = hijax.HiType
X = jax.random.normal(jax.random.key(0), (4, 8))
W = jax.random.normal(jax.random.key(1), (8, 8)) / 3
PRODUCT = np.asarray((X @ W).sum(0))


def sums(start: float = 0.0) -> Any:
    return jax.new_ref(jnp.full(8, start))


def step(total: Any, x: Any, w: Any) -> Any:
    y = x @ w
    total[...] += lax.stop_gradient(y).sum(0)
    return (y * y).mean()


@pytest.mark.parametrize("inside_jit", [False, True])
def test_a_ref_is_written_to_and_new_ones_of_a_type_trace_once(inside_jit: bool) -> None:
    traces: list[Any] = []

    def counted(total: Any, x: Any, w: Any) -> Any:
        traces.append(total)
        return step(total, x, w)

    rewritten = half(counted)
    rewritten = jax.jit(rewritten) if inside_jit else rewritten
    for _ in range(5):
        total = sums(1.0)
        mean = rewritten(total, X, W)
        np.testing.assert_allclose(total[...], 1 + PRODUCT, atol=0.05)
        np.testing.assert_allclose(mean, ((X @ W) ** 2).mean(), rtol=0.02)
    assert len(traces) == 1


def test_refs_of_another_type_are_another_program() -> None:
    rewritten = half(lambda r, x, w: ((x @ w).astype(r.dtype) * r[...]).sum())
    for dtype in (jnp.float32, jnp.bfloat16):
        result = rewritten(jax.new_ref(jnp.ones((4, 8), dtype)), X, W)
        assert result.dtype == dtype
        np.testing.assert_allclose(result.astype(float), PRODUCT.sum(), rtol=0.05)


def test_a_ref_in_a_tree_and_in_a_loop() -> None:
    def function(state: Any, w: Any) -> Any:
        def body(carry: Any, row: Any) -> tuple[Any, None]:
            state["total"][...] += row @ w
            return carry, None

        return lax.scan(body, 0.0, X)[0]

    state = {"total": sums(), "scale": 2}
    half(function)(state, W)
    np.testing.assert_allclose(state["total"][...], PRODUCT, atol=0.05)


@pytest.mark.parametrize(
    "gradient",
    [
        lambda f: jax.grad(half(f), argnums=2),
        lambda f: half(jax.grad(f, argnums=2)),
        lambda f: duotone.grad(f, argnums=2, dtype="bfloat16"),
        lambda f: lambda *a: duotone.value_and_grad(f, 2, scale=8.0, dtype="float16")(*a)[1],
    ],
)
def test_gradients_by_other_arguments(gradient: Callable[..., Any]) -> None:
    expected = jax.grad(step, argnums=2)(sums(), X, W)
    for wrap in (lambda f: f, jax.jit):
        total = sums()
        found = wrap(gradient(step))(total, X, W)
        np.testing.assert_allclose(found, expected, atol=0.01)
        np.testing.assert_allclose(total[...], PRODUCT, atol=0.05)


def test_an_argument_that_is_a_ref_and_not_used() -> None:
    def function(w: Any, unused: Any) -> Any:
        return w @ w

    for kind in (function, jax.jit(function, donate_argnums=0)):
        np.testing.assert_allclose(half(kind)(W + 0, sums()), W @ W, atol=0.05)
    by_w = jax.grad(lambda w: half(function)(w, sums()).sum())(W)
    np.testing.assert_allclose(by_w, jax.grad(lambda w: (w @ w).sum())(W), atol=0.05)


def test_a_view_of_a_ref_is_no_part_of_the_program() -> None:
    traces: list[Any] = []

    def function(view: Any, w: Any) -> Any:
        traces.append(view)
        return view[...] @ w

    rewritten = half(function)
    seen = jax.jit(
        lambda i, w: rewritten(jax.new_ref(X).at[i], w)
    )  # no view outside of jit in 0.10
    for row in range(3):
        np.testing.assert_allclose(seen(jnp.int32(row), W), X[row] @ W, atol=0.05)
    assert len(traces) == 1


def test_what_jax_refuses_is_refused_in_its_own_words() -> None:
    total = sums()
    with pytest.raises(ValueError, match="references cannot be returned"):
        half(lambda r: r)(total)
    with pytest.raises(ValueError, match="only one reference"):
        half(lambda r, s: r[...] + s[...])(total, total)


def test_tokens_order_what_reads_them() -> None:
    def function(w: Any, token: Any) -> Any:
        return (w @ w).sum(), lax.after_all(token)

    token = lax.create_token()
    for rewritten in (half(function), jax.jit(half(function))):
        found, after = rewritten(W, token)
        assert jax.typeof(after) == jax.typeof(token)
        np.testing.assert_allclose(found, (W @ W).sum(), rtol=0.05, atol=0.05)
    gradient, _ = jax.grad(half(function), has_aux=True)(W, token)
    expected, _ = jax.grad(function, has_aux=True)(W, token)
    np.testing.assert_allclose(gradient, expected, atol=0.05)


@dataclasses.dataclass
class Box:
    """A value of a type that JAX does not know until it is registered, and that is not a pytree."""

    array: Any


@dataclasses.dataclass(frozen=True)
class BoxType(HiType):
    """The type of a box."""

    shape_inside: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoxType) and self.shape_inside == other.shape_inside

    def __hash__(self) -> int:
        return hash(self.shape_inside)

    def lo_ty(self) -> list[Any]:
        return [ShapedArray(self.shape_inside, jnp.dtype("float32"))]

    def lower_val(self, hi_val: Box) -> list[Any]:
        return [hi_val.array]

    def raise_val(self, *lo_vals: Any) -> Box:
        return Box(*lo_vals)


def test_a_type_that_is_registered_with_jax() -> None:
    hijax.register_hitype(Box, lambda box: BoxType(box.array.shape))
    traces: list[Any] = []

    def function(box: Any, w: Any) -> Any:
        traces.append(box)
        return box, w @ w

    rewritten = half(function)
    for number in range(3):
        box, product = rewritten(Box(jnp.full(3, float(number))), W)
        assert box.array[0] == number
        np.testing.assert_allclose(product, W @ W, atol=0.05)
    assert len(traces) == 1


# What runs a function to look at it leaves the caller's Refs as they are.


def test_explain_reads_a_ref_or_its_type() -> None:
    total = sums()
    for given in (total, jax.typeof(total)):
        found = duotone.explain(step, given, X, W, dtype="bfloat16")
        assert [o.paint for o in found.operations if o.operation == "dot_general"] == ["half"]


def test_blame_reads_what_a_ref_holds_and_changes_nothing() -> None:
    def doubled(held: Any, w: Any) -> Any:
        product = held[...] @ w
        held[...] = product
        return (product @ w).sum()

    held = jax.new_ref(X)
    assert duotone.blame(doubled, held, W, dtype="float16").verdict is Verdict.FINITE
    np.testing.assert_array_equal(held[...], X)
    large = jax.new_ref(X * 1e5)
    found = duotone.blame(doubled, large, W, dtype="float16")
    assert found.verdict is Verdict.OVERFLOW
    np.testing.assert_array_equal(large[...], X * 1e5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_blame_of_a_half_ref_that_the_function_makes(dtype: str) -> None:
    def function(x: Any, w: Any) -> Any:
        made = jax.new_ref(jnp.zeros((4, 8), dtype))
        made[...] = (x @ w).astype(dtype)
        return (jax.freeze(made).astype(jnp.float32) @ w).sum()

    found = duotone.blame(function, X, W, dtype=dtype)
    assert found.verdict is Verdict.FINITE
    assert max((s.error for s in found.errors), default=0.0) < 0.1


def test_calibrate_measures_and_changes_nothing() -> None:
    total = sums(3.0)
    found = duotone.calibrate(step, [(total, X, W)])
    assert found.values
    np.testing.assert_array_equal(total[...], 3.0)
