"""Variances in windows of a network's image (SSIM): as exact as the network's last dot."""

from __future__ import annotations

from collections.abc import Callable

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
    without = mixed(program, half, W, X, rules_remove={"distance"})
    assert not relative(without, want) < 5 * ours  # may be NaN


def test_the_variance_of_a_norm_keeps_its_operand_half() -> None:
    """A sum over whole axes: rules of their own keep what rounds there."""

    def norm(w: jax.Array, x: jax.Array) -> jax.Array:
        h = x @ jnp.tile(w, (1, 4))
        mean = jnp.mean(h, (1, 2), keepdims=True)
        spread = jnp.mean(h * h, (1, 2), keepdims=True) - mean**2
        return ((h - mean) * jax.lax.rsqrt(spread + 1e-5)) @ jnp.tile(w.T, (4, 1))

    seen = duotone.explain(norm, W, X, dtype="bfloat16")
    assert [o.paint for o in seen.operations if o.operation == "dot_general"] == ["half"] * 2
