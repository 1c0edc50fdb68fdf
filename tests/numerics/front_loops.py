"""Iterations with matrices, as people write them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax import lax

R = np.random.default_rng(1)


def normal(*shape: int, scale: float = 1.0) -> Any:
    return (R.normal(size=shape) * scale).astype(np.float32)


N = 32
A = normal(N, N)
A = (A @ A.T / N + np.eye(N)).astype("f")
V, VS = normal(N), normal(N, 8)
LINKS = (R.random((N, N)) < 0.2) + 1e-3
LINKS = (LINKS / LINKS.sum(0)).astype("f")
TURNS = 30


def loop(f: Any, v: Any, turns: Any = TURNS) -> Any:
    return lax.scan(lambda v, _: (f(v), None), v, None, length=turns)[0]


def unit(v: Any) -> Any:
    return v / jnp.linalg.norm(v, axis=0)


def power_with(f: Any) -> Any:
    return lambda dot, a, v: loop(lambda v: unit(f(a @ v)), v)


ORDER = np.arange(N, dtype=np.int32)[::-1].copy()
BETWEEN = {
    "nothing": lambda v: v,
    "cumsum": lambda v: jnp.cumsum(v, 0),
    "cumprod": lambda v: v * jnp.cumprod(1 + 1e-3 * v, 0),
    "scatter": lambda v: jnp.zeros_like(v).at[ORDER].add(v),
    "scatter max": lambda v: jnp.full_like(v, -1e3).at[ORDER].max(v),
    "clip": lambda v: jnp.clip(v, -1e3, 1e3),
    "clip above": lambda v: jnp.minimum(v, 1e3),
    "fft": lambda v: jnp.real(jnp.fft.ifft(jnp.fft.fft(v, axis=0), axis=0)),
    "sort": lambda v: jnp.sort(v, 0),
    "roll": lambda v: jnp.roll(v, 1, 0),
    "diff": lambda v: v - 0.5 * jnp.roll(v, 1, 0),
    "top": lambda v: lax.top_k(v.T, N)[0].T,
    "cummax": lambda v: v + 0.1 * lax.cummax(v, 0),
    "prod": lambda v: v * jnp.prod(1 + 1e-3 * v),
    "floor": lambda v: v + 0.0 * jnp.floor(v),
    "sign": lambda v: v + 0.1 * jnp.sign(v),
    "cond": lambda v: lax.cond(jnp.sum(v) > 0, lambda v: v, lambda v: -v, v),
    "where": lambda v: jnp.where(v > 1e9, 0.0, v),
    "nan to num": lambda v: jnp.nan_to_num(v),
    "gather": lambda v: v[ORDER],
    "convolve": lambda v: jsp.signal.convolve(v, jnp.ones((3, 1), v.dtype) / 3, mode="same"),
    "real": lambda v: jnp.real(v + 0j),
    "abs": lambda v: jnp.abs(v),
    "checkpoint": lambda v: jax.checkpoint(lambda v: v * 2)(v),
    "jit": lambda v: jax.jit(lambda v: v * 2)(v),
    "precision": lambda v: lax.reduce_precision(v, 8, 23),
    "map": lambda v: lax.map(lambda r: r * 2, v),
    "inner loop": lambda v: lax.fori_loop(0, 3, lambda _, v: v * 1.1, v),
    "atan": lambda v: jnp.arctan2(v, jnp.ones_like(v)) + v,
}
ITERATIONS = {f"power with {n}": (power_with(f), (A, VS)) for n, f in BETWEEN.items()}


def block_power(dot: Any, a: Any, v: Any) -> Any:
    return jnp.abs(loop(lambda v: jnp.linalg.qr(a @ v)[0], v))


def gram_schmidt(dot: Any, a: Any, v: Any) -> Any:
    def turn(v: Any) -> Any:
        v = a @ v
        q = []
        for i in range(v.shape[1]):
            x = v[:, i]
            for y in q:
                x = x - y * jnp.vdot(y, x)
            q.append(x / jnp.linalg.norm(x))
        return jnp.stack(q, 1)

    return loop(turn, v[:, :3])


def page_rank(dot: Any, m: Any, v: Any) -> Any:
    v = jnp.abs(v) / jnp.abs(v).sum(0)
    return loop(lambda v: jnp.clip(0.85 * m @ v + 0.15 / m.shape[0], 1e-6, 1.0), v)


def page_rank_norm(dot: Any, m: Any, v: Any) -> Any:
    def turn(v: Any) -> Any:
        v = 0.85 * m @ v + 0.15 / m.shape[0]
        return v / jnp.maximum(v.sum(0), 1e-12)

    return loop(turn, jnp.abs(v))


def hits(dot: Any, m: Any, v: Any) -> Any:
    def turn(hubs: Any) -> Any:
        authorities = unit(m.T @ hubs)
        return unit(m @ authorities)

    return loop(turn, jnp.abs(v))


def sinkhorn(dot: Any, cost: Any, a: Any, b: Any) -> Any:
    k = jnp.exp(-cost / 0.2)

    def turn(state: Any) -> Any:
        u, v = state
        u = a / (k @ v)
        return u, b / (k.T @ u)

    u, v = loop(turn, (jnp.ones_like(a), jnp.ones_like(b)))
    return u[:, None] * k[..., None] * v[None]


def sinkhorn_gradient(dot: Any, cost: Any, a: Any, b: Any) -> Any:
    return jax.grad(lambda c: jnp.sum(sinkhorn(dot, c, a, b) * c[..., None]))(cost)


def sinkhorn_of_matrix(dot: Any, cost: Any) -> Any:
    """Rows and columns in turn, without a product."""
    k = jnp.exp(-cost)
    return loop(lambda k: (k / k.sum(0)) / (k / k.sum(0)).sum(1, keepdims=True), k)


def sinkhorn_by_conv(dot: Any, a: Any, b: Any, g: Any) -> Any:
    blur = lambda v: lax.conv_general_dilated(v, g, (1, 1), "SAME")  # noqa: E731

    def turn(state: Any) -> Any:
        u, v = state
        u = a / (blur(v) + 1e-12)
        return u, b / (blur(u) + 1e-12)

    u, v = loop(turn, (jnp.ones_like(a), jnp.ones_like(b)))
    return u * blur(v), v * blur(u)


def sinkhorn_in_logs(dot: Any, cost: Any, a: Any, b: Any) -> Any:
    def turn(f: Any) -> Any:
        g = jnp.log(b[:, 0]) - jax.nn.logsumexp(-cost / 0.2 + f[:, None], 0)
        return jnp.log(a[:, 0]) - jax.nn.logsumexp(-cost / 0.2 + g[None], 1)

    return loop(turn, jnp.zeros_like(a[:, 0]))


def richardson_lucy(dot: Any, seen: Any, psf: Any) -> Any:
    blur = lambda v, w: lax.conv_general_dilated(v, w, (1, 1), "SAME")  # noqa: E731
    flipped = psf[..., ::-1, ::-1]
    return loop(lambda x: x * blur(seen / (blur(x, psf) + 1e-6), flipped), jnp.full_like(seen, 0.5))


def richardson_lucy_by_dots(dot: Any, seen: Any, m: Any) -> Any:
    return loop(lambda x: x * (m.T @ (seen / (m @ x))) / m.sum(0)[:, None], jnp.ones_like(seen))


def ista(dot: Any, a: Any, b: Any) -> Any:
    def turn(x: Any) -> Any:
        x = x - 0.2 * (a.T @ (a @ x - b))
        return jnp.sign(x) * jnp.maximum(jnp.abs(x) - 0.01, 0)

    return loop(turn, jnp.zeros_like(b), 60)


def ista_by_relu(dot: Any, a: Any, b: Any) -> Any:
    def turn(x: Any) -> Any:
        x = x - 0.2 * (a.T @ (a @ x - b))
        return jax.nn.relu(x - 0.01) - jax.nn.relu(-x - 0.01)

    return loop(turn, jnp.zeros_like(b), 60)


def ista_by_where(dot: Any, a: Any, b: Any) -> Any:
    def turn(x: Any) -> Any:
        x = x - 0.2 * (a.T @ (a @ x - b))
        return jnp.where(jnp.abs(x) > 0.01, x - 0.01 * jnp.sign(x), 0)

    return loop(turn, jnp.zeros_like(b), 60)


def ista_by_clip(dot: Any, a: Any, b: Any) -> Any:
    def turn(x: Any) -> Any:
        x = x - 0.2 * (a.T @ (a @ x - b))
        return x - jnp.clip(x, -0.01, 0.01)

    return loop(turn, jnp.zeros_like(b), 60)


def ista_by_argument(dot: Any, a: Any, b: Any, step: Any, threshold: Any) -> Any:
    def turn(x: Any) -> Any:
        x = x - step * (a.T @ (a @ x - b))
        return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0.0)

    return loop(turn, jnp.zeros_like(b), 60)


def fista(dot: Any, a: Any, b: Any) -> Any:
    def turn(state: Any) -> Any:
        x, y, t = state
        new = y - 0.2 * (a.T @ (a @ y - b))
        new = jnp.sign(new) * jnp.maximum(jnp.abs(new) - 0.01, 0)
        after = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        return new, new + (t - 1) / after * (new - x), after

    return loop(turn, (jnp.zeros_like(b), jnp.zeros_like(b), jnp.ones((), b.dtype)), 60)[0]


def nonnegative(dot: Any, a: Any, b: Any) -> Any:
    return loop(lambda x: jnp.maximum(x - 0.2 * (a.T @ (a @ x - b)), 0), jnp.zeros_like(b), 60)


def nonnegative_by_relu(dot: Any, a: Any, b: Any) -> Any:
    return loop(lambda x: jax.nn.relu(x - 0.2 * (a.T @ (a @ x - b))), jnp.zeros_like(b), 60)


def factorization(dot: Any, v: Any, w: Any, h: Any) -> Any:
    def turn(state: Any) -> Any:
        w, h = state
        h = h * (w.T @ v) / (w.T @ w @ h + 1e-9)
        return w * (v @ h.T) / (w @ (h @ h.T) + 1e-9), h

    w, h = loop(turn, (w, h))
    return w @ h


def primal_dual(dot: Any, a: Any, b: Any, c: Any) -> Any:
    """A linear program."""

    def turn(state: Any) -> Any:
        x, y = state
        new = jnp.maximum(x - 0.1 * (c - a.T @ y), 0.0)
        return new, y + 0.1 * (b - a @ (2 * new - x))

    return loop(turn, (jnp.zeros_like(b), jnp.zeros_like(b)), 100)


def denoised(dot: Any, y: Any, d: Any) -> Any:
    """Total variation by a dual step and a projection."""

    def turn(p: Any) -> Any:
        p = p + 0.1 * (d @ (y - d.T @ p))
        return p / jnp.maximum(1.0, jnp.abs(p) / 0.1)

    return y - d.T @ loop(turn, jnp.zeros_like(y), 60)


def admm(dot: Any, a: Any, b: Any) -> Any:
    def turn(state: Any) -> Any:
        z, u = state
        x = jnp.linalg.solve(a.T @ a + jnp.eye(a.shape[0]), a.T @ b + z - u)
        z = jnp.sign(x + u) * jnp.maximum(jnp.abs(x + u) - 0.05, 0)
        return z, u + x - z

    return loop(turn, (jnp.zeros_like(b), jnp.zeros_like(b)), 20)[0]


def anderson(dot: Any, a: Any, b: Any) -> Any:
    """Anderson acceleration of a linear fixed point, with a memory of 3."""
    g = lambda x: x - 0.15 * (a @ x - b)  # noqa: E731

    def turn(i: Any, state: Any) -> Any:
        xs, fs = state
        f = fs - xs
        gram = jnp.einsum("id,jd->ij", f, f) + 1e-6 * jnp.eye(3)
        alpha = jnp.linalg.solve(gram, jnp.ones(3, xs.dtype))
        x = (alpha / alpha.sum()) @ fs
        return xs.at[i % 3].set(x), fs.at[i % 3].set(g(x))

    xs = jnp.stack([jnp.zeros_like(b), g(jnp.zeros_like(b)), b])
    return lax.fori_loop(0, 12, turn, (xs, jax.vmap(g)(xs)))[1][2]


def lanczos(dot: Any, a: Any, v: Any) -> Any:
    def turn(state: Any, _: Any) -> Any:
        q, old, beta = state
        w = a @ q - beta * old
        alpha = jnp.vdot(q, w)
        w = w - alpha * q
        beta = jnp.linalg.norm(w)
        return (w / beta, q, beta), (alpha, beta)

    return lax.scan(turn, (unit(v), jnp.zeros_like(v), jnp.zeros((), v.dtype)), None, length=6)[1]


def lanczos_of_blocks(dot: Any, a: Any, v: Any) -> Any:
    def turn(state: Any, _: Any) -> Any:
        q, old, beta = state
        w = a @ q - beta * old
        alpha = jnp.sum(q * w, 0)
        w = w - alpha * q
        beta = jnp.linalg.norm(w, axis=0)
        return (w / beta, q, beta), (alpha, beta)

    start = (unit(v), jnp.zeros_like(v), jnp.zeros(v.shape[1:], v.dtype))
    return lax.scan(turn, start, None, length=6)[1]


def chebyshev(dot: Any, a: Any, v: Any) -> Any:
    """A filter of a graph by Chebyshev polynomials."""
    half = a / 4 - jnp.eye(a.shape[0])

    def turn(state: Any) -> Any:
        x, y = state
        return y, 2 * half @ y - x

    return loop(turn, (v, half @ v), 20)


def jacobi(dot: Any, a: Any, b: Any) -> Any:
    d = jnp.diag(a)[:, None]
    rest = a / 8 - jnp.diag(jnp.diag(a / 8))
    return loop(lambda x: (b - rest @ x) / d, jnp.zeros_like(b))


def heat(dot: Any, u: Any, k: Any) -> Any:
    step = lambda u: u + 0.2 * lax.conv_general_dilated(u, k, (1, 1), "SAME")  # noqa: E731
    return loop(step, u, 60)


def waves(dot: Any, u: Any, k: Any) -> Any:
    def turn(state: Any) -> Any:
        u, v = state
        v = v + 0.1 * lax.conv_general_dilated(u, k, (1, 1), "SAME")
        return u + 0.1 * v, v

    return loop(turn, (u, jnp.zeros_like(u)), 60)[0]


def gray_scott(dot: Any, u: Any, v: Any, k: Any) -> Any:
    def turn(state: Any) -> Any:
        u, v = state
        lap = lambda x: lax.conv_general_dilated(x, k, (1, 1), "SAME")  # noqa: E731
        reaction = u * v * v
        return u + 0.16 * lap(u) - reaction + 0.035 * (1 - u), v + 0.08 * lap(
            v
        ) + reaction - 0.1 * v

    return loop(turn, (u, v), 60)


def value_iteration(dot: Any, moves: Any, reward: Any) -> Any:
    """Bellman's equation of 12 discounts at once."""
    discount = jnp.linspace(0.5, 0.95, 12, dtype=reward.dtype)
    turn = lambda v: jnp.max(reward[:, :, None] + discount * jnp.einsum("ast,tk->ask", moves, v), 0)  # noqa: E731
    return loop(turn, jnp.zeros((moves.shape[1], 12), reward.dtype), 60)


