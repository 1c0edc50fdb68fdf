"""Pieces of solvers, simulators, filters and losses that random programs are made of.

Like :mod:`benchmarks.fuzzing.blocks`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jax import lax


def logit(x: Any) -> Any:
    """The logit of a clipped sigmoid."""
    p = jnp.clip(jax.nn.sigmoid(x), 1e-4, 0.9999)
    return jnp.log(p / (1 - p))


def cosine(x: Any, y: Any) -> Any:
    """Cosine similarities of rows."""
    unit = lambda a: a / (jnp.linalg.norm(a, axis=-1, keepdims=True) + 1e-3)  # noqa: E731
    return unit(x) @ unit(y).T


def cumulative_mean(x: Any, axis: int) -> Any:
    """The mean of all elements so far."""
    counts = 1 + jnp.arange(x.shape[axis])
    shape = [-1 if other == axis else 1 for other in range(x.ndim)]
    return jnp.cumsum(x, axis) / counts.reshape(shape)


def associative(x: Any) -> Any:
    """A recurrence by associative scan."""
    decay = jax.nn.sigmoid(x)
    join = lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])  # noqa: E731
    return lax.associative_scan(join, (decay, x))[1]


def accumulated(x: Any, stack: Any) -> Any:
    """A sum over the turns of a loop, without a dot between."""
    return lax.scan(lambda s, w: (s + jnp.tanh(x @ w), None), jnp.zeros_like(x), stack)[0]


def fori(x: Any, w: Any) -> Any:
    """A loop of fixed length."""
    return lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w) + 0.1 * x, x)


def euler(x: Any, w: Any) -> Any:
    """Euler steps of an ODE."""
    return lax.fori_loop(0, 8, lambda i, h: h + 0.05 * jnp.tanh(h @ w), x)


def runge_kutta(x: Any, w: Any) -> Any:
    """Two steps of the classical Runge-Kutta method."""
    slope = lambda h: jnp.tanh(h @ w) - 0.1 * h  # noqa: E731

    def step(h: Any, t: Any) -> Any:
        a = slope(h)
        b = slope(h + 0.05 * a)
        c = slope(h + 0.05 * b)
        d = slope(h + 0.1 * c)
        return h + 0.1 / 6 * (a + 2 * b + 2 * c + d), t

    return lax.scan(step, x, jnp.arange(2.0))[0]


def leapfrog(x: Any, w: Any) -> Any:
    """Leapfrog steps in the potential of a small network."""
    force = jax.grad(lambda q: -jnp.sum(jnp.log(jnp.cosh(q @ w))))

    def step(state: Any, _: Any) -> Any:
        q, p = state
        p = p + 0.05 * force(q)
        q = q + 0.1 * p
        return (q, p + 0.05 * force(q)), None

    return lax.scan(step, (x, jnp.zeros_like(x)), None, length=3)[0][0]


def inner_steps(x: Any, y: Any, w: Any) -> Any:
    """Two steps of gradient descent on weights, and a prediction with them (MAML)."""
    error = lambda w: jnp.mean(jnp.square(x @ w - y))  # noqa: E731
    for _ in range(2):
        w = w - 0.1 * jax.grad(error)(w)
    return x @ w


def ridge(x: Any, y: Any) -> Any:
    """Fitted values of a ridge regression."""
    gram = x.T @ x + 0.1 * jnp.eye(x.shape[1], dtype=x.dtype)
    return x @ jnp.linalg.solve(gram, x.T @ y)


def kernel(x: Any, y: Any) -> Any:
    """The squared-exponential kernel by squared distances."""
    squares = jnp.sum(x * x, 1)[:, None] + jnp.sum(y * y, 1)[None, :] - 2.0 * x @ y.T
    return jnp.exp(-0.5 * squares / x.shape[1])


def gaussian_process(x: Any, y: Any) -> Any:
    """Posterior mean of a Gaussian process at the points it was fitted to."""
    cov = kernel(x, x)
    chol = jsp.linalg.cho_factor(cov + 0.1 * jnp.eye(x.shape[0], dtype=x.dtype), lower=True)
    return cov @ jsp.linalg.cho_solve(chol, y)


def whitened(x: Any) -> Any:
    """Rows times the inverse Cholesky factor of their covariance."""
    centred = x - jnp.mean(x, 0)
    cov = centred.T @ centred / x.shape[0] + 0.5 * jnp.eye(x.shape[1], dtype=x.dtype)
    return jsp.linalg.solve_triangular(jnp.linalg.cholesky(cov), centred.T, lower=True).T


def spectral(x: Any) -> Any:
    """Singular values of a matrix of positive ones on the diagonal."""
    rows, columns = x.shape
    return jnp.linalg.svd(x + 2.0 * jnp.eye(rows, columns), compute_uv=False)


def principal(x: Any) -> Any:
    """Eigenvalues of a covariance."""
    return jnp.linalg.eigvalsh(x.T @ x / x.shape[0])


def orthogonal(x: Any) -> Any:
    """The triangular factor of a QR decomposition, signs aside."""
    return jnp.abs(jnp.diagonal(jnp.linalg.qr(x.T @ x + jnp.eye(x.shape[1], dtype=x.dtype))[1]))


def log_determinant(x: Any) -> Any:
    """The logarithm of a determinant."""
    return jnp.linalg.slogdet(x.T @ x / x.shape[0] + jnp.eye(x.shape[1], dtype=x.dtype))[1]


def determinant(x: Any) -> Any:
    """A determinant."""
    return jnp.linalg.det(0.2 * (x.T @ x) / x.shape[0] + jnp.eye(x.shape[1], dtype=x.dtype))


def inverse(x: Any) -> Any:
    """An inverse applied."""
    matrix = x.T @ x / x.shape[0] + jnp.eye(x.shape[1], dtype=x.dtype)
    return x @ jnp.linalg.inv(matrix)


def exponential(x: Any, w: Any) -> Any:
    """A matrix exponential applied."""
    return x @ jsp.linalg.expm(0.3 * (w - w.T))


def conjugate_gradient(x: Any, y: Any) -> Any:
    """A few steps of the conjugate gradient method on a regularised Gram matrix."""
    matrix = x.T @ x / x.shape[0] + jnp.eye(x.shape[1], dtype=x.dtype)
    return jsp.sparse.linalg.cg(lambda v: matrix @ v, jnp.mean(y, 0), maxiter=3)[0]


def newton(x: Any) -> Any:
    """Newton's iteration for a square root."""
    a = jnp.abs(x) + 0.5
    return lax.fori_loop(0, 4, lambda i, y: 0.5 * (y + a / y), a)


