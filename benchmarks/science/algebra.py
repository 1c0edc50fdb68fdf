"""Linear algebra under every transformation, and in training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.science.case import Program, dense, layers, network, normal, random

linalg = jnp.linalg


def _ridge(x: jax.Array, y: jax.Array) -> jax.Array:
    return linalg.solve(x.T @ x + 0.1 * jnp.eye(x.shape[1]), x.T @ y)


def _cholesky(x: jax.Array, y: jax.Array) -> jax.Array:
    lower = linalg.cholesky(x.T @ x + 0.1 * jnp.eye(x.shape[1]))
    white = jax.scipy.linalg.solve_triangular(lower, x.T @ y, lower=True)
    return lower @ (lower.T @ white)


def _eigen(x: jax.Array, y: jax.Array) -> jax.Array:
    values, vectors = linalg.eigh(x.T @ x)
    return (vectors * jnp.exp(-0.1 * values)) @ (vectors.T @ (x.T @ y))


def _singular(x: jax.Array, y: jax.Array) -> jax.Array:
    u, s, v = linalg.svd(x, full_matrices=False)
    return v.T @ ((s / (s**2 + 0.1))[:, None] * (u.T @ y))


def _lstsq(x: jax.Array, y: jax.Array) -> jax.Array:
    return linalg.lstsq(x, y)[0]


def _pinv(x: jax.Array, y: jax.Array) -> jax.Array:
    return linalg.pinv(x) @ y


def _expm(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.scipy.linalg.expm(-(x.T @ x) / x.shape[0]) @ (x.T @ y)


def _qr(x: jax.Array, y: jax.Array) -> jax.Array:
    q, r = linalg.qr(x)
    return jax.scipy.linalg.solve_triangular(r, q.T @ y)


def _iterative(method: str) -> Callable[..., jax.Array]:
    def solve(x: jax.Array, y: jax.Array) -> jax.Array:
        gram, solver = x.T @ x + 5.0 * jnp.eye(x.shape[1]), getattr(jax.scipy.sparse.linalg, method)
        return solver(lambda v: gram @ v, x.T @ y[:, 0], tol=1e-6, maxiter=100)[0]

    return solve


def _logdet(x: jax.Array, y: jax.Array) -> jax.Array:
    return linalg.slogdet(x.T @ x + 0.1 * jnp.eye(x.shape[1]))[1] + linalg.det(x.T @ x / 40)


def _banded(x: jax.Array, y: jax.Array) -> jax.Array:
    side = jnp.mean(x @ x.T, axis=1)[:16]
    diagonal = 4 + jnp.sum(x**2, axis=1)[:16]
    return jax.lax.linalg.tridiagonal_solve(side, diagonal, side, (x @ (x.T @ y))[:16])


def _schmidt(x: jax.Array, y: jax.Array) -> jax.Array:
    def step(i: Any, q: jax.Array) -> jax.Array:
        column = q[:, i]
        before = jnp.where(jnp.arange(q.shape[1]) < i, q.T @ column, 0.0)
        column = column - q @ before
        return q.at[:, i].set(column / linalg.norm(column))

    return jax.lax.fori_loop(0, x.shape[1], step, x)


def _power(x: jax.Array, y: jax.Array) -> jax.Array:
    gram = x.T @ x

    def step(v: jax.Array, _: Any) -> Any:
        v = gram @ v
        return v / linalg.norm(v), None

    v, _ = jax.lax.scan(step, y[: x.shape[1], 0], None, length=60)
    return jnp.concatenate([(v @ gram @ v)[None], jnp.abs(v)])


def _subspace(x: jax.Array, y: jax.Array) -> jax.Array:
    def step(_: Any, v: jax.Array) -> jax.Array:
        return linalg.qr(x.T @ (x @ v))[0]

    v = jax.lax.fori_loop(0, 40, step, x[:4].T)
    return linalg.svd(x @ v, compute_uv=False)


def _schulz(x: jax.Array, y: jax.Array) -> jax.Array:
    gram = x.T @ x + 5.0 * jnp.eye(x.shape[1])

    def step(_: Any, z: jax.Array) -> jax.Array:
        return z @ (2 * jnp.eye(x.shape[1]) - gram @ z)

    return jax.lax.fori_loop(0, 30, step, gram.T / jnp.sum(gram**2)) @ (x.T @ y)


def _root(x: jax.Array, y: jax.Array) -> jax.Array:
    gram, right = x.T @ x + 5.0 * jnp.eye(x.shape[1]), x.T @ y[:, 0]
    rate = 1 / jnp.trace(gram)

    def solve(_: Any, start: jax.Array) -> jax.Array:
        step = lambda z, _: (z - rate * (gram @ z - right), None)  # noqa: E731
        return jax.lax.scan(step, start, None, length=400)[0]

    def tangent(linear: Any, right: jax.Array) -> jax.Array:
        return linalg.solve(jax.jacobian(linear)(right), right)

    equation = lambda z: gram @ z - right  # noqa: E731
    return jax.lax.custom_root(equation, jnp.zeros_like(x[0]), solve, tangent)


def _kabsch(x: jax.Array, y: jax.Array) -> jax.Array:
    u, _, v = linalg.svd(x[:, :3].T @ (x[:, :3] @ linalg.qr(y[:3, :3])[0] + 0.01 * x[:, 3:6]))
    turn = u @ jnp.diag(jnp.ones_like(x, shape=3).at[2].set(linalg.det(u @ v))) @ v
    return x[:, :3] @ turn


def _whiten(x: jax.Array, y: jax.Array) -> jax.Array:
    values, vectors = linalg.eigh(x.T @ x / x.shape[0])
    return x @ (vectors / jnp.sqrt(values + 1e-3)) @ vectors.T


def _woodbury(x: jax.Array, y: jax.Array) -> jax.Array:
    inner = jnp.eye(x.shape[1]) + x.T @ x * 100
    return 100 * (y - x @ linalg.solve(inner, 100 * x.T @ y))


SOLVES: dict[str, Callable[..., jax.Array]] = {
    "solve": _ridge,
    "cholesky, products of the factor": _cholesky,
    "eigh, a function of a matrix": _eigen,
    "svd, ridge": _singular,
    "lstsq": _lstsq,
    "pinv": _pinv,
    "expm": _expm,
    "qr": _qr,
    "cg": _iterative("cg"),
    "gmres": _iterative("gmres"),
    "bicgstab": _iterative("bicgstab"),
    "determinants": _logdet,
    "tridiagonal": _banded,
    "Gram-Schmidt": _schmidt,
    "power iteration": _power,
    "subspace iteration": _subspace,
    "Newton-Schulz inverse": _schulz,
    "custom_root": _root,
    "Kabsch alignment": _kabsch,
    "whitening": _whiten,
    "Woodbury": _woodbury,
}


def solved(solve: Callable[..., jax.Array]) -> Any:
    """A solve from data: forward, with its gradient, over a batch, in a loop."""

    def forms(x: jax.Array, y: jax.Array) -> Any:
        value, pull = jax.vjp(lambda x, y: jnp.sum(jnp.sin(solve(x, y))), x, y)
        step = lambda total, s: (total, solve(x * s, y))  # noqa: E731
        return {
            "forward": solve(x, y),
            "gradient": pull(jnp.ones_like(value)),
            "batch": jax.vmap(solve)(jnp.stack([x, x[::-1]]), jnp.stack([y, 2 * y])),
            "loop": jax.lax.scan(step, 0.0, jnp.linspace(1.0, 1.2, 4, dtype=x.dtype))[1],
        }

    def make(seed: int, half: Any = None) -> Any:
        rng = random(seed)
        x = normal(rng, 40, 8) @ (np.eye(8, dtype="f") + 0.5)
        return forms, (x, normal(rng, 40, 5))

    return make


def deep_equilibrium(seed: int, half: Any = None) -> Any:
    """A deep equilibrium model: a fixed point of a network, differentiated implicitly."""
    rng = random(seed)
    inner, into, out = (0.3 * w for w in layers(rng, 64, 64, 64, 8))

    def layer(weights: Any, x: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.tanh(dense(z, weights[0], half) + dense(x, weights[1], half))

    @jax.custom_vjp
    def fixed(weights: Any, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 30, lambda _, z: layer(weights, x, z), jnp.zeros_like(x))

    def ahead(weights: Any, x: jax.Array) -> Any:
        z = fixed(weights, x)
        return z, (weights, x, z)

    def back(saved: Any, cotangent: jax.Array) -> Any:
        weights, x, z = saved
        _, pull = jax.vjp(lambda z: layer(weights, x, z), z)
        solution = jax.lax.fori_loop(0, 30, lambda _, u: cotangent + pull(u)[0], cotangent)
        return jax.vjp(lambda weights, x: layer(weights, x, z), weights, x)[1](solution)

    fixed.defvjp(ahead, back)

    def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((dense(fixed(weights, x), weights[2], half) - y) ** 2)

    def step(*args: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(*args)
        return {"loss": value, "gradient": gradient}

    return step, ((inner, into, out), normal(rng, 32, 64), normal(rng, 32, 8))


def _training(update: Callable[..., Any]) -> Any:
    """A training step whose gradients go through a preconditioner."""

    def make(seed: int, half: Any = None) -> Any:
        rng = random(seed)

        def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.mean((network(x, weights, half) - y) ** 2)

        def step(weights: Any, x: jax.Array, y: jax.Array) -> Any:
            value, gradient = jax.value_and_grad(loss)(weights, x, y)
            return {"loss": value, "updates": [update(g, half) for g in gradient]}

        x = normal(rng, 256, 32)
        return step, (layers(rng, 32, 64, 64, 16), x, normal(rng, 256, 16))

    return make


def muon(gradient: jax.Array, half: Any) -> jax.Array:
    """Muon's five Newton-Schulz steps, as published."""
    x = gradient / (linalg.norm(gradient) + 1e-7)
    for _ in range(5):
        gram = dense(x, x.T, half)
        x = 3.4445 * x + dense(-4.775 * gram + 2.0315 * dense(gram, gram, half), x, half)
    return x


