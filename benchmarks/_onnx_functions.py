"""Small functions for ``benchmarks/onnx_agreement.py``, as people write them who serve models.

Weights are constants, as in a model that is exported; each function takes its data alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn


class Function(NamedTuple):
    """A function with its arguments.

    Attributes:
        name: for tables.
        call: the function.
        args: arrays.
    """

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]


class _Weights:
    """Weights drawn in order, scaled by the number of terms that they are summed with."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)

    def __call__(self, *shape: int) -> np.ndarray:
        scale = 1 / np.sqrt(max(np.prod(shape[:-1]), 1))
        return (self._draw.standard_normal(shape) * scale).astype(np.float32)

    def norm(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        return 1 + self(size) / 10, self(size) / 10


def _layer_norm(x: jax.Array, scale: Any, shift: Any) -> jax.Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-6) * scale + shift


def _convolve(x: jax.Array, kernel: Any, stride: int = 1) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, jnp.asarray(kernel), (stride, stride), "SAME", dimension_numbers=numbers
    )


def _attend(x: jax.Array, weights: tuple[Any, ...], heads: int, mask: Any = None) -> jax.Array:
    batch, length, width = x.shape
    q, k, v = (
        (x @ w).reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
        for w in weights[:3]
    )
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(width // heads)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    mixed = nn.softmax(scores, axis=-1) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(batch, length, width) @ weights[3]


class _Block:
    """A transformer's block."""

    def __init__(self, new: _Weights, width: int, heads: int) -> None:
        self.heads = heads
        self.attention = tuple(new(width, width) for _ in range(4))
        self.norms = [new.norm(width) for _ in range(2)]
        self.widen, self.narrow = new(width, 4 * width), new(4 * width, width)

    def __call__(self, x: jax.Array, mask: Any = None) -> jax.Array:
        x = x + _attend(_layer_norm(x, *self.norms[0]), self.attention, self.heads, mask)
        return x + nn.gelu(_layer_norm(x, *self.norms[1]) @ self.widen) @ self.narrow


def _perceptron(new: _Weights) -> Callable[..., Any]:
    first, bias, second, third = new(32, 128), new(128), new(128, 128), new(128, 10)
    return lambda x: nn.gelu(nn.relu(x @ first + bias) @ second) @ third


def _classifier(new: _Weights) -> Callable[..., Any]:
    first, second = new(32, 64), new(64, 10)
    return lambda x: nn.softmax(jnp.tanh(x @ first) @ second)


def _log_sum_exp(new: _Weights) -> Callable[..., Any]:
    first, second = new(32, 64), new(64, 10)

    def loss(x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = nn.silu(x @ first) @ second
        return jnp.mean(nn.logsumexp(logits, axis=-1) - jnp.sum(logits * labels, axis=-1))

    return loss


def _convolutions(new: _Weights) -> Callable[..., Any]:
    kernels = [new(3, 3, 3, 16), new(3, 3, 16, 32)]
    norms = [(*new.norm(size), new(size), 1 + abs(new(size))) for size in (16, 32)]
    head = new(32, 10)

    def network(x: jax.Array) -> jax.Array:
        for kernel, (scale, shift, mean, variance) in zip(kernels, norms, strict=True):
            x = _convolve(x, kernel, 2)
            x = nn.relu((x - mean) * (lax.rsqrt(variance + 1e-5) * scale) + shift)
        return jnp.mean(x, axis=(1, 2)) @ head

    return network


def _transformer(new: _Weights) -> Callable[..., Any]:
    blocks = [_Block(new, 64, 4) for _ in range(2)]

    def network(x: jax.Array) -> jax.Array:
        for block in blocks:
            x = block(x)
        return x

    return network


def _masked_attention(new: _Weights) -> Callable[..., Any]:
    weights, causal = tuple(new(64, 64) for _ in range(4)), np.tril(np.ones((16, 16), bool))
    return lambda x: _attend(x, weights, 4, causal)


def _vision(new: _Weights) -> Callable[..., Any]:
    patches, places, block = new(4, 4, 3, 64), new(1, 16, 64), _Block(new, 64, 4)
    norm, head = new.norm(64), new(64, 10)

    def network(x: jax.Array) -> jax.Array:
        x = _convolve(x, patches, 4).reshape(x.shape[0], -1, 64) + places
        return jnp.mean(_layer_norm(block(x), *norm), axis=1) @ head

    return network


def _recurrent(new: _Weights) -> Callable[..., Any]:
    inward, across, bias, head = new(32, 256), new(64, 256), new(256), new(64, 10)

    def network(x: jax.Array) -> jax.Array:
        def step(state: Any, item: jax.Array) -> Any:
            hidden, cell = state
            gates = item @ inward + hidden @ across + bias
            into, forget, out, new_cell = jnp.split(gates, 4, axis=-1)
            cell = nn.sigmoid(forget) * cell + nn.sigmoid(into) * jnp.tanh(new_cell)
            hidden = nn.sigmoid(out) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zeros = jnp.zeros((x.shape[1], 64))
        return lax.scan(step, (zeros, zeros), x)[1] @ head

    return network


def _u_net(new: _Weights) -> Callable[..., Any]:
    down, bottom, up = new(3, 3, 3, 16), new(3, 3, 16, 32), new(3, 3, 48, 16)
    last, norms = new(1, 1, 16, 1), [new.norm(16), new.norm(32)]

    def network(x: jax.Array) -> jax.Array:
        kept = nn.silu(_layer_norm(_convolve(x, down), *norms[0]))
        deep = nn.silu(_layer_norm(_convolve(kept, bottom, 2), *norms[1]))
        deep = jnp.repeat(jnp.repeat(deep, 2, axis=1), 2, axis=2)
        joined = jnp.concatenate([kept, deep], axis=-1)
        return nn.sigmoid(_convolve(nn.silu(_convolve(joined, up)), last))

    return network


def _experts(new: _Weights) -> Callable[..., Any]:
    router, widen, narrow = new(32, 4), new(4, 32, 64), new(4, 64, 32)

    def network(x: jax.Array) -> jax.Array:
        shares = nn.softmax(x @ router)
        best, _ = lax.top_k(shares, 2)
        shares = jnp.where(shares >= best[:, 1:], shares, 0.0)
        shares = shares / jnp.sum(shares, axis=-1, keepdims=True)
        hidden = nn.gelu(jnp.einsum("bi,eio->ebo", x, widen))
        return jnp.einsum("ebo,be->bo", jnp.einsum("ebi,eio->ebo", hidden, narrow), shares)

    return network


_MADE: dict[str, tuple[Callable[[_Weights], Callable[..., Any]], tuple[int, ...]]] = {
    "perceptron": (_perceptron, (16, 32)),
    "softmax classifier": (_classifier, (16, 32)),
    "convolutions, batch norm": (_convolutions, (2, 16, 16, 3)),
    "transformer blocks": (_transformer, (2, 16, 64)),
    "masked attention": (_masked_attention, (2, 16, 64)),
    "vision transformer": (_vision, (2, 16, 16, 3)),
    "LSTM by scan": (_recurrent, (5, 16, 32)),
    "U-Net": (_u_net, (2, 16, 16, 3)),
    "mixture of experts": (_experts, (16, 32)),
}


def functions() -> Iterator[Function]:
    """The functions, with data."""
    for name, (make, shape) in _MADE.items():
        yield Function(
            name, make(_Weights()), (np.random.default_rng(1).standard_normal(shape, np.float32),)
        )
    scale, shift = _Weights().norm(64)
    x = np.random.default_rng(1).standard_normal((16, 64), np.float32)
    yield Function(
        "layer norm by hand", lambda x: _layer_norm(x, scale, shift) @ _Weights()(64, 8), (x,)
    )
    labels = np.eye(10, dtype=np.float32)[np.arange(16) % 10]
    yield Function("loss by log-sum-exp", _log_sum_exp(_Weights()), (x[:, :32], labels))