def label_propagation(dot: Any, links: Any, y: Any) -> Any:
    return loop(lambda f: 0.9 * links @ f + 0.1 * y, y)


def matrix_exponential(dot: Any, a: Any) -> Any:
    def turn(state: Any) -> Any:
        term, total, i = state
        term = term @ a / i
        return term, total + term, i + 1

    eye = jnp.eye(a.shape[0], dtype=a.dtype)
    return loop(turn, (eye, eye, jnp.ones((), a.dtype)), 20)[1]


def newton_schulz(dot: Any, a: Any) -> Any:
    x = a / jnp.linalg.norm(a)
    return loop(lambda x: 1.5 * x - 0.5 * x @ x.T @ x, x, 25)


def square_root(dot: Any, a: Any) -> Any:
    def turn(state: Any) -> Any:
        y, z = state
        t = 0.5 * (3 * jnp.eye(a.shape[0]) - z @ y)
        return y @ t, t @ z

    n = jnp.linalg.norm(a)
    return loop(turn, (a / n, jnp.eye(a.shape[0], dtype=a.dtype)), 20)[0] * jnp.sqrt(n)


def adam_on_squares(dot: Any, a: Any, b: Any) -> Any:
    def turn(state: Any) -> Any:
        x, m, v, t = state
        g = a.T @ (a @ x - b)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = 0.05 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        return x - step, m, v, t + 1

    zero = jnp.zeros_like(b)
    return loop(turn, (zero, zero, zero, jnp.ones((), b.dtype)), 60)[0]


