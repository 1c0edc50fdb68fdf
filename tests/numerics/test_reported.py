"""Programs whose numbers were reported wrong, at the sizes they were reported with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import lax

import duotone
from tests.numerics.oracle import HALVES, reference
from tests.numerics.test_solves import FORCE, check, rbf, ridge, ridge_dual

WAYS = (*HALVES, "default")


def painted(function: Callable[..., Any], way: str) -> Callable[..., Any]:
    if way == "default":
        return duotone.autocast(function)
    return duotone.autocast(function, dtype=way, policy=FORCE)


def _features() -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    mix = random.normal(size=(8, 64))
    z = np.maximum(random.normal(size=(50, 8)) @ mix, 0) + 0.1
    asked = np.maximum(random.normal(size=(200, 8)) @ mix, 0) + 0.1
    return z.astype("f"), np.eye(5, dtype="f")[np.arange(50) % 5], asked.astype("f")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("head", [ridge, ridge_dual])
def test_a_ridge_head_chooses_float32s_classes(head: Callable[..., Any], way: str) -> None:
    check(head, painted(head, way), _features())


def predict(x: Any, y: Any, at: Any) -> Any:
    """A Gaussian process with noise 1e-3: means and variances at 400 points."""
    factor = jsp.linalg.cho_factor(rbf(x, x) + (1e-3 + 1e-6) * jnp.eye(x.shape[0]))
    between = rbf(at, x)
    left = (
        rbf(at, at)
        + 1e-3 * jnp.eye(at.shape[0])
        - between @ jsp.linalg.cho_solve(factor, between.T)
    )
    return between @ jsp.linalg.cho_solve(factor, y), jnp.diag(left)


@pytest.mark.parametrize("way", WAYS)
def test_a_gaussian_process_has_float32s_means_and_no_negative_variances(way: str) -> None:
    x, at = np.linspace(-1, 1, 30, dtype="f"), np.linspace(-1.3, 1.3, 400, dtype="f")
    y = x + 0.2 * x**3 + 0.5 * (0.5 + x) ** 2 * np.sin(4.0 * x)
    check(predict, painted(predict, way), (x, y, at))
    _, variances = painted(predict, way)(x, y, at)
    assert np.min(variances) > 0


def adapt(keys: Any) -> Any:
    """CMA-ES on an ellipsoid: the best values of all generations."""
    n, parents = 8, 8
    logs = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    weights = (logs / logs.sum()).astype("f")
    strength = float(1 / np.sum(weights**2))
    rate = (strength + 2) / (n + strength + 5)
    memory = 4 / (n + 4)
    one, many = 2 / ((n + 1.3) ** 2 + strength), 0.15

    def step(state: Any, key: Any) -> Any:
        mean, size, covariance, path, turn = state
        values, axes = jnp.linalg.eigh(covariance)
        scales = jnp.sqrt(jnp.maximum(values, 1e-20))
        moved = (jax.random.normal(key, (16, n), mean.dtype) * scales) @ axes.T
        found = jnp.sum((mean + size * moved - 1.2345) ** 2 * jnp.arange(1, n + 1), -1)
        best = moved[jnp.argsort(found)[:parents]]
        shift = weights @ best
        white = axes @ ((axes.T @ shift) / scales)
        path = (1 - rate) * path + np.sqrt(rate * (2 - rate) * strength) * white
        size = size * jnp.exp(rate / (1 + rate) * (jnp.linalg.norm(path) / np.sqrt(n) - 1))
        turn = (1 - memory) * turn + np.sqrt(memory * (2 - memory) * strength) * shift
        spread = (best * weights[:, None]).T @ best
        covariance = (1 - one - many) * covariance + one * jnp.outer(turn, turn) + many * spread
        return (mean + size * shift, size, covariance, path, turn), found.min()

    start = (jnp.zeros(n), jnp.asarray(1.0), jnp.eye(n), jnp.zeros(n), jnp.zeros(n))
    return lax.scan(step, start, keys)[1]


@pytest.mark.parametrize("way", WAYS)
def test_an_adapted_search_finds_its_optimum(way: str) -> None:
    keys = jax.random.split(jax.random.key(0), 150)
    exact = float(jax.jit(adapt)(keys)[-1])
    assert exact < 1e-9
    assert float(painted(adapt, way)(keys)[-1]) < 1e-9


def swung(angles: Any, at: Any) -> Any:
    """A chain of joints: 3-vectors are turned by matrices, fifty times."""

    def turn(angle: Any) -> Any:
        c, s, o = jnp.cos(angle), jnp.sin(angle), jnp.zeros_like(angle)
        return jnp.stack([jnp.stack([c, -s, o]), jnp.stack([s, c, o]), jnp.stack([o, o, o + 1])])

    def step(state: Any, push: Any) -> Any:
        place, speed = state
        turns = jax.vmap(turn)(place)
        ends = jax.vmap(lambda t, v: t @ v)(turns, at)
        speed = speed + 0.02 * (push - 9.81 * ends[:, 0] - 0.1 * (turns @ turns)[:, 0, 1])
        return (place + 0.02 * speed, speed), ends

    return lax.scan(step, (angles, jnp.zeros_like(angles)), jnp.zeros((50, angles.size)))[1]


@pytest.mark.parametrize("way", WAYS)
def test_rotations_in_a_simulator_are_float32s(way: str) -> None:
    random = np.random.default_rng(1)
    args = random.normal(size=4).astype("f"), random.normal(size=(4, 3)).astype("f")
    exact = reference(swung, *args)
    error = lambda found: float(np.max(np.abs(np.asarray(found, "d") - exact)))  # noqa: E731
    assert error(painted(swung, way)(*args)) <= 2 * error(jax.jit(swung)(*args)) + 1e-6
