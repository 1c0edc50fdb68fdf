"""What is left of a value without an average of its neighbours: the two agree to many digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative

W = jax.random.normal(jax.random.key(0), (16, 16)) / 40
X = jax.random.normal(jax.random.key(1), (64, 16))
B = jnp.full(16, 50.0)
LINKS = (jax.random.uniform(jax.random.key(2), (64, 64)) > 0.8).astype(jnp.float32)


def laplacian(w: Any, x: Any, b: Any, links: Any) -> Any:
    h = x @ w + b
    return jnp.sum(links, 1)[:, None] * h - links @ h


def normalized(w: Any, x: Any, b: Any, links: Any) -> Any:
    """Differences from the mean of the neighbours, which a next layer reads."""
    h = x @ w + b
    return (h - (links @ h) / jnp.sum(links, 1)[:, None]) @ w


def detrended(w: Any, x: Any, b: Any, links: Any) -> Any:
    """A signal without its moving average."""
    h = (x @ w + b).T[:, :, None]
    axes = ("NWC", "WIO", "NWC")
    window = jnp.full((8, 1, 1), 1 / 8, x.dtype)
    mean = jax.lax.conv_general_dilated(h, window, (1,), "VALID", dimension_numbers=axes)
    return (h[:, 4:61] - mean)[..., 0].T


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [laplacian, normalized, detrended])
def test_a_rest_is_as_exact_as_its_value(function: Callable[..., Any], half: str) -> None:
    want = reference(function, W, X, B, LINKS)
    limit = {"float16": 0.003, "bfloat16": 0.02}[half]
    assert relative(mixed(function, half, W, X, B, LINKS), want) < limit
    without = mixed(function, half, W, X, B, LINKS, rules_remove={"distance"})
    assert relative(without, want) > 8 * limit


BASIS = jnp.linalg.qr(jax.random.normal(jax.random.key(3), (16, 8)))[0]
FLAT = 10 * X @ BASIS @ BASIS.T + 0.05 * X
"""Points near a plane: an anomaly is what the projection on the plane leaves."""


def anomaly(basis: Any, x: Any) -> Any:
    return x - (x @ basis) @ basis.T


def anomaly_of_matrices(basis: Any, x: Any) -> Any:
    """The projection is weighted, and the points are columns."""
    weights = jnp.sum(basis**2, 0)[:, None]
    return x.T - basis @ (weights * (basis.T @ x.T))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [anomaly, anomaly_of_matrices])
def test_what_a_projection_leaves_is_as_exact_as_its_value(
    function: Callable[..., Any], half: str
) -> None:
    want = reference(function, BASIS, FLAT)
    assert relative(mixed(function, half, BASIS, FLAT), want) < 1e-4
    without = mixed(function, half, BASIS, FLAT, rules_remove={"distance"})
    assert relative(without, want) > 0.02


def test_a_short_dot_is_on_the_way_of_a_projection() -> None:
    short = BASIS[:, :4]
    assert not duotone.explain(anomaly, short, FLAT, dtype="bfloat16").summary.operations_half


SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)
RING = (2 * np.eye(64) - np.roll(np.eye(64), 1, 0) - np.roll(np.eye(64), -1, 0)).astype(np.float32)


def edges(w: Any, x: Any) -> Any:
    """A filter of image processing on a network's image."""
    y = jax.nn.sigmoid(x @ w)
    kernel = jnp.asarray(SOBEL, x.dtype)[None, None]
    return jax.lax.conv(y[None, None], kernel, (1, 1), "VALID")


def laplacian_of_a_known_graph(w: Any, x: Any) -> Any:
    return jnp.asarray(RING, x.dtype) @ jax.nn.sigmoid(x @ w)


def second_derivative(w: Any, x: Any) -> Any:
    """The left side of a differential equation on a grid, for a loss of physics."""
    stencil = jnp.array([1.0, -2.0, 1.0], x.dtype) / 0.01
    return jax.vmap(lambda u: jnp.convolve(u, stencil, mode="valid"))(jax.nn.sigmoid(x @ w))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [edges, laplacian_of_a_known_graph, second_derivative])
def test_a_difference_by_a_constant_is_as_exact_as_the_last_dot(
    function: Callable[..., Any], half: str
) -> None:
    want = reference(function, W, X)
    limit = {"float16": 0.001, "bfloat16": 0.008}[half]
    assert relative(mixed(function, half, W, X), want) < limit
    without = mixed(function, half, W, X, rules_remove={"distance"})
    assert relative(without, want) > 4 * limit