def clipped_descent(dot: Any, a: Any, b: Any) -> Any:
    """Gradient descent with gradients clipped by their norm."""

    def turn(x: Any) -> Any:
        g = a.T @ (a @ x - b)
        return x - 0.2 * g * jnp.minimum(1.0, 10.0 / (jnp.linalg.norm(g) + 1e-6))

    return loop(turn, jnp.zeros_like(b), 60)


def mirror_descent(dot: Any, a: Any, b: Any) -> Any:
    def turn(x: Any) -> Any:
        x = x * jnp.exp(-0.1 * (a.T @ (a @ x - b)))
        return x / x.sum(0)

    return loop(turn, jnp.full_like(b, 1 / b.shape[0]), 60)


def diffusion_map(dot: Any, links: Any, v: Any) -> Any:
    return loop(lambda v: links @ (links.T @ v) / jnp.abs(v).max(0), v)


def markov_power(dot: Any, links: Any) -> Any:
    return loop(lambda m: (m @ m) / (m @ m).sum(0), links, 6)


def markov_clusters(dot: Any, links: Any) -> Any:
    def turn(m: Any) -> Any:
        m = (m @ m) ** 2
        return m / m.sum(0)

    return loop(turn, links + jnp.eye(links.shape[0]), 6)


def tensor_power(dot: Any, t: Any, v: Any) -> Any:
    return loop(lambda v: unit(jnp.einsum("ijk,jb,kb->ib", t, v, v)), v, 10)


