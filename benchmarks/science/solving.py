"""Linear solvers, least squares, optimisation, transport, evolution, control."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.science.case import Program, layers, module, network, normal, random


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


def evolution(seed: int, half: Any = None) -> Any:
    """The evolution strategy of the reproducer, its candidates reshaped and clipped."""

    def search(key: jax.Array, start: jax.Array) -> Any:
        lower = jnp.linalg.cholesky(0.5 * jnp.eye(8) + 0.5)

        def step(state: Any, key: jax.Array) -> Any:
            mean, width = state
            x = mean + width * (jax.random.normal(key, (64, 8)) @ lower.T)
            x = jnp.clip(x.reshape(8, 8, 8), -10, 10).reshape(64, 8)
            values = jnp.sum((x - 1.23) ** 2, axis=1)
            moves = ((x - mean) / width)[jnp.argsort(values)[:16]]
            return (mean + width * jnp.mean(moves, 0), width * 0.9), jnp.min(values)

        _, best = jax.lax.scan(step, (start, 1.0), jax.random.split(key, 150))
        return {"best value": jnp.min(best)}

    return search, (jax.random.PRNGKey(seed), np.zeros(8, "f"))


def riccati(seed: int, half: Any = None) -> Any:
    """Linear quadratic control: Riccati recursion, and the cost of driving by its gains."""
    rng = random(seed)
    a = np.eye(6, dtype="f") + 0.1 * normal(rng, 6, 6)

    def control(a: jax.Array, b: jax.Array, start: jax.Array) -> Any:
        weight, effort = jnp.eye(6), 0.1 * jnp.eye(2)

        def back(value: jax.Array, _: Any) -> Any:
            gain = jnp.linalg.solve(effort + b.T @ value @ b, b.T @ value @ a)
            return weight + a.T @ value @ (a - b @ gain), gain

        value, gains = jax.lax.scan(back, weight, None, length=60)

        def forth(x: jax.Array, gain: jax.Array) -> Any:
            u = -gain @ x
            return a @ x + b @ u, x @ weight @ x + u @ effort @ u

        _, costs = jax.lax.scan(forth, start, gains[::-1])
        return {"cost": jnp.sum(costs), "value": value}

    return control, (a, normal(rng, 6, 2), normal(rng, 6))


def predictive_control(seed: int, half: Any = None) -> Any:
    """Model predictive control: a condensed quadratic program, solved by projected gradient."""
    rng = random(seed)
    a = np.array([[1, 0.1], [0, 1]], "f")
    b = np.array([[0.005], [0.1]], "f")

    def control(a: jax.Array, b: jax.Array, start: jax.Array) -> Any:
        steps = 20
        powers = [jnp.eye(2)]
        for _ in range(steps):
            powers.append(a @ powers[-1])
        rows = []
        for i in range(steps):
            parts = [powers[i - j] @ b if j <= i else jnp.zeros_like(b) for j in range(steps)]
            rows.append(jnp.concatenate(parts, axis=1))
        effect, free = jnp.concatenate(rows), jnp.concatenate(powers[1:]) @ start
        hessian = effect.T @ effect + 0.01 * jnp.eye(steps)
        rate = 1 / jnp.linalg.norm(hessian, 2)

        def step(u: jax.Array, _: Any) -> Any:
            return jnp.clip(u - rate * (hessian @ u + effect.T @ free), -1, 1), None

        u, _ = jax.lax.scan(step, jnp.zeros_like(start, shape=steps), None, length=200)
        ends = effect @ u + free
        return {"controls": u, "cost": ends @ ends + 0.01 * u @ u}

    return control, (a, b, 2 * normal(rng, 2))


def components(by: str) -> Any:
    """Principal components of data far from zero, by ``svd`` or ``eigh``."""

    def make(seed: int, half: Any = None) -> Any:
        rng = random(seed)
        scales = np.logspace(0, -2, 12, dtype="f")
        rotation = np.linalg.qr(rng.standard_normal((12, 12)))[0].astype("f")
        x = (normal(rng, 200, 12) * scales) @ rotation + 3

        def analyse(x: jax.Array) -> Any:
            centred = x - jnp.mean(x, axis=0)
            if by == "svd":
                _, values, axes = jnp.linalg.svd(centred, full_matrices=False)
                variances = values**2 / x.shape[0]
            else:
                variances, vectors = jnp.linalg.eigh(centred.T @ centred / x.shape[0])
                variances, axes = variances[::-1], vectors[:, ::-1].T
            scores = centred @ axes[:3].T
            error = jnp.mean((centred - scores @ axes[:3]) ** 2)
            white = centred @ axes.T / jnp.sqrt(variances)
            covariance = white.T @ white / x.shape[0]
            return {"log-variances": jnp.log(variances), "left over": error, "white": covariance}

        return analyse, (x,)

    return make


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

    def step(*args: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(*args)
        return {"loss": value, "gradient": gradient}

    return step, (weights, root, normal(rng, 64, 32), normal(rng, 4, 16), normal(rng, 64, 16))


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
    Program("evolution strategy", evolution, known=True),
    Program("Riccati recursion", riccati),
    Program("model predictive control", predictive_control),
    Program("principal components, svd", components("svd")),
    Program("principal components, eigh", components("eigh")),
    Program("OptNet", optnet, network=True),
)
