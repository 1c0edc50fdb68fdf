"""Networks keep their half dots: no safety rule takes them for something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import duotone
from tests.numerics.oracle import HALVES

FORCE = duotone.Policy(ignore_performance=True)
R = np.random.default_rng(0)


def n(*s: Any) -> Any:
    return jnp.asarray((R.normal(size=s) * 0.3).astype("f"))


B, T, D, V = 16, 12, 32, 64
X, XS = n(B, D), n(T, B, D)
W, W2, U, WV = n(D, D), n(D, D), n(D, D), n(D, V)
LABELS = jnp.asarray(R.integers(0, V, B).astype("i4"))


def decode_greedy(w: Any, wv: Any, x: Any) -> Any:
    def turn(s: Any) -> Any:
        h, token, i, out = s
        h = jnp.tanh(h @ w + wv.T[token])
        token = jnp.argmax(jax.nn.log_softmax(h @ wv), -1)
        return h, token, i + 1, out.at[:, i].set(token)

    return lax.while_loop(
        lambda s: (s[2] < 20) & jnp.any(s[1] != 3),
        turn,
        (x, jnp.zeros(x.shape[0], int), 0, jnp.zeros((x.shape[0], 20), int)),
    )[3]


def decode_finished(w: Any, wv: Any, x: Any) -> Any:
    def turn(s: Any) -> Any:
        h, token, i, done = s
        h = jnp.tanh(h @ w + wv.T[token])
        p = jax.nn.softmax(h @ wv)
        token = jnp.where(done, 0, jnp.argmax(p, -1))
        return h, token, i + 1, done | (token == 3)

    return lax.while_loop(
        lambda s: (s[2] < 20) & ~jnp.all(s[3]),
        turn,
        (x, jnp.zeros(x.shape[0], int), 0, jnp.zeros(x.shape[0], bool)),
    )[1]


def sampler(pick: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A decoder that draws each token by ``pick(logits, key)`` until all have ended."""

    def decode(w: Any, wv: Any, x: Any, key: Any) -> Any:
        def turn(s: Any) -> Any:
            h, token, i, done, key = s
            key, sub = jax.random.split(key)
            h = jnp.tanh(h @ w + wv.T[token])
            token = pick(h @ wv, sub)
            return h, token, i + 1, done | (token == 3), key

        return lax.while_loop(
            lambda s: (s[2] < 20) & ~jnp.all(s[3]),
            turn,
            (x, jnp.zeros(x.shape[0], jnp.int32), 0, jnp.zeros(x.shape[0], bool), key),
        )[1]

    return decode


def at_a_temperature(logits: Any, key: Any) -> Any:
    return jax.random.categorical(key, logits / 0.7, axis=-1)


def in_a_nucleus(logits: Any, key: Any) -> Any:
    order = jnp.argsort(-logits, -1)
    srt = jnp.take_along_axis(logits, order, -1)
    p = jax.nn.softmax(srt)
    keep = jnp.cumsum(p, -1) - p < 0.9
    pick = jax.random.categorical(key, jnp.where(keep, srt, -1e9), axis=-1)
    return jnp.take_along_axis(order, pick[:, None], -1)[:, 0]


def of_the_top(logits: Any, key: Any) -> Any:
    top, where = lax.top_k(logits, 8)
    pick = jax.random.categorical(key, top, axis=-1)
    return jnp.take_along_axis(where, pick[:, None], -1)[:, 0]


def decode_eos_in_buffer(w: Any, wv: Any, x: Any) -> Any:
    def turn(s: Any) -> Any:
        h, i, out = s
        h = jnp.tanh(h @ w + wv.T[out[:, i - 1]])
        return h, i + 1, out.at[:, i].set(jnp.argmax(h @ wv, -1).astype(jnp.int32))

    return lax.while_loop(
        lambda s: (s[1] < 20) & ~jnp.all(jnp.any(s[2] == 3, -1)),
        turn,
        (x, 1, jnp.zeros((x.shape[0], 20), jnp.int32)),
    )[2]


