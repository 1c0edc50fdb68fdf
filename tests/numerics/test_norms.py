"""Layer norm, batch norm, guards and epsilons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.numerics.oracle import (
    HALVES,
    heavy_tails,
    mixed,
    on_by_dot,
    reference,
    through_dot,
    ulps,
)


def _layer_norm(x: Any, epsilon: float = 1e-5) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + epsilon)


def _batch_norm(x: Any, epsilon: float = 1e-5) -> Any:
    mean = jnp.mean(x, 0)
    variance = jnp.var(x, 0)
    return (x - mean) / jnp.sqrt(variance + epsilon)


def _rms_norm(x: Any, epsilon: float = 1e-6) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon)


_NORMS = {"layer": _layer_norm, "batch": _batch_norm, "rms": _rms_norm}
_ACTIVATIONS = {
    "heavy tails": heavy_tails(32, 64),
    "huge": heavy_tails(32, 64, scale=512.0),
    "tiny": heavy_tails(32, 64, scale=2.0**-8),
    "one large": np.where(np.arange(64) == 7, 3000.0, heavy_tails(32, 64)).astype(np.float32),
}


def _check(
    function: Callable[..., Any], inputs: list[np.ndarray], half: str, bound: float, **policy: Any
) -> None:
    """Compares each result with float64, in units at a sixteenth of its row's largest element."""
    answers = reference(function, *inputs)
    for got, want in zip(mixed(function, half, *inputs, **policy), answers, strict=True):
        largest = np.max(np.abs(want), -1, keepdims=True)
        error = ulps(got, want, half, np.maximum(np.abs(want), 2.0**-4 * largest))
        assert error <= bound, f"{error:.3g} ULP, more than {bound:.3g}"


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("norm", _NORMS)
def test_a_normalised_activation(norm: str, half: str) -> None:
    """Statistics and arithmetic in float32; the result is rounded to half once."""

    def function(activations: Any) -> Any:
        return jax.vmap(lambda x: on_by_dot(_NORMS[norm](through_dot(x))))(activations)

    _check(function, [np.stack(list(_ACTIVATIONS.values()))], half, bound=2)


def test_statistics_in_half_are_caught() -> None:
    """Squares of 512 overflow float16."""

    def function(x: Any) -> Any:
        return [on_by_dot(_layer_norm(through_dot(x), 1e-12))]

    with pytest.raises(AssertionError, match="ULP"):
        _check(function, [_ACTIVATIONS["huge"]], "float16", 2, keep_half=["*"])


@pytest.mark.parametrize("half", HALVES)
def test_epsilons_keep_rows_without_variance_finite(half: str) -> None:
    """0 * rsqrt(0 + 1e-12) is 0 in float32 and 0 * inf in float16."""
    x = np.full((4, 64), 3.0, np.float32)

    def function(x: Any) -> Any:
        h = through_dot(x)
        return [on_by_dot(_layer_norm(h, epsilon)) for epsilon in (1e-5, 1e-6, 1e-8, 1e-12)]

    for got in mixed(function, half, x):
        assert np.array_equal(got, np.zeros((4, 64), np.float32))


def _guard_max(h: Any, guard: float) -> Any:
    return h / jnp.maximum(jnp.sqrt(jnp.sum(h * h, -1, keepdims=True)), guard)


def _guard_add(h: Any, guard: float) -> Any:
    return h / (jnp.sum(jnp.abs(h), -1, keepdims=True) + guard)


def _guard_reciprocal(h: Any, guard: float) -> Any:
    return h * (1.0 / (jnp.sum(jnp.abs(h), -1, keepdims=True) + guard))


def _guard_elementwise(h: Any, guard: float) -> Any:
    return h / (jnp.abs(h) + guard)


def _guard_clip(h: Any, guard: float) -> Any:
    return h / jnp.clip(jnp.max(jnp.abs(h), -1, keepdims=True), guard, None)


_GUARDS = {
    f.__name__.removeprefix("_guard_"): f
    for f in (_guard_max, _guard_add, _guard_reciprocal, _guard_elementwise, _guard_clip)
}


@pytest.mark.parametrize("half", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", _GUARDS)
def test_guards_keep_rows_of_zeros_finite(form: str, half: str) -> None:
    x = np.concatenate([np.zeros((4, 64), np.float32), heavy_tails(4, 64)])

    def function(x: Any) -> Any:
        h = through_dot(x)
        return [on_by_dot(_GUARDS[form](h, guard)) for guard in (1e-6, 1e-8, 1e-12)]

    _check(function, [x], half, bound=2)


def test_a_guard_in_half_is_caught() -> None:
    def function(x: Any) -> Any:
        return on_by_dot(_guard_max(through_dot(x), 1e-8))

    x = np.zeros((4, 64), np.float32)
    assert np.isfinite(mixed(function, "float16", x)).all()
    assert not np.isfinite(mixed(function, "float16", x, keep_half=["*"])).all()


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("norm", _NORMS)
def test_gradients(norm: str, half: str) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(jnp.tanh(on_by_dot(_NORMS[norm](through_dot(x)))))

    x = _ACTIVATIONS["heavy tails"]
    want, got = reference(jax.grad(loss), x), mixed(jax.grad(loss), half, x)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error < {"float16": 2e-3, "bfloat16": 1.6e-2}[half]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("distance", [0.03, 0.3])
def test_the_gradient_of_a_cosine_of_near_directions(distance: float, half: str) -> None:
    """What comes from the product and from the norms cancels; as with dots alone in half."""
    x = jax.random.normal(jax.random.key(0), (2, 64, 16))
    w = jax.random.normal(jax.random.key(1), (16, 16))

    def loss(w: Any) -> Any:
        a, b = jnp.asarray(x[0], w.dtype) @ w, jnp.asarray(x[0] + distance * x[1], w.dtype) @ w
        lengths = jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1)
        return jnp.mean(1 - jnp.sum(a * b, -1) / jnp.maximum(lengths, 1e-8))

    want = reference(jax.grad(loss), w)
    ours, dots = (
        np.linalg.norm(mixed(jax.grad(loss), half, w, **policy) - want)
        for policy in ({}, {"level": "TENSOR_CORES_ONLY"})
    )
    assert ours <= 1.5 * dots
