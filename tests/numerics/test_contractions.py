"""Dots and convolutions accumulate in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone import autocast
from duotone.jaxpr.rules import half_rules
from tests.numerics.oracle import HALVES, cancelling, heavy_tails, mixed, on_by_dot, ulps

_LONG = 4096
_KINDS = ("ones", "heavy tails", "cancelling")


def _dot(x: Any, w: Any) -> Any:
    return on_by_dot(x @ w)  # read by an allow operation, so stored half


def _dot_wide(x: Any, w: Any) -> Any:
    return x @ w


def _batched(x: Any, w: Any) -> Any:
    return jnp.einsum("bi,bij->bj", x, jnp.stack([w] * x.shape[0]))


def _transposed(x: Any, w: Any) -> Any:
    return jax.lax.dot_general(w, x.T, (((0,), (0,)), ((), ()))).T


def _conv(x: Any, w: Any) -> Any:
    images = x.reshape(x.shape[0], -1, 4, 4)
    kernels = w.T.reshape(w.shape[1], -1, 4, 4)
    return jax.lax.conv(images, kernels, (1, 1), "VALID").reshape(x.shape[0], -1)


_FORMS = {f.__name__.strip("_"): f for f in (_dot, _dot_wide, _batched, _transposed, _conv)}


def _inputs(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Operands that half holds exactly: all error is the accumulation's."""
    signs = np.where(np.arange(_LONG * 8) % 3, 0.5, -0.25).astype(np.float32)
    if kind == "ones":
        return np.ones((3, _LONG), np.float32), np.ones((_LONG, 8), np.float32)
    if kind == "heavy tails":
        return heavy_tails(3, _LONG), signs.reshape(_LONG, 8)
    return cancelling(3, _LONG), np.ones((_LONG, 8), np.float32)


def _check(function: Callable[..., Any], half: str, kinds: tuple[str, ...] = _KINDS) -> None:
    """One rounding to half, and float32's error on the sum of magnitudes."""
    painted = autocast(function, dtype=half)  # one program for all kinds
    for kind in kinds:
        x, w = _inputs(kind)
        want = x.astype(np.float64) @ w.astype(np.float64)
        magnitudes = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
        error = np.abs(np.asarray(painted(x, w), np.float64) - want)
        spacing = np.spacing(np.abs(want).astype(np.float16 if half == "float16" else np.float32))
        unit = spacing.astype(np.float64) * (1.0 if half == "float16" else 2.0**16)
        bound = 0.51 * unit + 64 * 2.0**-24 * magnitudes
        assert (error <= bound).all(), f"{kind}: {np.max(error / bound):.3g} times the bound"


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("form", _FORMS)
def test_accumulation(form: str, half: str) -> None:
    _check(_FORMS[form], half)


def _half_accumulator(r: Any, step: Any, env: Any, operands: Sequence[Any]) -> list[Any]:
    """A dot that adds its products up in half, one by one: the planted fault."""
    x, w = operands

    def add(total: Any, column_and_row: Any) -> tuple[Any, None]:
        column, row = column_and_row
        return total + column[:, None] * row, None

    start = jnp.zeros((x.shape[0], w.shape[1]), r.half)
    return [jax.lax.scan(add, start, (x.T, w))[0]]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", _KINDS)
def test_a_half_accumulator_is_caught(
    kind: str, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(half_rules._BINDING_RULES, "dot_general", _half_accumulator)
    with pytest.raises(AssertionError, match="times the bound"):
        _check(_dot_wide, half, (kind,))


@pytest.mark.parametrize("half", HALVES)
def test_the_accumulator_itself_is_handed_on_where_the_result_is_returned(half: str) -> None:
    """Rule ``wide``: no rounding to half at all."""
    x, w = _inputs("heavy tails")
    want = x.astype(np.float64) @ w.astype(np.float64)
    scale = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
    assert ulps(mixed(_dot_wide, half, x, w), want, "float32", scale) < 16


@pytest.mark.parametrize("half", HALVES)
def test_weight_gradients_accumulate_in_float32(half: str) -> None:
    """A sum over a long batch, of both signs."""
    x = cancelling(8, _LONG).T.copy()
    gradient = np.ones((_LONG, 2), np.float32)

    def loss(w: Any) -> Any:
        return jnp.sum((x @ w) * gradient)

    want = x.astype(np.float64).T @ gradient
    scale = np.abs(x).astype(np.float64).T @ gradient
    got = mixed(jax.grad(loss), half, np.zeros((8, 2), np.float32))
    assert ulps(got, want, "float32", scale) < 16


def test_a_convolution_gradient_accumulates_in_float32() -> None:
    images = heavy_tails(8, 2, 16, 16)
    kernel = np.zeros((2, 2, 3, 3), np.float32)

    def loss(k: Any, images: Any) -> Any:
        return jnp.sum(jax.lax.conv(images, k, (1, 1), "VALID"))

    padded = images.astype(np.float64)
    want = np.stack(
        [
            [
                [[padded[:, c, i : i + 14, j : j + 14].sum() for j in range(3)] for i in range(3)]
                for c in range(2)
            ]
        ]
        * 2
    )
    for half in HALVES:
        assert ulps(mixed(jax.grad(loss), half, kernel, images), want, half) <= 0.51
