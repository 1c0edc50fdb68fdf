"""Networks with solves inside; then solvers, least squares, optimisation, transport, evolution.

Most of a network is to be half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.science.case import (
    Program,
    dense,
    layers,
    module,
    network,
    normal,
    random,
    with_gradient,
)

linalg = jnp.linalg


def meta_ridge(seed: int, half: Any = None) -> Any:
    """R2-D2 whole: an embedding network, the ridge head, the loss and the network's gradient."""
    rng = random(seed)
    weights = layers(rng, 32, 128, 128, 64)
    support, query = normal(rng, 25, 32), normal(rng, 75, 32)
    labels = np.arange(75) % 5
    targets = np.eye(5, dtype="float32")[np.arange(25) % 5]

    def loss(weights: Any, support: jax.Array, targets: jax.Array, query: jax.Array) -> jax.Array:
        z = jax.nn.relu(network(support, weights, half))
        q = jax.nn.relu(network(query, weights, half))
        dual = jnp.linalg.solve(z @ z.T + 1.0 * jnp.eye(25), targets)
        logits = q @ (z.T @ dual)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        return -jnp.mean(picked)

    return with_gradient(loss), (weights, support, targets, query)


def deep_kernel(seed: int, half: Any = None) -> Any:
    """Deep kernel learning: a network's features in a kernel; prediction and variance."""
    rng = random(seed)
    weights = layers(rng, 8, 64, 64, 4)
    x, at = normal(rng, 40, 8), normal(rng, 100, 8)
    y = np.sin(x.sum(1)).astype("float32")

    def gram(a: jax.Array, b: jax.Array) -> jax.Array:
        squares = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1) - 2 * a @ b.T
        return jnp.exp(-0.5 * jnp.maximum(squares, 0.0))

    def predict(weights: Any, x: jax.Array, y: jax.Array, at: jax.Array) -> Any:
        features, others = network(x, weights, half), network(at, weights, half)
        factor = jax.scipy.linalg.cho_factor(gram(features, features) + 1e-2 * jnp.eye(40))
        across = gram(others, features)
        solved = jax.scipy.linalg.cho_solve(factor, across.T)
        variance = 1.0 - jnp.sum(across * solved.T, axis=1)
        return {"mean": across @ jax.scipy.linalg.cho_solve(factor, y), "variance": variance}

    return predict, (weights, x, y, at)


def optnet(seed: int, half: Any = None) -> Any:
    """OptNet: a network's output is the cost of an equality-constrained quadratic program."""
    rng = random(seed)
    weights = layers(rng, 32, 128, 128, 16)
    root = normal(rng, 16, 16)

    def loss(weights: Any, root: jax.Array, x: jax.Array, rows: jax.Array, y: jax.Array) -> Any:
        cost = network(x, weights, half)
        quadratic = root @ root.T / 16 + 0.1 * jnp.eye(16)
        zero = jnp.zeros((4, 4))
        system = jnp.block([[quadratic, rows.T], [rows, zero]])
        right = jnp.concatenate([-cost, jnp.ones((x.shape[0], 4))], axis=1)
        answer = jnp.linalg.solve(system, right.T).T[:, :16]
        return jnp.mean((answer - y) ** 2)

    return with_gradient(loss), (
        weights,
        root,
        normal(rng, 64, 32),
        normal(rng, 4, 16),
        normal(rng, 64, 16),
    )


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

    return with_gradient(loss), ((inner, into, out), normal(rng, 32, 64), normal(rng, 32, 8))


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


NETWORKS = (
    Program("ridge head after a network", meta_ridge, network=True),
    Program("deep kernel learning", deep_kernel, network=True),
    Program("OptNet", optnet, network=True),
    Program("deep equilibrium model", deep_equilibrium, network=True),
    Program("training with Muon", _training(muon), network=True),
    Program("training with Shampoo", _training(shampoo), network=True),
    Program("training with SOAP", _training(soap), network=True),
    Program("training with K-FAC's solve", _training(kfac), network=True),
)


def _matrix(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = random(seed)
    return normal(rng, 64, 32), normal(rng, 32)


def lineax_solver(solver: str) -> Any:
    """Lineax: the normal equations of a random matrix by one of its solvers."""

    def make(seed: int, half: Any = None) -> Any:
        lx = module("lineax")
        options = {"CG": {"rtol": 1e-6, "atol": 1e-6}, "GMRES": {"rtol": 1e-6, "atol": 1e-6}}

        def solve(a: jax.Array, b: jax.Array) -> Any:
            gram = a.T @ a + 0.5 * jnp.eye(a.shape[1])
            operator = lx.MatrixLinearOperator(gram, lx.positive_semidefinite_tag)
            method = getattr(lx, solver)(**options.get(solver, {}))
            found = lx.linear_solve(operator, a.T @ (a @ b), method, throw=False).value
            return {"solution": found, "prediction": a @ found}

        return solve, _matrix(seed)

    return make


def levenberg(seed: int, half: Any = None) -> Any:
    """Optimistix: Levenberg-Marquardt fit of two decays."""
    optx = module("optimistix")
    rng = random(seed)
    t = np.linspace(0, 4, 200, dtype="f")
    y = 2 * np.exp(-t) + np.exp(-3 * t) + 0.01 * normal(rng, 200)

    def fit(start: jax.Array, t: jax.Array, y: jax.Array) -> Any:
        def residuals(p: jax.Array, args: Any) -> jax.Array:
            return jnp.exp(-t[:, None] * p[2:]) @ p[:2] - y

        solver = optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6)
        found = optx.least_squares(residuals, solver, start, max_steps=100, throw=False)
        loss = jnp.sum(residuals(found.value, None) ** 2)
        return {"parameters": jnp.sort(found.value), "loss": loss}

    return fit, (np.array([1.5, 1.5, 0.7, 4.0], "f"), t, y)