def shampoo(gradient: jax.Array, half: Any) -> jax.Array:
    """Shampoo: inverse fourth roots of both second moments, by eigenvalues."""

    def root(moment: jax.Array) -> jax.Array:
        values, vectors = linalg.eigh(moment + 1e-6 * jnp.trace(moment) * jnp.eye(len(moment)))
        return (vectors * values**-0.25) @ vectors.T

    return root(gradient @ gradient.T) @ gradient @ root(gradient.T @ gradient)


def soap(gradient: jax.Array, half: Any) -> jax.Array:
    """SOAP: Adam in the eigenbasis of the left moment."""
    _, basis = linalg.eigh(gradient @ gradient.T)
    turned = basis.T @ gradient
    return basis @ (turned / (jnp.abs(turned) + 1e-3 * linalg.norm(turned)))


def kfac(gradient: jax.Array, half: Any) -> jax.Array:
    """A damped natural gradient: a solve with the left moment."""
    moment = gradient @ gradient.T
    damping = 1e-3 * jnp.trace(moment) * jnp.eye(len(moment))
    return linalg.solve(moment + damping, gradient)


PROGRAMS = (
    *(Program(name, solved(solve)) for name, solve in SOLVES.items()),
    Program("deep equilibrium model", deep_equilibrium, network=True),
    Program("training with Muon", _training(muon), network=True),
    Program("training with Shampoo", _training(shampoo), network=True),
    Program("training with SOAP", _training(soap), network=True),
    Program("training with K-FAC's solve", _training(kfac), network=True),
)