def alignment(w: Any, x: Any, dot: Callable[[Any, Any], Any] = jnp.matmul) -> Any:
    """The gradient of a centred kernel alignment, whose centring matrix the program computes."""

    def loss(w: Any) -> Any:
        y, size = jax.nn.sigmoid(dot(x, w)), len(x)
        centre = jnp.eye(size, dtype=x.dtype) - jnp.ones((size, size), x.dtype) / size
        one, other = (centre @ (v @ v.T) @ centre for v in (y, x))
        return jnp.sum(one * other) / jnp.sqrt(jnp.sum(one**2) * jnp.sum(other**2))

    return jax.grad(loss)(w)


@pytest.mark.parametrize("half", HALVES)
def test_a_computed_centring_is_as_exact_as_by_hand(half: str) -> None:
    def by_hand(x: Any, w: Any) -> Any:
        return jnp.matmul(x.astype(half), w.astype(half)).astype(jnp.float32)

    want = reference(alignment, W, X)
    found, hand = mixed(alignment, half, W, X), alignment(W, X, by_hand)
    assert relative(found, want) < 2 * relative(hand, want)
    without = mixed(alignment, half, W, X, rules_remove={"distance"})
    assert relative(without, want) > 10 * relative(hand, want)


def applied(w: Any, x: Any, links: Any) -> Any:
    """The Laplacian of a graph that is an argument."""
    return (jnp.diag(jnp.sum(links, 1)) - links) @ jax.nn.sigmoid(x @ w)


def energy(w: Any, x: Any, links: Any) -> Any:
    """The same, written with a product, in a quadratic form of each feature."""
    y = jax.nn.sigmoid(x @ w)
    degrees = jnp.eye(len(links), dtype=x.dtype) * jnp.sum(links, 1)[:, None]
    return jnp.diag(y.T @ (links - degrees) @ y)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [applied, energy])
def test_a_computed_laplacian_is_as_exact_as_the_last_dot(
    function: Callable[..., Any], half: str
) -> None:
    want = reference(function, W, X, LINKS)
    limit = {"float16": 0.001, "bfloat16": 0.008}[half]
    assert relative(mixed(function, half, W, X, LINKS), want) < limit
    without = mixed(function, half, W, X, LINKS, rules_remove={"distance"})
    assert relative(without, want) > 4 * limit


PAIR = np.stack([np.eye(64), -np.eye(64)]).astype(np.float32)


@pytest.mark.parametrize(
    "constant",
    [
        lambda: abs(RING),
        lambda: jnp.abs(jnp.asarray(RING)),
        lambda: jnp.asarray(PAIR)[0],
        lambda: 1 - jnp.eye(64),
    ],
    ids=["averages", "absolute", "a part", "one sign"],
)
def test_a_constant_that_does_not_cancel_reads_half(constant: Callable[[], Any]) -> None:
    def weighed(w: Any, x: Any) -> Any:
        return jnp.asarray(constant(), x.dtype) @ jax.nn.sigmoid(x @ w)

    seen = duotone.explain(weighed, W, X, dtype="bfloat16")
    assert {o.paint for o in seen.operations if o.operation == "dot_general"} == {"half"}


def adapter(w: Any, x: Any, b: Any, links: Any) -> Any:
    return (x + (x @ w) @ w.T) @ w


def autoencoder(w: Any, x: Any, b: Any, links: Any) -> Any:
    return (x - jnp.tanh(x @ w) @ w.T) @ w


def small_step(w: Any, x: Any, b: Any, links: Any) -> Any:
    return (x - 0.1 * (links @ x)) @ w


def residual(w: Any, x: Any, b: Any, links: Any) -> Any:
    return (x + links @ x) @ w


def two_layers(w: Any, x: Any, b: Any, links: Any) -> Any:
    return (x - jax.nn.relu(links @ x)) @ w


def centred(w: Any, x: Any, b: Any, links: Any) -> Any:
    return (jnp.mean(x, 1, keepdims=True) - x) @ w


OTHERS = [small_step, residual, two_layers, adapter, autoencoder, centred]


@pytest.mark.parametrize("function", OTHERS)
def test_what_cancels_nothing_stays_half(function: Callable[..., Any]) -> None:
    seen = duotone.explain(function, W, X, B, LINKS, dtype="bfloat16")
    assert {o.paint for o in seen.operations if o.operation == "dot_general"} == {"half"}
