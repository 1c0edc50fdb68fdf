"""Whole training steps: state is computed in float32, gradients are as good as half allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.numerics.oracle import (
    EPSILON,
    HALVES,
    cancelling,
    heavy_tails,
    mixed,
    reference,
    relative,
    ulps,
)

_BATCH, _WIDTH, _CLASSES = 16, 24, 8


def _params() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {
        "w": (random.normal(size=(_WIDTH, _WIDTH)) / 5).astype(np.float32),
        "b": random.normal(size=_WIDTH).astype(np.float32),
        "v": (random.normal(size=(_WIDTH, _CLASSES)) / 5).astype(np.float32),
    }


def _loss(params: Any, x: Any) -> Any:
    hidden = jax.nn.softplus(x @ params["w"] + params["b"])  # no kink: rounding flips nothing
    labels = np.arange(_BATCH) % _CLASSES
    losses = optax.softmax_cross_entropy_with_integer_labels(hidden @ params["v"], labels)
    return jnp.mean(losses)


_X = heavy_tails(_BATCH, _WIDTH)
_OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(1e-3),
    "momentum": lambda: optax.sgd(1e-3, momentum=0.9),
    "adam": lambda: optax.adam(1e-4),
    "clipped adamw": lambda: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.1)
    ),
}


def _step(optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """Returns the update as well: the new weights must be old weights plus update, in float32."""

    def step(params: Any, state: Any, x: Any) -> Any:
        gradients = jax.grad(_loss)(params, x)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, updates

    return step


def _check_update(name: str, half: str, **policy: Any) -> None:
    optimizer = _OPTIMIZERS[name]()
    params = _params()
    state = optimizer.init(params)
    step = _step(optimizer)
    new, new_state, updates = mixed(step, half, params, state, _X, **policy)
    want, want_state, _ = reference(step, params, state, _X)
    for key, old in params.items():
        exact = old.astype(np.float64) + updates[key]
        assert ulps(new[key], exact, "float32") <= 1, f"{key}: the new weights are rounded"
        moved = relative(new[key] - old.astype(np.float64), want[key] - old)
        # Adam divides a gradient by its own size: the first step is its sign, right or wrong.
        bound = 0.3 if "adam" in name else 4 * EPSILON[half]
        assert moved < bound, f"{key}: update off by {moved:.3g}"
    for got, other in zip(jax.tree.leaves(new_state), jax.tree.leaves(want_state), strict=True):
        if np.any(other):
            assert relative(got, other) < 4 * EPSILON[half], "optimizer state"


_QUICK = {("adam", "float16"), ("momentum", "bfloat16")}


@pytest.mark.parametrize(
    ("name", "half"),
    [
        pytest.param(name, half, marks=[] if (name, half) in _QUICK else pytest.mark.slow)
        for name in _OPTIMIZERS
        for half in HALVES
    ],
)
def test_a_step(name: str, half: str) -> None:
    _check_update(name, half)


def _adapted(w: Any, v: Any, x: Any) -> Any:
    """A loss after a step of Adam, whose second moment is a multiple of a square."""

    def loss(w: Any) -> Any:
        return 1e-2 * jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - 1) ** 2)

    gradient = jax.grad(loss)(w)
    second = 0.999 * v + 0.001 * gradient * gradient
    step = gradient / (jnp.sqrt(second) + 1e-8)
    return loss(w - 1e-3 * step), step


@pytest.mark.parametrize("half", HALVES)
def test_a_second_moment_does_not_vanish(half: str) -> None:
    """In float16 it was 0 in places, and the step as large as the reciprocal of the guard."""
    random = np.random.default_rng(0)
    w = (random.normal(size=(2, _WIDTH, _WIDTH)) / 5).astype(np.float32)
    v = (random.normal(size=w.shape) ** 2 * 1e-8).astype(np.float32)
    program = jax.value_and_grad(_adapted, has_aux=True)
    (_, step), gradient = mixed(program, half, w, v, _X)
    (_, want), exact = reference(program, w, v, _X)
    assert relative(step, want) < 4 * EPSILON[half]
    assert relative(gradient, exact) < 8 * EPSILON[half]


@pytest.mark.parametrize("half", ["float16"])
def test_a_half_update_is_caught(half: str) -> None:
    with pytest.raises(AssertionError, match=r"rounded|update off|state"):
        _check_update("momentum", half, keep_half=["*"])


# ----------------------------------------- a second network reads the new weights (GAN)


def _gan_step(generator: Any, discriminator: Any, noise: Any, real: Any) -> Any:
    def fake(g: Any) -> Any:
        return jnp.tanh(noise @ g)

    def score(d: Any, images: Any) -> Any:
        return jax.nn.relu(images @ d["w"]) @ d["v"]

    def d_loss(d: Any) -> Any:
        g = jax.lax.stop_gradient(fake(generator))
        return jnp.mean(jax.nn.softplus(-score(d, real))) + jnp.mean(jax.nn.softplus(score(d, g)))

    def step(weights: Any, gradients: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 1e-2 * g, weights, gradients)

    discriminator = step(discriminator, jax.grad(d_loss)(discriminator))

    def g_loss(g: Any) -> Any:
        return jnp.mean(jax.nn.softplus(-score(discriminator, fake(g))))

    return step(generator, jax.grad(g_loss)(generator)), discriminator


def _gan_inputs() -> tuple[Any, ...]:
    p = _params()
    noise, real = heavy_tails(_BATCH, _WIDTH, seed=5), heavy_tails(_BATCH, _WIDTH, seed=6)
    return p["w"], {"w": p["w"].T.copy(), "v": p["v"][:, :1]}, noise, real


def _check_gan(half: str, **policy: Any) -> None:
    old = _gan_inputs()[:2]
    got = mixed(_gan_step, half, *_gan_inputs(), **policy)
    want = reference(_gan_step, *_gan_inputs())
    for was, one, other in zip(*map(jax.tree.leaves, (old, got, want)), strict=True):
        error = relative(one.astype(np.float64) - was, other - was)
        assert error < 16 * EPSILON[half], f"update off by {error:.3g}"


@pytest.mark.parametrize("half", [pytest.param("float16", marks=pytest.mark.slow), "bfloat16"])
def test_two_networks(half: str) -> None:
    """The discriminator's new weights feed the generator's loss, between two dots."""
    _check_gan(half)


@pytest.mark.parametrize("half", ["bfloat16"])
def test_half_weights_between_two_networks_are_caught(half: str) -> None:
    with pytest.raises(AssertionError, match="update off"):
        _check_gan(half, painter="tensorflow", infer_add=["sub"], keep_half=["sub"])


# ----------------------------------------- sums over many parts


def _accumulated(w: Any, batches: Any) -> Any:
    """Gradient accumulation over microbatches, by ``scan``."""

    def body(total: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)
        return total + gradient, None

    return jax.lax.scan(body, jnp.zeros_like(w), batches)[0]


_TINY_STEPS = np.full((4096, 8, 8), 2.0**-13, np.float32)


@pytest.mark.parametrize("half", HALVES)
def test_gradients_accumulated_by_scan(half: str) -> None:
    """4096 gradients of 2**-10: a half sum would stop growing long before 4."""
    w = np.zeros((8, 8), np.float32)
    want = reference(_accumulated, w, _TINY_STEPS)
    assert ulps(mixed(_accumulated, half, w, _TINY_STEPS), want, "float32") < 4096
    broken = mixed(_accumulated, half, w, _TINY_STEPS, keep_half=["*add", "*loop.*"])
    assert ulps(broken, want, "float32") > 4096


def _embedding_loss(table: Any, weights: Any, tokens: Any) -> Any:
    return jnp.sum(jnp.tanh(table[tokens] @ weights))


@pytest.mark.parametrize("half", HALVES)
def test_embedding_gradients(half: str) -> None:
    """One token 5000 times: its row of the gradient is a sum of 5000 rows."""
    table = np.zeros((8, 16), np.float32)
    weights = heavy_tails(16, 8, scale=2.0**-4)
    tokens = np.where(np.arange(5000) % 100 == 0, 3, 5)
    gradient = jax.grad(_embedding_loss)
    want = reference(gradient, table, weights, tokens)
    assert relative(mixed(gradient, half, table, weights, tokens), want) < EPSILON[half]
    broken = mixed(gradient, half, table, weights, tokens, keep_half=["*scatter*"])
    assert relative(broken, want) > EPSILON[half]


@pytest.mark.parametrize("half", HALVES)
def test_bias_gradients(half: str) -> None:
    """A sum over the batch that cancels."""
    x = cancelling(8, 3000).T.copy()

    def loss(bias: Any, x: Any) -> Any:
        return jnp.sum((x @ jnp.eye(8) + bias) ** 2) / 2

    bias = np.zeros(8, np.float32)
    want = reference(jax.grad(loss), bias, x)
    scale = np.sum(np.abs(x), 0)
    got = mixed(jax.grad(loss), half, bias, x)
    assert ulps(got, want, "float32", scale) < 64


# ----------------------------------------- the loss itself


@pytest.mark.parametrize("half", HALVES)
def test_the_value_of_a_loss(half: str) -> None:
    """A mean of 16 losses from half logits."""
    want = reference(_loss, _params(), _X)
    assert abs(mixed(_loss, half, _params(), _X) - want) / want < EPSILON[half]


def test_a_loss_of_a_large_batch() -> None:
    """A sum of 100,000 squares overflows float16; the mean is a small number."""
    x = np.full((100_000, 8), 3.0, np.float32)

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(x @ w))

    for half in HALVES:
        got = mixed(loss, half, np.full((8, 1), 1 / 8, np.float32), x)
        assert abs(float(got) - 9.0) < 1e-3