IMAGE = np.abs(normal(1, 1, 20, 20)) + 0.1
PSF = np.full((1, 1, 5, 5), 1 / 25, "f")
LAPLACE = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], "f")[None, None]
SHARES = (np.abs(VS) / np.abs(VS).sum(0)).astype("f")
SMALL = (A / 4).astype("f")
COST = ((np.linspace(0, 1, N)[:, None] - np.linspace(0, 1, N)) ** 2).astype("f")
MOVES = R.random((4, N, N)) ** 8
MOVES = (MOVES / MOVES.sum(-1, keepdims=True)).astype("f")
ITERATIONS |= {
    "block power": (block_power, (A, VS)),
    "gram schmidt": (gram_schmidt, (A, VS)),
    "page rank": (page_rank, (LINKS, VS)),
    "sinkhorn": (sinkhorn, (COST, SHARES, SHARES[::-1].copy())),
    "sinkhorn gradient": (sinkhorn_gradient, (COST, SHARES, SHARES[::-1].copy())),
    "sinkhorn by conv": (
        sinkhorn_by_conv,
        (IMAGE / IMAGE.sum(), IMAGE[..., ::-1].copy() / IMAGE.sum(), PSF),
    ),
    "richardson lucy": (richardson_lucy, (IMAGE, PSF)),
    "richardson lucy by dots": (richardson_lucy_by_dots, (np.abs(VS) + 0.1, LINKS)),
    "ista": (ista, (SMALL, VS)),
    "ista by relu": (ista_by_relu, (SMALL, VS)),
    "ista by where": (ista_by_where, (SMALL, VS)),
    "ista by clip": (ista_by_clip, (SMALL, VS)),
    "fista": (fista, (SMALL, VS)),
    "nonnegative by relu": (nonnegative_by_relu, (SMALL, VS)),
    "factorization": (factorization, (np.abs(A), np.abs(VS) + 0.1, np.abs(VS.T) + 0.1)),
    "primal dual": (primal_dual, (SMALL, np.abs(VS), np.abs(VS[::-1].copy()))),
    "denoised": (denoised, (VS, (np.eye(N) - np.eye(N, k=1)).astype("f"))),
    "admm": (admm, (SMALL, VS)),
    "anderson": (anderson, (SMALL, V)),
    "lanczos of blocks": (lanczos_of_blocks, (A, VS)),
    "heat": (heat, (IMAGE, LAPLACE)),
    "waves": (waves, (IMAGE, LAPLACE)),
    "value iteration": (value_iteration, (MOVES, normal(4, N))),
    "square root": (square_root, (A,)),
    "adam on squares": (adam_on_squares, (SMALL, VS)),
    "markov power": (markov_power, (LINKS,)),
    "tensor power": (tensor_power, (normal(N, N, N, scale=0.1), VS)),
}