def max_pool(x: Any) -> Any:
    """The maximum of neighbours."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 1), (1, 1), "SAME")


def mean_pool(x: Any) -> Any:
    """The mean of neighbours."""
    return lax.reduce_window(x, 0.0, lax.add, (3, 1), (1, 1), "SAME") / 3.0


def cross_entropy(x: Any, labels: Any) -> Any:
    """Cross-entropy of each row."""
    return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None] % x.shape[1], 1)


def smoothed_cross_entropy(x: Any, labels: Any) -> Any:
    """Cross-entropy with smoothed labels."""
    wanted = jax.nn.one_hot(labels % x.shape[1], x.shape[1]) * 0.9 + 0.1 / x.shape[1]
    return jnp.sum(wanted * (jax.nn.logsumexp(x, -1, keepdims=True) - x), -1)


def focal(x: Any, labels: Any) -> Any:
    """Focal loss."""
    p = jnp.take_along_axis(jax.nn.softmax(x), labels[:, None] % x.shape[1], 1)
    return -jnp.square(1 - p) * jnp.log(p + 1e-6)


def contrastive(x: Any, y: Any) -> Any:
    """InfoNCE of two sets of rows."""
    a = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    b = y / (jnp.linalg.norm(y, axis=-1, keepdims=True) + 1e-6)
    logits = a @ b.T / 0.2
    return jax.nn.logsumexp(logits, 1) - jnp.diagonal(logits)


def gaussian_nll(x: Any, w: Any) -> Any:
    """Negative log-likelihood under predicted means and scales."""
    mean, scale = x @ w, jax.nn.softplus(x) + 0.1
    return 0.5 * jnp.square((x - mean) / scale) + jnp.log(scale)


def kl_divergence(x: Any, y: Any) -> Any:
    """Kullback-Leibler divergence of the softmaxes of rows."""
    p, q = jax.nn.log_softmax(x), jax.nn.log_softmax(y)
    return jnp.sum(jnp.exp(p) * (p - q), -1)


def huber(x: Any, y: Any) -> Any:
    """Huber loss."""
    size = jnp.abs(x - y)
    return jnp.where(size < 1.0, 0.5 * size * size, size - 0.5)


def segments(x: Any, labels: Any) -> Any:
    """Means of the rows with the same label, handed back to them."""
    sums = jax.ops.segment_sum(x, labels % 3, 3)
    counts = jax.ops.segment_sum(jnp.ones(x.shape[0]), labels % 3, 3)
    return (sums / jnp.maximum(counts, 1.0)[:, None])[labels % 3]


def vector_quantised(x: Any, codes: Any) -> Any:
    """The nearest code, with the derivative of the input."""
    distances = jnp.sum(jnp.square(x[:, None] - codes[None]), -1)
    nearest = codes[jnp.argmin(distances, -1)]
    return x + lax.stop_gradient(nearest - x)


def sinkhorn(x: Any, y: Any) -> Any:
    """Three turns of Sinkhorn's algorithm in the log domain."""
    cost = -jnp.sum(jnp.square(x[:, None] - y[None]), -1) / x.shape[1]
    f, g = jnp.zeros(x.shape[0]), jnp.zeros(y.shape[0])
    for _ in range(3):
        f = -jax.nn.logsumexp(cost + g[None], 1)
        g = -jax.nn.logsumexp(cost + f[:, None], 0)
    return jnp.exp(cost + f[:, None] + g[None]) @ y


