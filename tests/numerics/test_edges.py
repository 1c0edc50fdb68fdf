"""Bounds just inside of an edge, and what is left of a function near its limit.

``clip(p, 1e-7, 1 - 1e-7)`` in half would clip at 1, and the logarithm after it be infinite; of
``1 - sigmoid(8)`` half leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.graph.graph import HALF_TYPES
from duotone.precision.classify.classes import _is_edge
from tests.numerics.oracle import EPSILON, HALVES, mixed, reference, relative

X = jnp.linspace(-1.0, 1.0, 64).reshape(8, 8)
W = jax.random.normal(jax.random.key(0), (8, 8)) * 2
TABLE = jnp.arange(8.0)
# Of the dots' operands alone, by a logit of 8 and its exponential.
ERROR = {"float16": 5e-3, "bfloat16": 4e-2}


def clipped(w: Any) -> Any:
    p = jnp.clip(jax.nn.sigmoid(X @ w), 1e-7, 1 - 1e-7)
    return -jnp.mean(jnp.log(p) + jnp.log(1 - p))


def guarded(w: Any) -> Any:
    return -jnp.mean(jnp.log(1 - jax.nn.sigmoid(X @ w) + 1e-7))


def squashed(w: Any) -> Any:
    return jnp.mean(jnp.log(1 - jnp.tanh(X @ w / 3) ** 2 + 1e-6))


def angular(w: Any) -> Any:
    h = X @ w + 1.0
    h = h / jnp.linalg.norm(h, axis=-1, keepdims=True)
    return jnp.mean(jnp.arccos(jnp.clip(h @ h.T, -1 + 1e-7, 1 - 1e-7)))


def inverted(w: Any) -> Any:
    return jnp.mean(jnp.arctanh(jnp.clip(jnp.tanh(X @ w), -1 + 1e-6, 1 - 1e-6)) ** 2)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("loss", [clipped, guarded, squashed, angular, inverted])
def test_losses_and_their_gradients(loss: Callable[[Any], Any], half: str) -> None:
    with jax.enable_x64(True):
        expected = jax.device_get(jax.value_and_grad(loss)(W.astype(jnp.float64)))
    for got in (
        duotone.autocast(jax.value_and_grad(loss), dtype=half)(W),
        jax.value_and_grad(duotone.autocast(loss, dtype=half))(W),
    ):
        for one, other in zip(jax.device_get(got), expected, strict=True):
            assert np.isfinite(one).all()
            if loss is not angular:  # of an angle of 0 the gradient is its rounding
                error = np.linalg.norm(one - other) / np.linalg.norm(other)
                assert error < ERROR[half]


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "index",
    [
        lambda h: jnp.clip(h, 0, 7.999),
        lambda h: jnp.minimum(jnp.maximum(h, 0), 7.999),
        lambda h: jnp.where(h < 7.999, jnp.maximum(h, 0), 7.999),
        lambda h: jnp.clip(h / 8, 0, 1 - 1e-6) * 8,
    ],
)
def test_an_index_stays_in_its_table(index: Callable[[Any], Any], half: str) -> None:
    f = lambda w: jnp.take(TABLE, jnp.floor(index(X @ w)).astype(jnp.int32))  # noqa: E731
    assert not np.isnan(f(W)).any()
    assert not np.isnan(duotone.autocast(f, dtype=half)(W)).any()


@pytest.mark.parametrize("half", HALF_TYPES.values(), ids=str)
@pytest.mark.parametrize("bound", [1 - 1e-7, -1 + 1e-6, 7.999, 255.99, 0.1, np.pi / 2 - 1e-6])
def test_an_edge(bound: float, half: Any) -> None:
    assert _is_edge(bound, half) == (half.rounded(bound) != bound)
    assert half.rounded(bound) == float(jnp.asarray(bound, half.name))


@pytest.mark.parametrize("half", HALF_TYPES.values(), ids=str)
@pytest.mark.parametrize("bound", [0.0, 1.0, 6.0, 0.5, -3.0, 1e4, 20.1, -1e9, 1e-6, np.inf])
def test_no_edge(bound: float, half: Any) -> None:
    assert not _is_edge(bound, half)


def test_activations_keep_their_precision() -> None:
    """Nothing looks closely at a GELU, a SiLU or a soft cap before the next dot."""

    def f(w: Any) -> Any:
        h = jax.nn.gelu(X @ w, approximate=False) + jax.nn.silu(X @ w) + jax.nn.relu6(X @ w)
        return jnp.sum(jax.nn.softmax(30 * jnp.tanh(h @ w.T / 30)) @ w)

    for program in (f, jax.grad(f)):
        record = duotone.explain(program, W, dtype="bfloat16")
        found = [
            o
            for o in record.operations
            if o.operation in ("logistic", "erf", "erfc", "tanh", "min")
        ]
        assert found
        assert not [o for o in found if o.rule == "deny"]


_PICKED = {
    "maximum": lambda x, h: jnp.maximum(h, x),
    "scatter max": lambda x, h: h.at[np.array([1, 0, 1])].max(x),
    "compared by hand": lambda x, h: (lambda m: jnp.where(m == x, 2 * m, m))(jnp.maximum(h, x)),
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", _PICKED)
def test_what_was_picked_from_full_and_half_values_is_found_again_among_them(name, half):
    """A maximum in half equals none of the full numbers that it was picked from."""

    def loss(x, y, w, u):
        return jnp.sum(jnp.tanh(_PICKED[name](x, y @ w) @ u))

    random = np.random.default_rng(0)
    args = [random.normal(size=s).astype(np.float32) for s in ((3, 8), (3, 8), (8, 8), (8, 8))]
    want = reference(jax.grad(loss), *args)
    got = mixed(jax.grad(loss), half, *args, ignore_performance=True)
    assert relative(got, want) < 8 * EPSILON[half]
