"""Gaussian processes, ridge heads and what else solves for weights in closed form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.science.case import Program, layers, module, network, normal, random

NOISE = 1e-3


def _kernel(a: jax.Array, b: jax.Array, width: Any = 0.5) -> jax.Array:
    return jnp.exp(-0.5 * ((a[:, None] - b) / width) ** 2)


def _curve(x: np.ndarray) -> np.ndarray:
    return x + 0.2 * x**3 + 0.5 * (0.5 + x) ** 2 * np.sin(4.0 * x)


def gp_predict(seed: int, half: Any = None) -> Any:
    """Prediction of a Gaussian process, as in the reproducer of that name."""
    rng = random(seed)
    x = np.sort(rng.uniform(-1, 1, 30)).astype("float32")

    def predict(x: jax.Array, y: jax.Array, at: jax.Array) -> Any:
        factor = jax.scipy.linalg.cho_factor(_kernel(x, x) + NOISE * jnp.eye(x.shape[0]))
        across = _kernel(at, x)
        weights = jax.scipy.linalg.cho_solve(factor, across.T)
        covariance = _kernel(at, at) + NOISE * jnp.eye(at.shape[0]) - across @ weights
        mean = across @ jax.scipy.linalg.cho_solve(factor, y)
        return {"mean": mean, "variance": jnp.diag(covariance)}

    return predict, (x, _curve(x), np.linspace(-1.3, 1.3, 400, dtype="float32"))


def gp_learn(seed: int, half: Any = None) -> Any:
    """Marginal log-likelihood of a Gaussian process, and its gradient."""
    rng = random(seed)
    x = np.sort(rng.uniform(-2, 2, 80)).astype("float32")
    y = _curve(x) + 0.1 * normal(rng, 80)

    def likelihood(log: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        width, height, noise = jnp.exp(log)
        gram = height * _kernel(x, x, width) + noise * jnp.eye(x.shape[0])
        lower = jnp.linalg.cholesky(gram)
        white = jax.scipy.linalg.solve_triangular(lower, y, lower=True)
        return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(lower)))

    def step(log: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(likelihood)(log, x, y)
        return {"log-likelihood": value, "gradient": gradient}

    return step, (np.log(np.array([0.5, 1.0, 0.01], "float32")), x, y)


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


def _episode(seed: int) -> tuple[np.ndarray, ...]:
    rng = random(seed)
    mix = normal(rng, 8, 64)
    support = np.maximum(normal(rng, 50, 8) @ mix, 0) + np.float32(0.1)
    query = np.maximum(normal(rng, 200, 8) @ mix, 0) + np.float32(0.1)
    return support, np.eye(5, dtype="float32")[np.arange(50) % 5], query


def ridge_head(seed: int, half: Any = None) -> Any:
    """The ridge regression head of R2-D2, on given features."""

    def head(z: jax.Array, y: jax.Array, query: jax.Array) -> Any:
        weights = jnp.linalg.solve(z.T @ z + 0.1 * jnp.eye(z.shape[1]), z.T @ y)
        return {"logits": query @ weights}

    return head, _episode(seed)


def ridge_dual(seed: int, half: Any = None) -> Any:
    """The same through the Gram matrix of the examples."""

    def head(z: jax.Array, y: jax.Array, query: jax.Array) -> Any:
        return {"logits": query @ (z.T @ jnp.linalg.solve(z @ z.T + 0.1 * jnp.eye(50), y))}

    return head, _episode(seed)


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

    def step(*args: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(*args)
        return {"loss": value, "gradient": gradient}

    return step, (weights, support, targets, query)


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


def laplace(seed: int, half: Any = None) -> Any:
    """Logistic regression by Newton's method; the Laplace approximation of its evidence."""
    rng = random(seed)
    x = normal(rng, 200, 10) * np.logspace(0, -1, 10, dtype="float32")
    y = (x @ normal(rng, 10) + 0.5 * normal(rng, 200) > 0).astype("float32")

    def energy(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = x @ w
        return jnp.sum(jnp.logaddexp(0.0, logits) - y * logits) + 0.05 * jnp.sum(w**2)

    def approximate(x: jax.Array, y: jax.Array) -> Any:
        def newton(w: jax.Array, _: Any) -> Any:
            hessian = jax.hessian(energy)(w, x, y)
            return w - jnp.linalg.solve(hessian, jax.grad(energy)(w, x, y)), None

        mode, _ = jax.lax.scan(newton, jnp.zeros_like(x, shape=10), None, length=12)
        hessian = jax.hessian(energy)(mode, x, y)
        _, logdet = jnp.linalg.slogdet(hessian)
        variance = jnp.diag(jnp.linalg.inv(hessian))
        return {"mode": mode, "variance": variance, "evidence": -energy(mode, x, y) - logdet / 2}

    return approximate, (x, y)


def determinantal(seed: int, half: Any = None) -> Any:
    """Log-likelihood of a determinantal point process, and its gradient."""
    rng = random(seed)
    features = normal(rng, 40, 24)
    chosen = rng.choice(40, 12, replace=False).astype("int32")

    def likelihood(features: jax.Array, chosen: jax.Array) -> jax.Array:
        kernel = features @ features.T
        part = kernel[chosen][:, chosen]
        whole = jnp.eye(40) + kernel
        return jnp.linalg.slogdet(part)[1] - jnp.linalg.slogdet(whole)[1]

    def step(features: jax.Array, chosen: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(likelihood)(features, chosen)
        return {"log-likelihood": value, "gradient": gradient}

    return step, (features, chosen)


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
    Program("Gaussian process, prediction", gp_predict),
    Program("Gaussian process, learning", gp_learn),
    Program("Gaussian process regression", gp_gpjax, "gpjax"),
    Program("ridge head (R2-D2)", ridge_head),
    Program("ridge head, dual", ridge_dual),
    Program("ridge head after a network", meta_ridge, network=True),
    Program("deep kernel learning", deep_kernel, network=True),
    Program("Laplace approximation", laplace),
    Program("determinantal point process", determinantal),
    Program("normalising flow", flow, "distrax", network=True),
    Program("normal density of data", mahalanobis, "distrax"),
)
