"""Samplers, filters, densities and Gaussian processes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.science.case import Figures, Program, Tree, layers, module, network, normal, random


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


def gp_gpjax(seed: int, half: Any = None) -> Any:
    """GPJax: posterior and marginal likelihood of its regression example."""
    gpx = module("gpjax")
    rng = random(seed)
    x = rng.uniform(-3, 3, (60, 1)).astype("float32")
    y = (np.sin(4 * x) + np.cos(2 * x) + 0.3 * normal(rng, 60, 1)).astype("float32")

    def regress(x: jax.Array, y: jax.Array, at: jax.Array) -> Any:
        data = gpx.Dataset(X=x, y=y)
        prior = gpx.gps.Prior(gpx.kernels.RBF(), gpx.mean_functions.Zero())
        posterior = prior * gpx.likelihoods.Gaussian(0.1)
        latent = posterior.predict(at, data)
        mll = gpx.objectives.conjugate_mll(posterior, data)
        variance = jnp.diag(latent.covariance())
        return {"mean": latent.mean, "variance": variance, "log-likelihood": mll}

    return regress, (x, y, np.linspace(-3.5, 3.5, 200, dtype="float32")[:, None])


def _flow(weights: Any, x: jax.Array, half: Any) -> tuple[jax.Array, jax.Array]:
    """Two affine couplings: the base point and the logarithm of the determinant."""
    total = jnp.zeros_like(x, shape=x.shape[0])
    for layer in weights:
        left, right = jnp.split(x, 2, axis=1)
        shift, scale = jnp.split(network(left, layer, half), 2, axis=1)
        right = (right - shift) * jnp.exp(-jnp.tanh(scale))
        total = total - jnp.sum(jnp.tanh(scale), axis=1)
        x = jnp.concatenate([right, left], axis=1)
    return x, total


def flow(seed: int, half: Any = None) -> Any:
    """A normalising flow of affine couplings over a correlated normal: log-probability."""
    distrax = module("distrax")
    rng = random(seed)
    weights = [layers(rng, 4, 32, 8) for _ in range(3)]
    root = normal(rng, 8, 8)
    covariance = root @ root.T / 8 + 0.01 * np.eye(8, dtype="float32")

    def log_prob(weights: Any, covariance: jax.Array, x: jax.Array) -> Any:
        point, total = _flow(weights, x, half)
        base = distrax.MultivariateNormalFullCovariance(jnp.zeros(8), covariance)
        return {"log-probability": base.log_prob(point) + total}

    return log_prob, (weights, covariance, normal(rng, 64, 8))


def mahalanobis(seed: int, half: Any = None) -> Any:
    """distrax: log-density of a correlated normal whose covariance is that of the data."""
    distrax = module("distrax")
    rng = random(seed)
    x = normal(rng, 200, 12) @ normal(rng, 12, 12)

    def log_prob(x: jax.Array) -> Any:
        centred = x - jnp.mean(x, 0)
        covariance = centred.T @ centred / (x.shape[0] - 1)
        density = distrax.MultivariateNormalFullCovariance(jnp.mean(x, 0), covariance)
        return {"log-density": density.log_prob(x)}

    return log_prob, (x,)


PROGRAMS = (
    Program("NUTS, regression", nuts, "numpyro", _chain, known=True),
    Program("HMC, dense mass matrix", blackjax_hmc, "blackjax", _chain, known=True),
    Program("leapfrog energy", leapfrog, "blackjax"),
    Program("Kalman smoother", kalman, "dynamax"),
    Program("Baum-Welch", hidden_markov, "dynamax"),
    Program("Gaussian process regression", gp_gpjax, "gpjax"),
    Program("normalising flow", flow, "distrax", network=True),
    Program("normal density of data", mahalanobis, "distrax"),
)