def newton_root(seed: int, half: Any = None) -> Any:
    """Optimistix: Newton's method, and the derivative of the root by implicit differentiation."""
    optx = module("optimistix")
    rng = random(seed)
    a = normal(rng, 16, 16) / 8

    def solve(a: jax.Array, b: jax.Array) -> Any:
        def root(a: jax.Array, b: jax.Array) -> jax.Array:
            solver = optx.Newton(rtol=1e-6, atol=1e-6)
            equation = lambda y, _: y + jnp.tanh(a @ y) - b  # noqa: E731
            return optx.root_find(equation, solver, jnp.zeros_like(b), throw=False).value

        gradient = jax.grad(lambda *args: jnp.sum(root(*args) ** 2), (0, 1))(a, b)
        return {"root": root(a, b), "gradient": gradient}

    return solve, (a, normal(rng, 16))


def lbfgs(seed: int, half: Any = None) -> Any:
    """jaxopt: L-BFGS on a badly scaled logistic regression."""
    jaxopt = module("jaxopt")
    rng = random(seed)
    x = normal(rng, 150, 12) * np.logspace(0, -1, 12, dtype="f")
    y = (x @ normal(rng, 12) + 0.5 * normal(rng, 150) > 0).astype("f")

    def loss(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = x @ w
        return jnp.mean(jnp.logaddexp(0.0, logits) - y * logits) + 1e-3 * jnp.sum(w**2)

    def fit(x: jax.Array, y: jax.Array) -> Any:
        found = jaxopt.LBFGS(loss, maxiter=60, tol=1e-6).run(jnp.zeros_like(x[0]), x, y)
        gradient = jax.grad(loss)(found.params, x, y)
        return {"loss": loss(found.params, x, y), "weights": found.params, "state": gradient}

    return fit, (x, y)


def projected(seed: int, half: Any = None) -> Any:
    """jaxopt: non-negative least squares by projected gradient."""
    jaxopt = module("jaxopt")
    rng = random(seed)
    a = np.abs(normal(rng, 60, 20))
    b = a @ np.maximum(normal(rng, 20), 0) + 0.01 * normal(rng, 60)

    def fit(a: jax.Array, b: jax.Array) -> Any:
        objective = lambda w: 0.5 * jnp.mean((a @ w - b) ** 2)  # noqa: E731
        solver = jaxopt.ProjectedGradient(
            objective, jaxopt.projection.projection_non_negative, maxiter=500, tol=1e-5
        )
        found = solver.run(jnp.zeros_like(a[0])).params
        return {"loss": objective(found), "weights": found}

    return fit, (a, b)


def sinkhorn(seed: int, half: Any = None) -> Any:
    """OTT: regularised transport between two clouds of points; cost and plan."""
    solve = module("ott.solvers.linear").solve
    clouds = module("ott.geometry.pointcloud")
    rng = random(seed)

    def transport(x: jax.Array, y: jax.Array) -> Any:
        found = solve(clouds.PointCloud(x, y, epsilon=0.05), threshold=1e-4, max_iterations=500)
        return {"cost": found.reg_ot_cost, "plan": found.matrix}

    return transport, (normal(rng, 40, 3), normal(rng, 50, 3) + 0.5)


def cma_es(seed: int, half: Any = None) -> Any:
    """evosax: best value of CMA-ES on an ellipsoid."""
    method = module("evosax.algorithms").CMA_ES

    def search(key: jax.Array, weights: jax.Array) -> Any:
        strategy = method(population_size=16, solution=jnp.zeros(8))
        params = strategy.default_params
        state = strategy.init(key, jnp.zeros(8), params)

        def step(state: Any, key: jax.Array) -> Any:
            ask, tell = jax.random.split(key)
            x, state = strategy.ask(ask, state, params)
            values = jnp.sum((x - 1.2345) ** 2 * weights, axis=-1)
            state, _ = strategy.tell(tell, x, values, state, params)
            return state, jnp.min(values)

        _, best = jax.lax.scan(step, state, jax.random.split(key, 180))
        return {"best value": jnp.min(best)}

    return search, (jax.random.PRNGKey(seed), np.arange(1, 9, dtype="f"))


PROGRAMS = (
    *NETWORKS,
    *(
        Program(f"{name} solve", lineax_solver(name), "lineax")
        for name in ("LU", "QR", "Cholesky", "SVD", "CG", "GMRES")
    ),
    Program("Levenberg-Marquardt", levenberg, "optimistix"),
    Program("Newton, implicit derivative", newton_root, "optimistix"),
    Program("L-BFGS", lbfgs, "jaxopt"),
    Program("projected gradient", projected, "jaxopt"),
    Program("Sinkhorn", sinkhorn, "ott"),
    Program("CMA-ES", cma_es, "evosax", known=True),
)
