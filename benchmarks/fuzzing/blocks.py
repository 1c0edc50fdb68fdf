"""Pieces of networks that random programs are made of, as people write them.

Each takes arrays of one example (no batch axis unless named) and is self-contained: a reproducer
shows its source.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    """Layer norm as mean, variance and rsqrt."""
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias


def fast_layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    """Layer norm with the variance as a difference of means of squares."""
    mean, square = jnp.mean(x, -1, keepdims=True), jnp.mean(x * x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.maximum(square - mean * mean, 0.0) + 1e-5) * scale + bias


def rms_norm(x: Any, scale: Any) -> Any:
    """RMS norm."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def batch_norm(x: Any, scale: Any, bias: Any) -> Any:
    """Batch norm over all axes but the last."""
    axes = tuple(range(x.ndim - 1))
    mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + bias


def group_norm(x: Any, scale: Any) -> Any:
    """Group norm with two groups of channels."""
    grouped = x.reshape(*x.shape[:-1], 2, x.shape[-1] // 2)
    mean = grouped.mean(-1, keepdims=True)
    variance = grouped.var(-1, keepdims=True)
    return ((grouped - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale


def attention(x: Any, q: Any, k: Any, v: Any) -> Any:
    """Self-attention without a mask."""
    scores = (x @ q) @ (x @ k).T / jnp.sqrt(q.shape[-1])
    return jax.nn.softmax(scores) @ (x @ v)


def causal_attention(x: Any, q: Any, k: Any, v: Any) -> Any:
    """Two heads, a causal mask of -1e9."""
    rows, width = x.shape
    heads = lambda w: (x @ w).reshape(rows, 2, width // 2).transpose(1, 0, 2)  # noqa: E731
    scores = jnp.einsum("hid,hjd->hij", heads(q), heads(k)) * (width // 2) ** -0.5
    mask = jnp.tril(jnp.ones((rows, rows), bool))
    probabilities = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    return jnp.einsum("hij,hjd->ihd", probabilities, heads(v)).reshape(rows, width)


def padded_attention(x: Any, y: Any, w: Any) -> Any:
    """Cross-attention with padding as an added mask, scores of normalised rows."""
    unit = lambda a: a / jnp.sqrt(jnp.sum(a * a, -1, keepdims=True) + 1e-6)  # noqa: E731
    padding = jnp.where(jnp.arange(y.shape[0]) < y.shape[0] - 1, 0.0, jnp.finfo(x.dtype).min)
    return jax.nn.softmax(8.0 * unit(x @ w) @ unit(y).T + padding) @ y


def alibi_attention(x: Any, w: Any) -> Any:
    """Attention with linear biases and the softmax written out."""
    places = jnp.arange(x.shape[0])
    scores = (x @ w) @ x.T - 0.5 * jnp.abs(places[:, None] - places[None, :])
    weights = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
    return (weights / jnp.sum(weights, -1, keepdims=True)) @ x


def linear_attention(x: Any, q: Any, k: Any) -> Any:
    """Attention through a feature map, normalised by a sum."""
    a, b = jax.nn.elu(x @ q) + 1.0, jax.nn.elu(x @ k) + 1.0
    return (a @ (b.T @ x)) / (a @ jnp.sum(b, 0)[:, None])


def rotary(x: Any) -> Any:
    """Rotary position embedding."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[0])[:, None] * 100.0 ** (-jnp.arange(half) / half)
    a, b = x[:, :half], x[:, half : 2 * half]
    turned = [a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)]
    return jnp.concatenate([*turned, x[:, 2 * half :]], -1)


def factorisation_machine(x: Any, w: Any) -> Any:
    """Second-order interactions of features."""
    return 0.5 * jnp.sum(jnp.square(x @ w) - jnp.square(x) @ jnp.square(w), -1)


def mlp(x: Any, w: Any, b: Any, u: Any) -> Any:
    """A GELU between two dots."""
    return jax.nn.gelu(x @ w + b) @ u


def gated_mlp(x: Any, w: Any, v: Any, u: Any) -> Any:
    """SwiGLU."""
    return (jax.nn.silu(x @ w) * (x @ v)) @ u


def moe(x: Any, router: Any, experts: Any) -> Any:
    """Each row goes through the two experts that a router prefers, weighted."""
    probabilities = jax.nn.softmax(x @ router)
    best, which = lax.top_k(probabilities, 2)
    best = best / jnp.sum(best, -1, keepdims=True)
    gates = jnp.sum(jax.nn.one_hot(which, router.shape[-1]) * best[..., None], 1)
    return jnp.einsum("te,tef->tf", gates, jnp.einsum("td,edf->tef", x, experts))


def switch_moe(x: Any, router: Any, experts: Any) -> Any:
    """Each row through its best expert, by a gather of weights; with a load-balancing part."""
    probabilities = jax.nn.softmax(x @ router)
    which = jnp.argmax(probabilities, -1)
    gate = jnp.take_along_axis(probabilities, which[:, None], -1)
    load = jnp.mean(jax.nn.one_hot(which, router.shape[-1]), 0) @ jnp.mean(probabilities, 0)
    return gate * jnp.einsum("td,tdf->tf", x, experts[which]) + load


def rnn(x: Any, u: Any, w: Any) -> Any:
    """A tanh RNN."""

    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(h @ u + row @ w)
        return h, h

    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


def lstm(x: Any, u: Any, w: Any, b: Any) -> Any:
    """An LSTM."""

    def step(state: Any, row: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(h @ u + row @ w + b, 4, -1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (jnp.zeros_like(x[0]), jnp.zeros_like(x[0])), x)[1]


def gru(x: Any, u: Any, w: Any) -> Any:
    """A GRU."""

    def step(h: Any, row: Any) -> Any:
        z, r, n = jnp.split(row @ w, 3, -1)
        uz, ur, un = jnp.split(h @ u, 3, -1)
        z = jax.nn.sigmoid(z + uz)
        h = (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + ur) * un) + z * h
        return h, h

    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


def linear_recurrence(x: Any, gate: Any) -> Any:
    """A state space layer: ``s = a * s + (1 - a) * x``."""

    def step(s: Any, row: Any) -> Any:
        a = jax.nn.sigmoid(row @ gate)
        s = a * s + (1 - a) * row
        return s, s

    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


def layers(x: Any, stack: Any) -> Any:
    """Residual layers, scanned over their weights."""
    block = lambda h, w: (h + jnp.tanh(layer_norm(h, 1.0, 0.0) @ w), None)  # noqa: E731
    return lax.scan(block, x, stack)[0]


def checkpointed_layers(x: Any, stack: Any) -> Any:
    """Residual layers that are recomputed for their gradient."""
    block = jax.checkpoint(lambda h, w: h + jax.nn.gelu(h @ w))
    return lax.scan(lambda h, w: (block(h, w), None), x, stack)[0]


def convolution(x: Any, w: Any) -> Any:
    """A convolution along the first axis."""
    return lax.conv_general_dilated(
        x[None], w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )[0]


def depthwise(x: Any, w: Any) -> Any:
    """A convolution of each channel for itself."""
    names = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(
        x[None], w, (1,), "SAME", dimension_numbers=names, feature_group_count=x.shape[1]
    )[0]


def convolution_2d(x: Any, w: Any) -> Any:
    """The matrix as an image with one channel, into two, and back by their maximum."""
    image = lax.conv(x[None, None], w, (1, 1), "SAME")
    return jnp.max(jax.nn.relu(image[0]), 0)


def graph_convolution(x: Any, w: Any, labels: Any) -> Any:
    """Rows send messages to rows of a random graph."""
    sent = jax.nn.relu(x @ w)[labels % x.shape[0]]
    return jnp.zeros_like(x).at[(labels * 7 + 1) % x.shape[0]].add(sent) + x


def library_attention(x: Any, q: Any, k: Any, v: Any) -> Any:
    """JAX's own attention, causal."""
    heads = lambda w: (x @ w).reshape(1, x.shape[0], 2, x.shape[1] // 2)  # noqa: E731
    found = jax.nn.dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
    return found.reshape(x.shape)


def softmax_one(x: Any, w: Any) -> Any:
    """Attention whose weights may add up to less than one."""
    scores = (x @ w) @ x.T / jnp.sqrt(x.shape[1])
    top = jnp.maximum(jnp.max(scores, -1, keepdims=True), 0.0)
    weights = jnp.exp(scores - top)
    return weights / (jnp.exp(-top) + jnp.sum(weights, -1, keepdims=True)) @ x


def spectral_norm(x: Any, w: Any) -> Any:
    """A dense layer divided by its largest singular value, by power iteration."""
    u = v = jnp.ones(w.shape[0])
    for _ in range(2):
        v = w.T @ u
        v = v / (jnp.linalg.norm(v) + 1e-6)
        u = w @ v
        u = u / (jnp.linalg.norm(u) + 1e-6)
    return x @ w / (u @ w @ v)


@jax.custom_vjp
def clipped_gradient(x: Any) -> Any:
    """The identity, whose gradient is clipped."""
    return x


clipped_gradient.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


def perceiver(x: Any, q: Any, w: Any) -> Any:
    """Latent rows attend to the input, and it to them."""
    latent = jax.nn.softmax(q @ (x @ w).T / jnp.sqrt(x.shape[1])) @ x
    return x + jax.nn.softmax(x @ latent.T / jnp.sqrt(x.shape[1])) @ layer_norm(latent, 1.0, 0.0)
