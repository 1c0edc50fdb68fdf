"""Second moments of a network's results (SSIM, CORAL): as exact as with the network in half."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative
from tests.numerics.test_everyday import by_hand

X = jax.random.normal(jax.random.key(0), (2, 16, 16, 8)) / 10
W = jax.random.normal(jax.random.key(1), (8, 3)) / 3
SIGNS = np.sign(np.random.default_rng(2).standard_normal((2, 16, 16, 3))).astype(np.float32)
BLUR = np.outer(*[np.exp(-(np.arange(-2, 3) ** 2) / 2)] * 2)
Weigh = Callable[[jax.Array], jax.Array]


def blur(x: jax.Array) -> jax.Array:
    window = jnp.asarray(BLUR / BLUR.sum(), x.dtype)[:, :, None, None]
    return jax.lax.conv_general_dilated(
        x,
        jnp.tile(window, (1, 1, 1, 3)),
        (1, 1),
        "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=3,
    )


def pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 4, 4, 1), (1, 1, 1, 1), "VALID") / 16


def variance(y: jax.Array, target: jax.Array, weigh: Weigh) -> jax.Array:
    return weigh(y * y) - weigh(y) ** 2


def structure(y: jax.Array, target: jax.Array, weigh: Weigh) -> jax.Array:
    """The second factor of SSIM; both variances are one window's sum, as in ``tf.image.ssim``."""
    mean, other = weigh(y), weigh(target)
    covariance = weigh(y * target) * 2 - mean * other * 2
    variances = weigh(y * y + target * target) - (mean * mean + other * other)
    return (covariance + 1e-4) / (variances + 1e-4)


def gradient(function: Callable[..., jax.Array], weigh: Weigh) -> Callable[..., jax.Array]:
    """The gradient with respect to the weights of the network that makes the image."""

    def loss(w: jax.Array, x: jax.Array, dot: Callable[..., jax.Array]) -> jax.Array:
        y, target = (jax.nn.sigmoid(dot("nhwc,cd->nhwd", v, w)) for v in (x, 1.05 * x))
        result = function(y, jax.lax.stop_gradient(target), weigh)
        return jnp.sum(result * SIGNS[:, : result.shape[1], : result.shape[2]])

    return lambda w, x, dot=jnp.einsum: jax.grad(loss)(w, x, dot)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("weigh", [blur, pool])
@pytest.mark.parametrize("function", [variance, structure])
def test_variances_are_as_exact_as_with_the_network_in_half(
    function: Callable[..., jax.Array], weigh: Weigh, half: str
) -> None:
    program = gradient(function, weigh)
    want = reference(program, W, X)
    hand = relative(jax.jit(lambda w, x: program(w, x, by_hand(half, True)))(W, X), want)
    ours = relative(mixed(program, half, W, X), want)
    assert ours < 1.5 * hand
    # Rule `cancellation` alone keeps the sigmoid, since the window sums it.
    without = mixed(program, half, W, X, rules_remove={"distance", "cancellation"})
    assert not relative(without, want) < 5 * ours  # may be NaN


FEATURES = jax.random.normal(jax.random.key(3), (256, 64))
LAYER = jax.random.normal(jax.random.key(4), (64, 64)) / 8


def covariance(f: jax.Array) -> jax.Array:
    mean = f.mean(0, keepdims=True)
    return f.T @ f / f.shape[0] - mean.T @ mean


def covariance_by_sums(f: jax.Array) -> jax.Array:
    total = f.sum(0, keepdims=True)
    return (f.T @ f - total.T @ total / f.shape[0]) / (f.shape[0] - 1)


def coral(w: jax.Array, x: jax.Array, compute: Any, dot: Any = jnp.einsum) -> jax.Array:
    """Two domains' features have the same covariance (Sun and Saenko, 2016)."""
    one, other = (3.0 + 0.3 * dot("nc,cd->nd", v, w) for v in (x, x[::-1] * 1.5))
    return jnp.sum((compute(one) - compute(other)) ** 2)


def weighed(w: jax.Array, x: jax.Array, compute: Any, dot: Any = jnp.einsum) -> jax.Array:
    """A loss whose derivative does not depend on the covariance."""
    return jnp.sum(compute(3.0 + 0.3 * dot("nc,cd->nd", x, w)) * jnp.sin(x[:64]))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("compute", [covariance, covariance_by_sums])
@pytest.mark.parametrize("loss", [coral, weighed])
def test_gradients_of_covariances_are_as_exact_as_with_the_network_in_half(
    loss: Any, compute: Any, half: str
) -> None:
    def program(w: jax.Array, x: jax.Array, dot: Any = jnp.einsum) -> jax.Array:
        return jax.grad(loss)(w, x, compute, dot)

    want = reference(program, LAYER, FEATURES)
    hand = relative(jax.jit(lambda w, x: program(w, x, by_hand(half, True)))(LAYER, FEATURES), want)
    ours = relative(mixed(program, half, LAYER, FEATURES), want)
    assert ours < 1.5 * hand
    without = mixed(program, half, LAYER, FEATURES, rules_remove={"distance"})
    assert not relative(without, want) < 4 * ours


def test_a_layer_before_a_covariance_stays_half() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(covariance(x @ w) ** 2) + jnp.sum(jax.nn.relu(x @ w) @ w)

    seen = duotone.explain(loss, LAYER, FEATURES, dtype="bfloat16")
    dots = [o.paint for o in seen.operations if o.operation == "dot_general"]
    assert dots.count("half") >= 2


def test_the_variance_of_a_norm_keeps_its_operand_half() -> None:
    """A sum over whole axes: rules of their own keep what rounds there."""

    def norm(w: jax.Array, x: jax.Array) -> jax.Array:
        h = x @ jnp.tile(w, (1, 4))
        mean = jnp.mean(h, (1, 2), keepdims=True)
        spread = jnp.mean(h * h, (1, 2), keepdims=True) - mean**2
        return ((h - mean) * jax.lax.rsqrt(spread + 1e-5)) @ jnp.tile(w.T, (4, 1))

    seen = duotone.explain(norm, W, X, dtype="bfloat16")
    assert [o.paint for o in seen.operations if o.operation == "dot_general"] == ["half"] * 2
