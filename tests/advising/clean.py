"""Five training steps with nothing to advise: well shaped, and large enough for one H100.

Nothing is ever run: their arguments are shapes. The faults of ``faults.py`` are planted in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Step = tuple[Callable[..., Any], *tuple[Any, ...]]
"""A step and its arguments."""


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def adam(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
    """One step of Adam; the state holds both moments."""
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[0], grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state[1], grads)
    new = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return new, (m, v)


def training(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step with Adam."""

    def step(params: Any, state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return *adam(params, state, grads), value

    return step


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -jnp.mean(picked)


def mlp(
    batch: int = 8192,
    width: int = 4096,
    classes: int = 1000,
    depth: int = 3,
    between: Callable[[jax.Array], jax.Array] = jax.nn.relu,
) -> Step:
    def loss(params, x, labels):
        for k in range(depth):
            with jax.named_scope(f"layer_{k}"):
                x = between(x @ params[f"w{k}"] + params[f"b{k}"])
        return cross_entropy(x @ params["head"], labels)

    params = {f"w{k}": f32(width, width) for k in range(depth)}
    params |= {f"b{k}": f32(width) for k in range(depth)} | {"head": f32(width, classes)}
    return training(loss), params, (params, params), f32(batch, width), i32(batch)


def transformer(
    batch: int = 8,
    length: int = 1024,
    width: int = 1024,
    heads: int = 16,
    vocabulary: int = 32768,
    layers: int = 1,
    mix: Callable[[jax.Array], jax.Array] = jax.nn.softmax,
    hidden: Callable[[jax.Array], jax.Array] = jax.nn.gelu,
) -> Step:
    def norm(p, x):
        mean = jnp.mean(x, -1, keepdims=True)
        variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p

    def attention(p, x):
        b, t, _ = x.shape
        q, k, v = jnp.split((x @ p["qkv"]).reshape(b, t, heads, -1), 3, -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
        weights = mix(jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, t, -1) @ p["out"]

    def loss(params, tokens, labels):
        x = params["table"][tokens]
        for k, p in enumerate(params["blocks"]):
            with jax.named_scope(f"block_{k}"):
                x = x + attention(p, norm(p["norm1"], x))
                x = x + hidden(norm(p["norm2"], x) @ p["up"]) @ p["down"]
        return cross_entropy(norm(params["norm"], x) @ params["table"].T, labels)

    block = {
        "norm1": f32(width),
        "norm2": f32(width),
        "qkv": f32(width, 3 * width),
        "out": f32(width, width),
        "up": f32(width, 4 * width),
        "down": f32(4 * width, width),
    }
    params = {"table": f32(vocabulary, width), "norm": f32(width), "blocks": [block] * layers}
    tokens = i32(batch, length)
    return training(loss), params, (params, params), tokens, tokens


def conv(x: jax.Array, w: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=groups
    )


def cnn(batch: int = 256, width: int = 64, size: int = 56, depthwise: bool = False) -> Step:
    groups = width if depthwise else 1

    def norm(p, x):
        mean = jnp.mean(x, (0, 1, 2))
        variance = jnp.mean(jnp.square(x), (0, 1, 2)) - jnp.square(mean)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p

    def loss(params, images, labels):
        x = jax.nn.relu(norm(params["norm"], conv(images, params["stem"], 2)))
        for p in params["blocks"]:
            h = jax.nn.relu(norm(p["norm1"], conv(x, p["conv1"], groups=groups)))
            x = jax.nn.relu(x + norm(p["norm2"], conv(h, p["conv2"])))
        return cross_entropy(jnp.mean(x, (1, 2)) @ params["head"], labels)

    block = {
        "conv1": f32(3, 3, width // groups, width),
        "conv2": f32(3, 3, width, width),
        "norm1": f32(width),
        "norm2": f32(width),
    }
    params = {
        "stem": f32(7, 7, 3, width),
        "norm": f32(width),
        "blocks": [block] * 2,
        "head": f32(width, 1000),
    }
    images = f32(batch, 2 * size, 2 * size, 3)
    return training(loss), params, (params, params), images, i32(batch)


def lstm(batch: int = 512, length: int = 32, width: int = 1024, vocabulary: int = 8192) -> Step:
    def loss(params, tokens, labels):
        def cell(carry, x):
            h, c = carry
            gates = x @ params["input"] + h @ params["recurrent"] + params["bias"]
            i, f, g, o = jnp.split(gates, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((batch, width))
        inputs = params["table"][tokens].swapaxes(0, 1)
        _, hidden = jax.lax.scan(cell, (zeros, zeros), inputs)
        return cross_entropy(hidden.swapaxes(0, 1) @ params["head"], labels)

    params = {
        "table": f32(vocabulary, width),
        "input": f32(width, 4 * width),
        "recurrent": f32(width, 4 * width),
        "bias": f32(4 * width),
        "head": f32(width, vocabulary),
    }
    tokens = i32(batch, length)
    return training(loss), params, (params, params), tokens, tokens


def gan(batch: int = 256, width: int = 64, latent: int = 128) -> Step:
    def made(p, z):
        x = jax.nn.relu((z @ p["first"]).reshape(-1, 8, 8, 4 * width))
        for name in ("up1", "up2"):
            n, h, w, c = x.shape
            x = jax.image.resize(x, (n, 2 * h, 2 * w, c), "nearest")
            x = jax.nn.relu(conv(x, p[name]))
        return jnp.tanh(conv(x, p["image"]))

    def judged(p, images):
        x = jax.nn.leaky_relu(conv(images, p["image"], 2))
        x = jax.nn.leaky_relu(conv(x, p["down"], 2))
        return x.reshape(x.shape[0], -1) @ p["last"]

    def step(maker, judge, z, images):
        def judge_loss(judge):
            real, fake = judged(judge, images), judged(judge, made(maker, z))
            return jnp.mean(jax.nn.softplus(-real)) + jnp.mean(jax.nn.softplus(fake))

        def maker_loss(maker):
            return jnp.mean(jax.nn.softplus(-judged(judge, made(maker, z))))

        def down(p, g):
            return p - 1e-3 * g

        return (
            jax.tree.map(down, maker, jax.grad(maker_loss)(maker)),
            jax.tree.map(down, judge, jax.grad(judge_loss)(judge)),
        )

    maker = {
        "first": f32(latent, 8 * 8 * 4 * width),
        "up1": f32(3, 3, 4 * width, 2 * width),
        "up2": f32(3, 3, 2 * width, width),
        "image": f32(3, 3, width, 3),
    }
    judge = {
        "image": f32(3, 3, 3, width),
        "down": f32(3, 3, width, 2 * width),
        "last": f32(8 * 8 * 2 * width, 1),
    }
    return step, maker, judge, f32(batch, latent), f32(batch, 32, 32, 3)


CLEAN: dict[str, Callable[[], Step]] = {
    "mlp": mlp,
    "transformer": transformer,
    "cnn": cnn,
    "lstm": lstm,
    "gan": gan,
}