def fourier_features(x: Any, w: Any) -> Any:
    """Random Fourier features."""
    angles = 2.0 * x @ w
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)[:, : x.shape[1]]


def straight_through(x: Any) -> Any:
    """Rounded to a coarse grid, with the derivative of the identity."""
    return x + lax.stop_gradient(jnp.round(x * 4.0) / 4.0 - x)


def branches(x: Any, w: Any) -> Any:
    """A branch that an input decides."""
    return lax.cond(w[0, 0] > 0, lambda: jnp.tanh(x @ w), lambda: x * 0.5)


def vmapped(x: Any, w: Any) -> Any:
    """A function of one row over all rows."""
    return jax.vmap(lambda row: jnp.tanh(row @ w) * jnp.sum(row))(x)


def input_gradient(x: Any, w: Any) -> Any:
    """The gradient of a scalar with respect to the input, as in a physics-informed loss."""
    return jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w) ** 2))(x)


def divergence(x: Any, w: Any) -> Any:
    """Derivative along a direction."""
    return jax.jvp(lambda x: jnp.tanh(x @ w) @ w.T, (x,), (jnp.ones_like(x),))[1]


def tridiagonal(x: Any) -> Any:
    """A tridiagonal system for each row, as of an implicit heat equation."""
    size = x.shape[1]
    low, diagonal = -0.3 * jnp.ones(size).at[0].set(0.0), 1.6 * jnp.ones(size)
    upper = -0.3 * jnp.ones(size).at[-1].set(0.0)
    return lax.linalg.tridiagonal_solve(low, diagonal, upper, x.T).T


def lu_solve(x: Any, v: Any) -> Any:
    """A system with a matrix that is not symmetric."""
    matrix = x.T @ x / x.shape[0] + jnp.triu(jnp.ones((x.shape[1],) * 2)) + jnp.eye(x.shape[1])
    return jsp.linalg.lu_solve(jsp.linalg.lu_factor(matrix), v)


def rotation(x: Any) -> Any:
    """Points turned by Rodrigues' formula, by angles of their own."""
    axis, points = x[:, :3], x[:, -3:]
    angle = jnp.sqrt(jnp.sum(axis * axis, -1, keepdims=True) + 1e-6)
    unit = axis / angle
    along = unit * jnp.sum(unit * points, -1, keepdims=True)
    across = jnp.cross(unit, points)
    return points * jnp.cos(angle) + across * jnp.sin(angle) + along * (1 - jnp.cos(angle))


def quaternions(x: Any) -> Any:
    """Rotation matrices of quaternions, applied to points."""
    q = x[:, :4] / (jnp.linalg.norm(x[:, :4], axis=-1, keepdims=True) + 1e-3)
    w, i, j, k = q[:, 0], q[:, 1], q[:, 2], q[:, 3]
    rows = [
        jnp.stack([1 - 2 * (j * j + k * k), 2 * (i * j - w * k), 2 * (i * k + w * j)], -1),
        jnp.stack([2 * (i * j + w * k), 1 - 2 * (i * i + k * k), 2 * (j * k - w * i)], -1),
        jnp.stack([2 * (i * k - w * j), 2 * (j * k + w * i), 1 - 2 * (i * i + j * j)], -1),
    ]
    return jnp.einsum("nij,nj->ni", jnp.stack(rows, 1), x[:, :3])