def beam(w: Any, wv: Any, x: Any) -> Any:
    """Flax's beam search: a counter and a test of scores."""
    k = x.shape[0]

    def turn(s: Any) -> Any:
        i, h, live, best, token = s
        h = jnp.tanh(h @ w + wv.T[token])
        scores = live[:, None] + jax.nn.log_softmax(h @ wv)
        live, at = lax.top_k(scores.ravel(), k)
        token, h = at % wv.shape[1], h[at // wv.shape[1]]
        done = jnp.where(token == 3, live / (5.0 + i), -1e7)
        return i + 1, h, jnp.where(token == 3, -1e7, live), jnp.maximum(best, done.max()), token

    go = lambda s: (s[0] < 20) & (s[3] < s[2].max() / 25.0)  # noqa: E731
    return lax.while_loop(
        go, turn, (0, x, jnp.zeros(k), jnp.asarray(-1e7), jnp.zeros(k, jnp.int32))
    )[4]


def early_exit(w: Any, wv: Any, x: Any) -> Any:
    """Layers until a head is confident."""

    def turn(s: Any) -> Any:
        h, _, i = s
        h = jax.nn.gelu(h @ w) + h
        return h, jax.nn.softmax(h @ wv).max(-1).min(), i + 1

    return lax.while_loop(lambda s: (s[1] < 0.9) & (s[2] < 8), turn, (x, jnp.zeros(()), 0))[0]


def rotary(w: Any, w2: Any, x: Any) -> Any:
    p = jnp.arange(x.shape[0])
    inv = 1e4 ** (-jnp.arange(16) / 16)
    a = jnp.einsum("t,d->td", p.astype(x.dtype), inv)

    def turned(h: Any) -> Any:
        u, v = jnp.split(h, 2, -1)
        return jnp.concatenate(
            [u * jnp.cos(a) - v * jnp.sin(a), v * jnp.cos(a) + u * jnp.sin(a)], -1
        )

    q, k = turned(x @ w), turned(x @ w2)
    return jnp.mean((jax.nn.softmax(q @ k.T / 6, -1) @ (x @ w)) @ w2)


def vit(w1: Any, w2: Any, pixels: Any) -> Any:
    x = pixels.astype(jnp.float32) / 255.0
    x = (x - jnp.array([0.48, 0.45, 0.4])) / jnp.array([0.22, 0.22, 0.22])
    x = x.reshape(2, 4, 8, 4, 8, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 16, 192)
    h = x @ w1
    return jnp.mean(jax.nn.gelu(h) @ w2)


def vit_scaled(w1: Any, w2: Any, pixels: Any) -> Any:
    x = pixels.astype(jnp.float32) * (1.0 / 127.5) - 1.0
    return jnp.mean(jax.nn.gelu(x.reshape(32, 192) @ w1) @ w2)


def vit_conv(k: Any, w2: Any, pixels: Any) -> Any:
    x = pixels.astype(jnp.float32) / 255
    h = lax.conv_general_dilated(x, k, (8, 8), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.mean(jax.nn.gelu(h.reshape(32, -1)) @ w2)


def nll(w: Any, wv: Any, x: Any) -> Any:
    return -jnp.mean(jax.nn.log_softmax(jax.nn.relu(x @ w) @ wv)[jnp.arange(B), LABELS])


def nll_by_hand(w: Any, wv: Any, x: Any) -> Any:
    z = jax.nn.relu(x @ w) @ wv
    return -jnp.mean(jnp.log(jnp.exp(z) / jnp.exp(z).sum(-1, keepdims=True))[jnp.arange(B), LABELS])


def nll_smoothed(w: Any, wv: Any, x: Any) -> Any:
    p = jax.nn.softmax(jax.nn.relu(x @ w) @ wv)
    return -jnp.mean(jnp.log(p + 1e-6)[jnp.arange(B), LABELS])


def bce(w: Any, w2: Any, x: Any) -> Any:
    p = jax.nn.sigmoid(jax.nn.relu(x @ w) @ w2)
    return -jnp.mean(jnp.log(jnp.clip(p, 1e-6, 1.0)))


def gan(w: Any, w2: Any, x: Any) -> Any:
    d = lambda x: jax.nn.leaky_relu(x @ w) @ w2  # noqa: E731
    return jnp.mean(-jax.nn.log_sigmoid(d(x)) - jax.nn.log_sigmoid(-d(x[::-1])))


def gan_softplus(w: Any, w2: Any, x: Any) -> Any:
    return jnp.mean(jax.nn.softplus(-(jax.nn.leaky_relu(x @ w) @ w2)))


def gaussian(w: Any, w2: Any, u: Any, x: Any) -> Any:
    h = jax.nn.relu(x @ w)
    m, s = h @ w2, jax.nn.softplus(h @ u) + 1e-4
    return jnp.mean(0.5 * ((m - x) / s) ** 2 + jnp.log(s))


def gaussian_squareplus(w: Any, w2: Any, u: Any, x: Any) -> Any:
    h = jax.nn.relu(x @ w)
    m, s = h @ w2, jnp.maximum(jax.nn.squareplus(h @ u), 1e-6)
    return jnp.mean(0.5 * ((m - x) / s) ** 2 + jnp.log(s))


def cauchy(w: Any, w2: Any, x: Any) -> Any:
    return jnp.mean(jnp.log1p(0.5 * (jax.nn.relu(x @ w) @ w2 - x) ** 2))


def student(w: Any, w2: Any, u: Any, x: Any) -> Any:
    h = jax.nn.relu(x @ w)
    z = (h @ w2 - x) / jax.nn.softplus(h @ u)
    return jnp.mean(2 * jnp.log(1 + z**2 / 3))


def student_predicted(w: Any, w2: Any, u: Any, x: Any) -> Any:
    """The network predicts the degrees of freedom as well."""
    h = jax.nn.relu(x @ w)
    m, nu = h @ w2, 2 + jax.nn.softplus(h @ u)
    return jnp.mean((nu + 1) / 2 * jnp.log1p((x - m) ** 2 / nu))


def evidential(w: Any, w2: Any, u: Any, x: Any) -> Any:
    """Deep evidential regression: https://arxiv.org/abs/1910.02600, equation 8."""
    head = jnp.concatenate([w2, u, w2[::-1], u[::-1]], 1)
    m, v, a, b = jnp.split(jax.nn.relu(x @ w) @ head, 4, -1)
    v, a, b = jax.nn.softplus(v) + 1e-6, jnp.exp(a) + 1, jax.nn.softplus(b) + 1e-6
    omega = 2 * b * (1 + v)
    return jnp.mean(
        (a + 0.5) * jnp.log((x - m) ** 2 * v + omega)
        - a * jnp.log(omega)
        - 0.5 * jnp.log(v)
        + jax.lax.lgamma(a)
        - jax.lax.lgamma(a + 0.5)
    )


def student_neighbours(w: Any, w2: Any, x: Any) -> Any:
    h = jax.nn.relu(x @ w) @ w2
    return -jnp.mean(jnp.log(1 / (1 + jnp.sum((h[:, None] - h[None]) ** 2, -1))))


def gaussian_logvar(w: Any, w2: Any, u: Any, x: Any) -> Any:
    h = jax.nn.relu(x @ w)
    m, s = h @ w2, h @ u
    return jnp.mean(0.5 * (m - x) ** 2 * jnp.exp(-s) + 0.5 * s)


def gaussian_mse(w: Any, w2: Any, x: Any) -> Any:
    return jnp.log(jnp.mean((jax.nn.relu(x @ w) @ w2 - x) ** 2))


def vae(w: Any, w2: Any, u: Any, x: Any) -> Any:
    h = jnp.tanh(x @ w)
    m, s = h @ w2, h @ u
    z = m + jnp.exp(0.5 * s) * x
    r = jax.nn.sigmoid(jnp.tanh(z @ w) @ u)
    return jnp.mean((r - x) ** 2) - 0.5 * jnp.mean(1 + s - m**2 - jnp.exp(s))


def splade(w: Any, wv: Any, x: Any) -> Any:
    return jnp.mean(jnp.max(jnp.log1p(jax.nn.relu(jax.nn.gelu(x @ w) @ wv)), 0))


def contrastive(w: Any, w2: Any, x: Any) -> Any:
    a, b = jax.nn.relu(x @ w) @ w2, jax.nn.relu(x[::-1] @ w) @ w2
    a, b = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    return -jnp.mean(jnp.diag(jax.nn.log_softmax((a @ b.T) / 0.07)))


def siglip(w: Any, w2: Any, x: Any) -> Any:
    a, b = x @ w, x[::-1] @ w2
    a, b = (v / (jnp.linalg.norm(v, axis=-1, keepdims=True) + 1e-6) for v in (a, b))
    return -jnp.mean(jax.nn.log_sigmoid((2 * jnp.eye(B) - 1) * (a @ b.T * 10 - 10)))


def mamba(w: Any, w2: Any, u: Any, xs: Any) -> Any:
    dt, b = jax.nn.softplus(xs @ w), jax.nn.silu(xs @ w2)

    def turn(h: Any, s: Any) -> Any:
        dt, b = s
        h = jnp.exp(-dt) * h + dt * b
        return h, h

    return jnp.mean(lax.scan(turn, jnp.zeros_like(b[0]), (dt, b))[1] @ u)


def gated_recurrence(w: Any, w2: Any, u: Any, xs: Any) -> Any:
    def turn(h: Any, x: Any) -> Any:
        a = jax.nn.sigmoid(x @ w)
        h = a * h + jnp.sqrt(1 - a * a) * (x @ w2)
        return h, h

    return jnp.mean(lax.scan(turn, jnp.zeros_like(xs[0]), xs)[1] @ u)


def linear_attention(w: Any, w2: Any, u: Any, xs: Any) -> Any:
    q, k, v = jax.nn.elu(xs @ w) + 1, jax.nn.elu(xs @ w2) + 1, xs @ u

    def turn(s: Any, a: Any) -> Any:
        q, k, v = a
        s = s + jnp.einsum("bd,be->bde", k, v)
        return s, jnp.einsum("bd,bde->be", q, s)

    return jnp.mean(lax.scan(turn, jnp.zeros((B, D, D)), (q, k, v))[1] @ u)


def ode(w: Any, w2: Any, x: Any) -> Any:
    f = lambda h: jnp.tanh(h @ w) @ w2  # noqa: E731
    return jnp.mean(lax.fori_loop(0, 20, lambda _, h: h + 0.05 * f(h), x))


def ode_rk4(w: Any, w2: Any, x: Any) -> Any:
    f = lambda h: jnp.tanh(h @ w) @ w2  # noqa: E731

    def turn(h: Any, _: Any) -> Any:
        k1 = f(h)
        k2 = f(h + 0.05 * k1)
        k3 = f(h + 0.05 * k2)
        k4 = f(h + 0.1 * k3)
        return h + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return jnp.mean(lax.scan(turn, x, None, length=10)[0])


def deq(w: Any, x: Any) -> Any:
    return jnp.mean(lax.fori_loop(0, 20, lambda _, z: jnp.tanh(z @ w + x), x))


def deq_norm(w: Any, w2: Any, x: Any) -> Any:
    ln = lambda z: (z - z.mean(-1, keepdims=True)) / jnp.sqrt(z.var(-1, keepdims=True) + 1e-5)  # noqa: E731
    return jnp.mean(
        lax.scan(lambda z, _: (ln(x + jax.nn.relu(ln(z) @ w) @ w2), None), x, None, length=12)[0]
    )


def layers(ws: Any, us: Any, x: Any) -> Any:
    return jnp.mean(lax.scan(lambda h, w: (h + jax.nn.gelu(h @ w[0]) @ w[1], None), x, (ws, us))[0])


def layers_remat(ws: Any, us: Any, x: Any) -> Any:
    body = jax.checkpoint(lambda h, w: (h + jax.nn.gelu(h @ w[0]) @ w[1], None))
    return jnp.mean(lax.scan(body, x, (ws, us))[0])


def gru(w: Any, u: Any, xs: Any) -> Any:
    def turn(h: Any, x: Any) -> Any:
        z = jax.nn.sigmoid(x @ w + h @ u)
        r = jax.nn.sigmoid(x @ u + h @ w)
        c = jnp.tanh(x @ w + (r * h) @ u)
        h = (1 - z) * h + z * c
        return h, h

    return jnp.mean(lax.scan(turn, jnp.zeros_like(xs[0]), xs)[1])


def quadratic(w: Any, w2: Any, u: Any, x: Any) -> Any:
    return jnp.mean(jax.nn.relu((x @ w) * (x @ w2) + (x * x) @ u) @ w)


def glu(w: Any, w2: Any, u: Any, x: Any) -> Any:
    return jnp.mean(((x @ w) * jax.nn.silu(x @ w2)) @ u)


def bilinear_highway(w: Any, w2: Any, x: Any) -> Any:
    a, b = x @ w, x @ w2
    return jnp.mean((a - a * b) @ w)


def layer_norm_by_moments(w: Any, w2: Any, x: Any) -> Any:
    h = x @ w
    m = h.mean(-1, keepdims=True)
    v = (h * h).mean(-1, keepdims=True) - m * m
    return jnp.mean(((h - m) / jnp.sqrt(v + 1e-5)) @ w2)


def batch_norm(w: Any, w2: Any, x: Any) -> Any:
    h = x @ w
    m = h.mean(0)
    v = jnp.mean(jnp.square(h), 0) - jnp.square(m)
    return jnp.mean(jax.nn.relu((h - m) * lax.rsqrt(v + 1e-5)) @ w2)


def gram_style(w: Any, u: Any, x: Any) -> Any:
    f = jax.nn.relu(x @ w)
    return jnp.mean((f.T @ f / B - u) ** 2)


def vicreg(w: Any, w2: Any, x: Any) -> Any:
    z = jax.nn.relu(x @ w) @ w2
    z = z - z.mean(0)
    c = z.T @ z / B
    return jnp.mean(jax.nn.relu(1 - jnp.sqrt(z.var(0) + 1e-4))) + jnp.mean(c**2)


def moe(w: Any, ws: Any, x: Any) -> Any:
    p = jax.nn.softmax(x @ w[:, :8])
    return jnp.mean(jnp.einsum("bed,be->bd", jnp.einsum("bd,edk->bek", x, ws), p)) + jnp.mean(
        jax.nn.logsumexp(x @ w[:, :8], -1) ** 2
    )


def sdf_eikonal(w: Any, w2: Any, x: Any) -> Any:
    f = lambda x: jnp.sum(jax.nn.softplus(x @ w) @ w2)  # noqa: E731
    g = jax.grad(f)(x)
    return jnp.mean((jnp.linalg.norm(g, axis=-1) - 1) ** 2)


def embeddings(table: Any, w: Any, tokens: Any) -> Any:
    return jnp.mean(jax.nn.relu(table[tokens] @ w) @ w)


def positions_learned(table: Any, w: Any, x: Any) -> Any:
    return jnp.mean(jax.nn.relu((x + table[jnp.arange(B)]) @ w) @ w)


def sinusoidal_added(w: Any, w2: Any, x: Any) -> Any:
    a = jnp.arange(B)[:, None] * 1e4 ** (-jnp.arange(16) / 16)
    return jnp.mean(jax.nn.relu((x + jnp.concatenate([jnp.sin(a), jnp.cos(a)], -1)) @ w) @ w2)


def lengths_mean(w: Any, w2: Any, xs: Any, lengths: Any) -> Any:
    mask = (jnp.arange(T)[:, None] < lengths).astype(xs.dtype)
    pooled = jnp.einsum("tbd,tb->bd", xs @ w, mask) / lengths[:, None]
    return jnp.mean(jax.nn.relu(pooled @ w2) @ w)


def policy_gradient(w: Any, wv: Any, x: Any) -> Any:
    lp = jax.nn.log_softmax(jnp.tanh(x @ w) @ wv)
    old = lax.stop_gradient(lp)
    ratio = jnp.exp(lp - old)
    return -jnp.mean(jnp.minimum(ratio, jnp.clip(ratio, 0.8, 1.2)))


def distill(w: Any, wv: Any, x: Any) -> Any:
    p, q = jax.nn.softmax(jax.nn.relu(x @ w) @ wv), jax.nn.log_softmax(x @ wv)
    return jnp.mean(jnp.sum(p * (jnp.log(p + 1e-9) - q), -1))


def flow(w: Any, w2: Any, u: Any, x: Any) -> Any:
    h = jnp.tanh(x @ w)
    s, t = jnp.tanh(h @ w2), h @ u
    return jnp.mean(x * jnp.exp(s) + t) - jnp.mean(s)


def clip_loss_logits(w: Any, w2: Any, x: Any, scale: Any) -> Any:
    return jnp.mean(jax.nn.logsumexp((x @ w) @ (x @ w2).T * jnp.exp(scale), -1))


def simulate(w: Any, w2: Any, x: Any) -> Any:
    """A policy in an environment until all fell, at most 50 steps."""

    def turn(s: Any) -> Any:
        y, v, i = s
        a = jnp.tanh(jnp.tanh(y @ w) @ w2)
        v = v + 0.02 * a
        y = y + 0.02 * v
        return y, v, i + 1

    return lax.while_loop(
        lambda s: (s[2] < 50) & jnp.any(jnp.abs(s[0]) < 2.4), turn, (x, jnp.zeros_like(x), 0)
    )[0]


PIX8 = jnp.asarray(R.integers(0, 256, (2, 32, 32, 3)).astype("u1"))
PIX32 = PIX8.astype(jnp.int32)
WS, US = n(6, D, D), n(6, D, D)
KEY = jax.random.key(0)
NETWORKS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "decode greedy": (decode_greedy, (W, WV, X), False),
    "decode finished": (decode_finished, (W, WV, X), False),
    "decode sampled": (sampler(at_a_temperature), (W, WV, X, KEY), False),
    "decode nucleus": (sampler(in_a_nucleus), (W, WV, X, KEY), False),
    "decode top k": (sampler(of_the_top), (W, WV, X, KEY), False),
    "decode eos in buffer": (decode_eos_in_buffer, (W, WV, X), False),
    "beam": (beam, (W, WV, X), False),
    "early exit": (early_exit, (W, WV, X), False),
    "simulate": (simulate, (W, W2, X), False),
    "rotary": (rotary, (W, W2, X), True),
    "vit8": (vit, (n(192, D), W, PIX8), True),
    "vit32": (vit, (n(192, D), W, PIX32), True),
    "vit scaled8": (vit_scaled, (n(192, D), W, PIX8), True),
    "vit scaled32": (vit_scaled, (n(192, D), W, PIX32), True),
    "vit conv": (vit_conv, (n(8, 8, 3, D), W, PIX32), True),
    "nll": (nll, (W, WV, X), True),
    "nll by hand": (nll_by_hand, (W, WV, X), True),
    "nll smoothed": (nll_smoothed, (W, WV, X), True),
    "bce": (bce, (W, W2, X), True),
    "gan": (gan, (W, W2, X), True),
    "gan softplus": (gan_softplus, (W, W2, X), True),
    "gaussian": (gaussian, (W, W2, U, X), True),
    "gaussian squareplus": (gaussian_squareplus, (W, W2, U, X), True),
    "cauchy": (cauchy, (W, W2, X), True),
    "student": (student, (W, W2, U, X), True),
    "student predicted": (student_predicted, (W, W2, U, X), True),
    "evidential": (evidential, (W, W2, U, X), True),
    "student neighbours": (student_neighbours, (W, W2, X), True),
    "gaussian logvar": (gaussian_logvar, (W, W2, U, X), True),
    "gaussian mse": (gaussian_mse, (W, W2, X), True),
    "vae": (vae, (W, W2, U, X), True),
    "splade": (splade, (W, WV, X), True),
    "contrastive": (contrastive, (W, W2, X), True),
    "siglip": (siglip, (W, W2, X), True),
    "mamba": (mamba, (W, W2, U, XS), True),
    "gated recurrence": (gated_recurrence, (W, W2, U, XS), True),
    "linear attention": (linear_attention, (W, W2, U, XS), True),
    "ode": (ode, (W, W2, X), True),
    "ode rk4": (ode_rk4, (W, W2, X), True),
    "deq": (deq, (W, X), True),
    "deq norm": (deq_norm, (W, W2, X), True),
    "layers": (layers, (WS, US, X), True),
    "layers remat": (layers_remat, (WS, US, X), True),
    "gru": (gru, (W, U, XS), True),
    "quadratic": (quadratic, (W, W2, U, X), True),
    "glu": (glu, (W, W2, U, X), True),
    "bilinear highway": (bilinear_highway, (W, W2, X), True),
    "layer norm by moments": (layer_norm_by_moments, (W, W2, X), True),
    "batch norm": (batch_norm, (W, W2, X), True),
    "gram style": (gram_style, (W, U, X), True),
    "vicreg": (vicreg, (W, W2, X), True),
    "moe": (moe, (W, n(8, D, D), X), True),
    "sdf eikonal": (sdf_eikonal, (W, W2, X), True),
    "embeddings": (embeddings, (n(V, D), W, LABELS), True),
    "positions learned": (positions_learned, (n(B, D), W, X), True),
    "sinusoidal added": (sinusoidal_added, (W, W2, X), True),
    "lengths mean": (lengths_mean, (W, W2, XS, jnp.arange(1, B + 1) % T + 1), True),
    "policy gradient": (policy_gradient, (W, WV, X), True),
    "distill": (distill, (W, WV, X), True),
    "flow": (flow, (W, W2, U, X), True),
    "clip loss logits": (clip_loss_logits, (W, W2, X, jnp.zeros(())), True),
}
SHORT = {"rotary": 1, "linear attention": 1, "lengths mean": 1}
"""Dots that fill no matrix instruction: phases, outer products."""


def dots(function: Callable[..., Any], args: tuple[Any, ...], half: str) -> list[Any]:
    seen = duotone.explain(function, *args, dtype=half, policy=FORCE).operations
    return [o for o in seen if o.operation in ("dot_general", "conv_general_dilated")]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_keeps_its_half_dots(name: str, half: str) -> None:
    function, args, differentiable = NETWORKS[name]
    programs = [function, jax.grad(function)] if differentiable else [function]
    for program in programs:
        found = dots(program, args, half)
        full = [o for o in found if o.paint != "half"]
        assert len(found) > len(full)
        assert len(full) <= SHORT.get(name, 0), [(o.rule, str(o.source)) for o in full]


def of(value: Any, function: Callable[[Any], Any]) -> Any:
    return function(value)


SPECTRA: dict[str, Callable[..., Any]] = {
    "two squares": lambda w, u, x: jnp.log1p((x @ w) ** 2 + (x @ u) ** 2),
    "one square": lambda w, u, x: jnp.log1p((x @ w) ** 2),
    "a bank": lambda w, u, x: jnp.log(1 + ((x @ w) ** 2) @ jnp.abs(u)),
    "steep": lambda w, u, x: jnp.log1p(1e4 * (x @ w - jnp.tanh(x)) ** 2),
    "around its mean": lambda w, u, x: jnp.log1p((x @ w - jnp.mean(x @ w, 1, keepdims=True)) ** 2),
    "no constant": lambda w, u, x: jnp.log(jnp.mean((x @ w - jnp.tanh(x)) ** 2, -1)),
    "two signals": lambda w, u, x: jnp.log1p((x @ w - jnp.tanh(x) @ u) ** 2),
    "a butterfly": lambda w, u, x: of(x @ w, lambda h: jnp.log1p((h[:, ::2] - h[:, 1::2]) ** 2)),
    "a power and its target": lambda w, u, x: jnp.log1p(((x @ w) ** 2 - x) ** 2),
    "steep inside": lambda w, u, x: jnp.log1p(((x @ w - jnp.tanh(x)) / 0.01) ** 2),
    "steep by a root": lambda w, u, x: jnp.log1p(((x @ w - jnp.tanh(x)) / jnp.sqrt(1e-6)) ** 2),
    "steep, predicted": lambda w, u, x: of(
        x @ w, lambda h: jnp.log(jax.nn.softplus(h) + 1e4 * (h - jnp.tanh(x)) ** 2)
    ),
    "a square and a scale": lambda w, u, x: of(x @ w, lambda h: jnp.log(h**2 + jax.nn.softplus(h))),
    "a distance and a dot": lambda w, u, x: jnp.log((x @ w - jnp.tanh(x)) ** 2 + x @ u),
    "a distance by a dot": lambda w, u, x: jnp.log1p((x @ w - jnp.tanh(x)) ** 2 / (x @ u)),
    "the other sign": lambda w, u, x: jnp.log(-((x @ w - jnp.tanh(x)) ** 2) + 1.0),
    "steep squareplus": lambda w, u, x: of(x @ w, lambda h: jnp.log(h + jnp.sqrt(h * h + 1e-4))),
    "squareplus of a power": lambda w, u, x: jnp.log(jax.nn.squareplus((x @ w) ** 2)),
    "squareplus of a bank": lambda w, u, x: jnp.log(jax.nn.squareplus(((x @ w) ** 2) @ u)),
    "crosses 0": lambda w, u, x: jnp.log(jnp.maximum(x @ w + jnp.sqrt((x @ w) ** 2 + 4) / 2, 1e-6)),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_a_power_before_a_logarithm_keeps_its_float32_dots(name: str) -> None:
    found = dots(SPECTRA[name], (W, U, X), "bfloat16")
    assert {o.rule for o in found} == {"log_power"}
