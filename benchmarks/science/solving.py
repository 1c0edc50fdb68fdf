"""Linear solvers, least squares, optimisation, transport, evolution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.science.case import Program, module, normal, random


def _matrix(seed: int, n: int = 32) -> tuple[np.ndarray, np.ndarray]:
    rng = random(seed)
    half = normal(rng, 2 * n, n)
    return half, normal(rng, n)


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