def halved(x: Any, w: Any) -> Any:
    """A loop that ends when the value is small."""
    start = (jnp.int32(0), lax.stop_gradient(jnp.tanh(x @ w)))
    going = lambda state: (jnp.max(jnp.abs(state[1])) > 0.3) & (state[0] < 6)  # noqa: E731
    return x + lax.while_loop(going, lambda state: (state[0] + 1, 0.5 * state[1]), start)[1]


def implicit(x: Any, w: Any) -> Any:
    """A fixed point of ``z = tanh(0.3 z w + x)`` with the gradient of one more step."""
    step = lambda z: jnp.tanh(0.3 * z @ w + x)  # noqa: E731
    fixed = lax.fori_loop(0, 6, lambda i, z: step(z), jnp.zeros_like(x))
    return step(lax.stop_gradient(fixed))


def energy(x: Any) -> Any:
    """Log-sum-exp energy of pairwise distances."""
    differences = x[:, None] - x[None]
    distances = jnp.sqrt(jnp.sum(differences**2, -1) + 1e-4)
    return jax.nn.logsumexp(-distances, -1)


def potential(x: Any) -> Any:
    """Forces of a Lennard-Jones potential, as of molecular dynamics."""

    def of_points(points: Any) -> Any:
        squares = jnp.sum(jnp.square(points[:, None] - points[None]), -1)
        far = squares + 2.0 * jnp.eye(points.shape[0]) + 1.0
        return jnp.sum(far**-6 - 2.0 * far**-3) / 2

    return -jax.grad(of_points)(x[:, :3])


def kalman(x: Any, w: Any) -> Any:
    """A Kalman filter with a step of prediction between observations."""
    size = x.shape[1]
    transition, eye = 0.9 * jnp.eye(size) + 0.05 * w, jnp.eye(size)

    def step(state: Any, row: Any) -> Any:
        mean, cov = state
        mean, cov = transition @ mean, transition @ cov @ transition.T + 0.1 * eye
        gain = jnp.linalg.solve(cov + 0.5 * eye, cov).T
        mean = mean + gain @ (row - mean)
        return (mean, cov - gain @ cov), mean

    return lax.scan(step, (jnp.zeros(size), eye), x)[1]


def forward_algorithm(x: Any, w: Any) -> Any:
    """Log-likelihoods of a hidden Markov model."""
    change = jax.nn.log_softmax(w)

    def step(alpha: Any, row: Any) -> Any:
        alpha = jax.nn.logsumexp(alpha[:, None] + change, 0) + jax.nn.log_softmax(row)
        return alpha, alpha

    return lax.scan(step, jnp.zeros(x.shape[1]), x)[1]


def forward_scores(x: Any, w: Any) -> Any:
    """The same with probabilities that are normalised at each step."""
    change = jax.nn.softmax(w)

    def step(alpha: Any, row: Any) -> Any:
        alpha = (alpha @ change) * jax.nn.softmax(row)
        total = jnp.sum(alpha)
        return alpha / total, jnp.log(total)

    return lax.scan(step, jnp.full(x.shape[1], 1.0 / x.shape[1]), x)[1]


def adam(x: Any, y: Any, w: Any) -> Any:
    """Two steps of Adam on weights, and a prediction with them."""
    first, second = jnp.zeros_like(w), jnp.zeros_like(w)
    for turn in (1, 2):
        gradient = jax.grad(lambda w: jnp.mean(jnp.square(jnp.tanh(x @ w) - y)))(w)
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        unbiased = jnp.sqrt(second / (1 - 0.99**turn)) + 1e-4
        w = w - 0.01 * first / (1 - 0.9**turn) / unbiased
    return x @ w


def mixture(x: Any, means: Any) -> Any:
    """Responsibilities of a mixture of normal distributions, and the new means."""
    logits = -0.5 * jnp.sum(jnp.square(x[:, None] - means[None]), -1)
    weights = jax.nn.softmax(logits)
    return weights.T @ x / (jnp.sum(weights, 0)[:, None] + 1e-3)
