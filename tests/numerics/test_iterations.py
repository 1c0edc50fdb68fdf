"""Iterations and distances are as good as float32's; networks in loops keep their half dots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import duotone
from duotone.precision.safety import distances as distances_rule
from tests.numerics.oracle import HALVES, mixed, reference, relative
from tests.numerics.test_solves import FORCE, check

RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


DENSE, SIDES, SIDE = _normal(24, 24), _normal(24, 8), _normal(24)
SYMMETRIC = (DENSE @ DENSE.T / 24 + np.eye(24)).astype(np.float32)
POINTS, CODES = _normal(64, 16) + 5, _normal(96, 16) + 5
SEEN = _normal(40, 8)


def power(a: Any, x: Any) -> Any:
    return lax.fori_loop(0, 50, lambda _, x: (a @ x) / jnp.linalg.norm(a @ x, axis=0), x)


def conjugate_gradients(a: Any, b: Any) -> Any:
    def step(state: Any, _: Any) -> Any:
        x, r, p, square = state
        turned = a @ p
        rate = square / jnp.vdot(p, turned)
        x, r = x + rate * p, r - rate * turned
        new = jnp.vdot(r, r)
        return (x, r, r + new / square * p, new), None

    return lax.scan(step, (jnp.zeros_like(b), b, b, jnp.vdot(b, b)), None, length=30)[0][0]


def richardson(a: Any, b: Any) -> Any:
    return lax.fori_loop(0, 200, lambda _, x: x + 0.2 * (b - a @ x), jnp.zeros_like(b))


def inverse(a: Any) -> Any:
    start = a.T / jnp.sum(a * a)
    return lax.fori_loop(0, 30, lambda _, x: 2 * x - x @ a @ x, start)


def recurrence(a: Any, x: Any) -> Any:
    return lax.fori_loop(0, 50, lambda _, x: (a / 8) @ x, x)


def shares(a: Any, x: Any) -> Any:
    moves = jnp.abs(a) / jnp.abs(a).sum(0)
    return lax.fori_loop(0, 60, lambda _, x: moves @ x, jnp.abs(x) / jnp.abs(x).sum(0))


def orthogonal(a: Any) -> Any:
    def step(i: Any, q: Any) -> Any:
        rest = a[:, i] - q @ (q.T @ a[:, i])
        return q.at[:, i].set(rest / jnp.linalg.norm(rest))

    return lax.fori_loop(0, a.shape[1], step, jnp.zeros_like(a))


def projected(a: Any, b: Any) -> Any:
    """A quadratic program in a box, by projected gradient."""
    step = lambda _, x: jnp.clip(x - 0.3 * (a @ x - b), -0.5, 0.5)  # noqa: E731
    return lax.fori_loop(0, 200, step, jnp.zeros_like(b))


def shrunk(a: Any, b: Any) -> Any:
    """The lasso, by soft thresholds."""

    def step(_: Any, x: Any) -> Any:
        x = x - 0.3 * (a @ x - b)
        return jnp.sign(x) * jnp.maximum(jnp.abs(x) - 0.03, 0)

    return lax.fori_loop(0, 200, step, jnp.zeros_like(b))


def clustered(x: Any, centres: Any) -> Any:
    def step(centres: Any, _: Any) -> Any:
        nearest = jnp.argmin(distances(x, centres), 1)
        mine = jax.nn.one_hot(nearest, centres.shape[0], dtype=x.dtype)
        return (mine.T @ x) / jnp.maximum(mine.sum(0)[:, None], 1), None

    return lax.scan(step, centres, None, length=8)[0]


def filtered(x: Any, y: Any) -> Any:
    """Recursive least squares: the dots read an observation of each turn, and the state."""

    def step(state: Any, seen: Any) -> Any:
        spread, weights = state
        x, y = seen
        gain = spread @ x / (0.98 + x @ spread @ x)
        error = y - x @ weights
        spread = (spread - jnp.outer(gain, x @ spread)) / 0.98
        return (spread, weights + gain * error), error

    start = 100 * jnp.eye(x.shape[1]), jnp.zeros(x.shape[1])
    return lax.scan(step, start, (x, y))[0][1]


def distances(x: Any, y: Any) -> Any:
    return jnp.sum(x**2, -1)[:, None] + jnp.sum(y**2, -1) - 2 * x @ y.T


def distances_in_another_order(x: Any, y: Any) -> Any:
    return (x * x).sum(-1, keepdims=True) - 2 * jnp.matmul(x, y.T) + (y * y).sum(-1)


def distances_by_dots(x: Any, y: Any) -> Any:
    square = jax.vmap(jnp.dot)
    return square(x, x)[:, None] + square(y, y) - 2 * jnp.einsum("id,jd->ij", x, y)


def distances_in_an_operand(x: Any, y: Any) -> Any:
    """As ``torch.cdist`` computes them."""
    squares = [jnp.sum(a * a, -1, keepdims=True) for a in (x, y)]
    ones = [jnp.ones_like(a) for a in squares]
    return jnp.hstack([-2 * x, squares[0], ones[0]]) @ jnp.hstack([y, ones[1], squares[1]]).T


def distances_of_norms(x: Any, y: Any) -> Any:
    a, b = (jnp.linalg.norm(points, axis=-1) ** 2 for points in (x, y))
    return a[:, None] + b - 2 * x @ y.T


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "power": (power, (SYMMETRIC, SIDE)),
    "power of a block": (power, (SYMMETRIC, SIDES)),
    "conjugate gradients": (conjugate_gradients, (SYMMETRIC, SIDE)),
    "richardson": (richardson, (SYMMETRIC, SIDES)),
    "inverse": (inverse, (SYMMETRIC,)),
    "recurrence": (recurrence, (DENSE, SIDES)),
    "shares": (shares, (DENSE, SIDES)),
    "orthogonal": (orthogonal, (DENSE,)),
    "projected": (projected, (SYMMETRIC, SIDES)),
    "shrunk": (shrunk, (SYMMETRIC, SIDES)),
    "clustered": (clustered, (POINTS, CODES[:5])),
    "filtered": (filtered, (SEEN, SEEN.sum(1) + SEEN[:, 0] ** 2)),
    "distances": (distances, (POINTS, CODES)),
    "distances in another order": (distances_in_another_order, (POINTS, CODES)),
    "distances by dots": (distances_by_dots, (POINTS, CODES)),
    "distances in an operand": (distances_in_an_operand, (POINTS, CODES)),
    "distances of norms": (distances_of_norms, (POINTS, CODES)),
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_results_are_as_good_as_float32s(name: str, half: str) -> None:
    function, args = CASES[name]
    check(function, duotone.autocast(function, dtype=half, policy=FORCE), args)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["projected", "shrunk", "richardson"])
def test_backward_loops_of_iterations_are_as_good_as_float32s(name: str, half: str) -> None:
    function, args = CASES[name]
    gradient = jax.grad(lambda *args: jnp.sum(jnp.sin(function(*args))), (0, 1))
    check(gradient, duotone.autocast(gradient, dtype=half, policy=FORCE), args)


def discrepancy(x: Any, y: Any) -> Any:
    """The maximum mean discrepancy of two samples, by Gaussian kernels."""
    mean = lambda a, b: jnp.mean(jnp.exp(-0.02 * distances(a, b)))  # noqa: E731
    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


@pytest.mark.parametrize("half", HALVES)
def test_gradients_of_distances_are_as_good_as_float32s(half: str) -> None:
    gradient = jax.grad(discrepancy, (0, 1))
    check(gradient, duotone.autocast(gradient, dtype=half, policy=FORCE), (POINTS, CODES))


def of_features(w: Any, x: Any, y: Any) -> Any:
    """The discrepancy of features with a large mean; the square of each has two gradients."""
    squares = lambda a: jnp.sum(a * a, 1)  # noqa: E731
    near = lambda a, b: squares(a)[:, None] + squares(b) - 2 * a @ b.T  # noqa: E731
    mean = lambda a, b: jnp.mean(jnp.exp(-2 * near(a, b)))  # noqa: E731
    a, b = x @ w + 3, y @ w + 3
    return mean(a, a) + mean(b, b) - 2 * mean(a, b)


@pytest.mark.parametrize("half", HALVES)
def test_terms_of_gradients_of_distances_are_added_in_float32(
    half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (jax.random.normal(jax.random.key(k), (64, 32)) for k in (1, 2))
    args = jax.random.normal(jax.random.key(0), (32, 32)) / 50, x, 1.3 * y
    gradient = jax.grad(of_features)
    limit = {"float16": 0.01, "bfloat16": 0.08}[half]
    assert relative(mixed(gradient, half, *args), reference(gradient, *args)) < limit

    def stored() -> set[str]:
        """XLA may keep more digits than the painting asks for, so the painting counts here."""
        seen = duotone.explain(gradient, *args, dtype=half).operations
        return {o.stored for o in seen if o.operation == "add_any" and o.shape == ("64", "32")}

    assert stored() == {"full"}
    monkeypatch.setattr(distances_rule, "_MOST_TERMS", 0)
    assert "half" in stored()


def recurrent(w: Any, u: Any, x: Any) -> Any:
    def step(h: Any, seen: Any) -> Any:
        return jnp.tanh(h @ w + seen @ u), None

    return lax.scan(step, jnp.zeros((8, 24), x.dtype), x)[0].sum()


def rectified(w: Any, u: Any, x: Any) -> Any:
    """Its backward loop picks by a mask of each iteration."""
    step = lambda h, seen: (jax.nn.relu(h @ w + seen @ u), None)  # noqa: E731
    return lax.scan(step, jnp.zeros((8, 24), x.dtype), x)[0].sum()


def gated(w: Any, u: Any, x: Any) -> Any:
    def step(state: Any, seen: Any) -> Any:
        i, f, g, o = jnp.split(state[0] @ w + seen @ u, 4, -1)
        cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (h, cell), h

    return lax.scan(step, (jnp.zeros((8, 24)), jnp.zeros((8, 24))), x)[1].sum()


def layered(ws: Any, x: Any) -> Any:
    return lax.scan(lambda h, w: (h + jax.nn.gelu(h @ w) @ w.T, None), x, ws)[0].sum()


def recomputed(ws: Any, x: Any) -> Any:
    layer = jax.checkpoint(lambda h, w: (h + jax.nn.gelu(h @ w) @ w.T, None))
    return lax.scan(layer, x, ws)[0].sum()


def trained(w: Any, u: Any, x: Any) -> Any:
    """Ten steps of training a network on squared errors."""

    def step(weights: Any, _: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean((jnp.tanh(x[0] @ weights[0]) @ weights[1] - x[1]) ** 2)

        gradient = jax.grad(loss)(weights)
        return jax.tree.map(lambda a, b: a - 0.1 * b, weights, gradient), None

    return jax.tree.reduce(lambda a, b: a + b.sum(), lax.scan(step, (w, u), None, 10)[0], 0.0)


def tangents(w: Any, x: Any) -> Any:
    """A loop without inputs: an activation of the state scales its tangent in each iteration."""

    def moved(w: Any) -> Any:
        return lax.scan(lambda h, _: (h + 0.1 * jnp.tanh(h @ w), None), x, None, 8)[0].sum()

    return jax.jvp(moved, (w,), (w / 10,))[1]


WIDE, SEEN = _normal(24, 96) / 5, _normal(6, 8, 24)
NETWORKS = {
    "recurrent": (recurrent, (DENSE / 5, DENSE / 5, SEEN)),
    "rectified": (rectified, (DENSE / 5, DENSE / 5, SEEN)),
    "gated": (gated, (WIDE, WIDE, SEEN)),
    "layered": (layered, (np.stack([DENSE / 5] * 6), SEEN[0])),
    "recomputed": (recomputed, (np.stack([DENSE / 5] * 6), SEEN[0])),
    "tangents": (tangents, (DENSE / 5, SEEN[0])),
    "trained": (trained, (DENSE / 5, DENSE / 5, SEEN)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_loops_keep_their_half_dots(name: str) -> None:
    function, args = NETWORKS[name]
    program = function if name == "trained" else jax.grad(function)
    operations = duotone.explain(program, *args, dtype="bfloat16", policy=FORCE).operations
    dots = [operation for operation in operations if operation.operation == "dot_general"]
    assert dots
    assert all(dot.paint == "half" for dot in dots)
