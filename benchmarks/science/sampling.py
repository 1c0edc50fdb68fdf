"""Samplers, filters and expectation maximisation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.science.case import Figures, Program, Tree, module, normal, random


def _regression(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = random(seed)
    x = normal(rng, 100, 6) @ (np.eye(6, dtype="f") + 0.5)
    return x, x @ normal(rng, 6) + normal(rng, 100)


def _chain(found: Tree) -> Figures:
    """Errors of means and deviations, in deviations; the share of draws that is lost."""
    diagnostics = module("numpyro.diagnostics")
    x, y, draws = found["x"], found["y"], found["draws"]
    precision = x.T @ x + np.eye(x.shape[1])
    exact = np.linalg.solve(precision, x.T @ y)
    deviation = np.sqrt(np.diag(np.linalg.inv(precision)))
    effective = diagnostics.effective_sample_size(draws[None])
    return {
        "mean": (draws.mean(0) - exact) / deviation,
        "deviation": draws.std(0) / deviation - 1,
        "draws over ESS": len(draws) / effective,
    }


def nuts(seed: int, half: Any = None) -> Any:
    """NumPyro: NUTS on a Bayesian linear regression whose posterior is known."""
    hmc = module("numpyro.infer.hmc").hmc
    x, y = _regression(seed)

    def sample(key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def potential(w: jax.Array) -> jax.Array:
            return 0.5 * jnp.sum((y - x @ w) ** 2) + 0.5 * jnp.sum(w**2)

        start, kernel = hmc(potential_fn=potential, algo="NUTS")
        state = start(jnp.zeros(6), num_warmup=300, rng_key=key, dense_mass=True)

        def step(state: Any, _: Any) -> Any:
            state = kernel(state)
            return state, state.z

        _, draws = jax.lax.scan(step, state, None, length=800)
        return {"draws": draws[300:], "x": x, "y": y}

    return sample, (jax.random.PRNGKey(seed), x, y)


def blackjax_hmc(seed: int, half: Any = None) -> Any:
    """BlackJAX: HMC with a dense mass matrix on the same posterior."""
    blackjax = module("blackjax")
    x, y = _regression(seed)

    def sample(key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def density(w: jax.Array) -> jax.Array:
            return -0.5 * jnp.sum((y - x @ w) ** 2) - 0.5 * jnp.sum(w**2)

        inverse = jnp.linalg.inv(x.T @ x + jnp.eye(6))
        sampler = blackjax.hmc(density, 0.25, inverse, 6)

        def step(state: Any, key: jax.Array) -> Any:
            state, info = sampler.step(key, state)
            return state, (state.position, info.acceptance_rate)

        start = sampler.init(jnp.linalg.solve(x.T @ x + jnp.eye(6), x.T @ y))
        _, (draws, accepted) = jax.lax.scan(step, start, jax.random.split(key, 600))
        return {"draws": draws, "x": x, "y": y, "accepted": accepted}

    return sample, (jax.random.PRNGKey(seed), x, y)


def leapfrog(seed: int, half: Any = None) -> Any:
    """BlackJAX: the energy along a trajectory of its velocity Verlet, dense mass matrix."""
    blackjax = module("blackjax")
    x, y = _regression(seed)

    def trajectory(momentum: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def density(w: jax.Array) -> jax.Array:
            return -0.5 * jnp.sum((y - x @ w) ** 2) - 0.5 * jnp.sum(w**2)

        inverse = jnp.linalg.inv(x.T @ x + jnp.eye(6))
        metric = blackjax.mcmc.metrics.gaussian_euclidean(inverse)
        verlet = blackjax.mcmc.integrators.velocity_verlet(density, metric.kinetic_energy)
        start = blackjax.mcmc.integrators.new_integrator_state(
            density, jnp.zeros_like(momentum), momentum
        )

        def step(state: Any, _: Any) -> Any:
            state = verlet(state, 0.05)
            return state, metric.kinetic_energy(state.momentum) - state.logdensity

        state, energies = jax.lax.scan(step, start, None, length=100)
        return {"energy": energies, "drift": energies - energies[0], "position": state.position}

    return trajectory, (10 * normal(random(seed), 6), x, y)


def _tracking(seed: int) -> tuple[np.ndarray, ...]:
    rng = random(seed)
    dt = 0.1
    moves = np.eye(4, dtype="f") + dt * np.eye(4, k=2, dtype="f")
    sees = np.eye(2, 4, dtype="f")
    noise = 1e-3 * np.eye(4, dtype="f")
    error = 0.05 * np.eye(2, dtype="f")
    seen = np.cumsum(0.1 * normal(rng, 200, 2), 0) + 100.0
    return np.array([100, 100, 0, 0], "f"), moves, noise, sees, error, seen.astype("f")


def kalman(seed: int, half: Any = None) -> Any:
    """Dynamax: Kalman filter and smoother of a track; log-likelihood, means, covariances."""
    ssm = module("dynamax.linear_gaussian_ssm")
    make = module("dynamax.linear_gaussian_ssm.inference").make_lgssm_params

    def smooth(start: Any, moves: Any, noise: Any, sees: Any, error: Any, seen: Any) -> Any:
        params = make(start, jnp.eye(4), moves, noise, sees, error)
        found = ssm.lgssm_smoother(params, seen)
        return {
            "log-likelihood": found.marginal_loglik,
            "mean": found.smoothed_means,
            "covariance": found.smoothed_covariances,
        }

    return smooth, _tracking(seed)


def kalman_scan(seed: int, half: Any = None) -> Any:
    """A Kalman filter as textbooks write it: one scan, an inverse, batched over tracks."""

    def track(start: Any, moves: Any, noise: Any, sees: Any, error: Any, seen: Any) -> Any:
        def step(state: Any, y: jax.Array) -> Any:
            mean, cov, total = state
            mean, cov = moves @ mean, moves @ cov @ moves.T + noise
            innovation = y - sees @ mean
            spread = sees @ cov @ sees.T + error
            gain = cov @ sees.T @ jnp.linalg.inv(spread)
            total = total - 0.5 * (
                innovation @ jnp.linalg.solve(spread, innovation) + jnp.linalg.slogdet(spread)[1]
            )
            return (mean + gain @ innovation, cov - gain @ sees @ cov, total), mean

        first = (start, jnp.eye(4), 0.0 * start[0])
        (_, cov, total), means = jax.lax.scan(step, first, seen)
        return {"log-likelihood": total, "mean": means, "covariance": cov}

    def tracks(start: Any, moves: Any, noise: Any, sees: Any, error: Any, seen: Any) -> Any:
        many = jax.vmap(track, (None, None, None, None, None, 0))
        return many(start, moves, noise, sees, error, jnp.stack([seen, seen + 1, seen - 1]))

    return tracks, _tracking(seed)


def hidden_markov(seed: int, half: Any = None) -> Any:
    """Dynamax: Baum-Welch of a hidden Markov model; log-likelihoods and the learnt matrix."""
    smoother = module("dynamax.hidden_markov_model").hmm_smoother
    rng = random(seed)
    seen = np.repeat(rng.integers(0, 4, 25), 8) * 2.0 + normal(rng, 200)
    matrix = np.full((4, 4), 0.1, "f") + 0.6 * np.eye(4, dtype="f")

    def learn(matrix: jax.Array, centres: jax.Array, seen: jax.Array) -> Any:
        def step(state: Any, _: Any) -> Any:
            matrix, centres = state
            scores = -0.5 * (seen[:, None] - centres) ** 2
            found = smoother(jnp.full_like(centres, 0.25), matrix, scores)
            weights = found.smoothed_probs
            centres = weights.T @ seen / weights.sum(0)
            matrix = found.trans_probs / found.trans_probs.sum(1, keepdims=True)
            return (matrix, centres), found.marginal_loglik

        (matrix, centres), totals = jax.lax.scan(step, (matrix, centres), None, length=10)
        return {"log-likelihood": totals, "centres": centres, "transitions": matrix}

    return learn, (matrix, np.array([0, 2, 4, 6], "f") + 0.3, seen.astype("f"))


def mixture(seed: int, half: Any = None) -> Any:
    """Expectation maximisation of a mixture of normals with full covariances."""
    rng = random(seed)
    parts = [normal(rng, 100, 3) @ normal(rng, 3, 3) + 4 * normal(rng, 3) + 20 for _ in range(3)]
    x = np.concatenate(parts).astype("f")

    def learn(x: jax.Array, means: jax.Array) -> Any:
        def scores(means: jax.Array, covs: jax.Array, shares: jax.Array) -> jax.Array:
            density = jax.scipy.stats.multivariate_normal.logpdf
            each = jax.vmap(lambda m, c: density(x, m, c), out_axes=1)(means, covs)
            return jnp.add(each, jnp.log(shares))

        def step(state: Any, _: Any) -> Any:
            logits = scores(*state)
            total = jnp.sum(jax.nn.logsumexp(logits, axis=1))
            weights = jax.nn.softmax(logits, axis=1)
            counts = weights.sum(0)
            means = weights.T @ x / counts[:, None]
            centred = x[:, None] - means
            covs = jnp.einsum("nk,nki,nkj->kij", weights, centred, centred)
            covs = covs / counts[:, None, None] + 1e-3 * jnp.eye(3)
            return (means, covs, counts / x.shape[0]), total

        start = (means, jnp.tile(10 * jnp.eye(3), (3, 1, 1)), jnp.full_like(x, 1 / 3, shape=3))
        (means, covs, _), totals = jax.lax.scan(step, start, None, length=20)
        return {"log-likelihood": totals, "means": means, "covariances": covs}

    return learn, (x, x[[50, 150, 250]])


def k_means(seed: int, half: Any = None) -> Any:
    """Lloyd's k-means with distances by one dot, on points far from zero."""
    rng = random(seed)
    centres = 2 * normal(rng, 5, 8) + 10
    x = (centres[np.arange(400) % 5] + 0.7 * normal(rng, 400, 8)).astype("f")

    def learn(x: jax.Array, centres: jax.Array) -> Any:
        def step(centres: jax.Array, _: Any) -> Any:
            far = jnp.sum(x**2, 1)[:, None] - 2 * x @ centres.T + jnp.sum(centres**2, 1)
            mine = jax.nn.one_hot(jnp.argmin(far, 1), 5, dtype=x.dtype)
            return (mine.T @ x) / mine.sum(0)[:, None], jnp.mean(jnp.min(far, 1))

        centres, spread = jax.lax.scan(step, centres, None, length=10)
        return {"centres": centres, "inertia": spread}

    return learn, (x, x[:5])


PROGRAMS = (
    Program("NUTS, regression", nuts, "numpyro", _chain, known=True),
    Program("HMC, dense mass matrix", blackjax_hmc, "blackjax", _chain, known=True),
    Program("leapfrog energy", leapfrog, "blackjax"),
    Program("Kalman smoother", kalman, "dynamax"),
    Program("Kalman filter by hand", kalman_scan),
    Program("Baum-Welch", hidden_markov, "dynamax"),
    Program("mixture of normals, EM", mixture),
    Program("k-means", k_means),
)
