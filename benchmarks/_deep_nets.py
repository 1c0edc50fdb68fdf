"""Unrolled nets, graphs as long as one wants, and the time to lower a step of a transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import duotone
from benchmarks._common import Bar, medians, seconds, table
from benchmarks.zoo.case import cross_entropy

WIDTH = 8
"""Shapes do not matter where nothing runs."""


def unrolled_net(layers: int) -> tuple[Callable[..., jax.Array], tuple[Any, Any]]:
    """A net of ``layers`` layers of a layer norm, a dot, tanh and a residual, each unrolled.

    Returns:
        ``loss(weights, x)``, and the shapes of its arguments.
    """

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            centred = x - jnp.mean(x, axis=-1, keepdims=True)
            variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
            normed = centred * jax.lax.rsqrt(variance + 1e-6)
            x = x + jnp.tanh(normed @ weight) * 0.5
        return jnp.mean(x)

    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return loss, ([weight] * layers, jax.ShapeDtypeStruct((4, WIDTH), jnp.float32))


LENGTH, FEATURES, HEADS, VOCABULARY = 32, 64, 4, 256
"""Of :func:`unrolled_gpt`; their sizes do not matter either."""


def unrolled_gpt(layers: int) -> tuple[Callable[..., jax.Array], tuple[Any, Any]]:
    """A decoder of ``layers`` layers in plain functions: no library adds to the time of a trace.

    Returns:
        ``loss(params, tokens)``, and the shapes of its arguments.
    """

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["token"][tokens[:, :-1]] + params["position"]
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        for layer in params["layers"]:
            x = _block(layer, x, mask)
        return cross_entropy(_norm(params["norm"], x) @ params["token"].T, tokens[:, 1:])

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    norm = {"scale": array(FEATURES), "bias": array(FEATURES)}
    layer = {
        "norms": [norm, norm],
        "qkv": array(FEATURES, 3 * FEATURES),
        "out": array(FEATURES, FEATURES),
        "up": array(FEATURES, 4 * FEATURES),
        "bias": array(4 * FEATURES),
        "down": array(4 * FEATURES, FEATURES),
    }
    params = {
        "token": array(VOCABULARY, FEATURES),
        "position": array(LENGTH, FEATURES),
        "norm": norm,
        "layers": [layer] * layers,
    }
    return loss, (params, jax.ShapeDtypeStruct((4, LENGTH + 1), jnp.int32))


def _norm(params: Any, x: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"]


def _block(params: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
    batch, length, width = x.shape
    parts = jnp.split(_norm(params["norms"][0], x) @ params["qkv"], 3, axis=-1)
    q, k, v = [p.reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3) for p in parts]
    scores = q @ k.swapaxes(-1, -2) * (width // HEADS) ** -0.5
    attention = jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ v
    x = x + attention.transpose(0, 2, 1, 3).reshape(batch, length, width) @ params["out"]
    hidden = jax.nn.gelu(_norm(params["norms"][1], x) @ params["up"] + params["bias"])
    return x + hidden @ params["down"]


ROUNDS = {12: 5, 48: 3, 192: 1}
"""How often each number of layers is measured."""
_SETTINGS: dict[str, Any] = {
    "dtype": jnp.bfloat16,
    "policy": duotone.Policy(ignore_performance=True),
}
Loss = Callable[..., Any]


def _plain_step(loss: Loss) -> Callable[..., Any]:
    optimizer = optax.adam(1e-3)

    def step(params: Any, tokens: Any) -> Any:
        state = optimizer.init(params)
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def _one_line(loss: Loss) -> Callable[..., Any]:
    optimizer = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3), **_SETTINGS)

    def step(params: Any, tokens: Any) -> Any:
        return optimizer.minimize(loss, params, optimizer.init(params), tokens)

    return step


FORMS: dict[str, tuple[Callable[[Loss], Callable[..., Any]], str, float]] = {
    "float32": (jax.value_and_grad, "", 0.0),
    "float32, Adam": (_plain_step, "", 0.0),
    "autocast(value_and_grad(f))": (
        lambda loss: duotone.autocast(jax.value_and_grad(loss), **_SETTINGS),
        "float32",
        1.6,
    ),
    "duotone.value_and_grad(f)": (
        lambda loss: duotone.value_and_grad(loss, **_SETTINGS),
        "float32",
        1.6,
    ),
    "value_and_grad(autocast(f))": (
        lambda loss: jax.value_and_grad(duotone.autocast(loss, **_SETTINGS)),
        "float32",
        2.0,
    ),
    "the one line, Adam": (_one_line, "float32, Adam", 1.5),
}
"""By name: makes a step of a loss; the step it is compared with; the most that it may take."""


def lowering_seconds(layers: int, rounds: int) -> dict[str, float]:
    """Returns the processor time to trace and lower each form: the median of some rounds."""
    found: list[dict[str, float]] = []
    loss, shapes = unrolled_gpt(layers)
    for _ in range(rounds):
        found.append({})
        for name, (form, _, _) in FORMS.items():
            jax.clear_caches()
            step = jax.jit(form(lambda *args: loss(*args)))
            found[-1][name] = seconds(lambda step=step: step.trace(*shapes).lower())[1]
    return medians(found)


def measure_layers(rounds: dict[int, int]) -> tuple[list[Bar], str, dict[str, Any]]:
    """Returns limits, a table and data; ``rounds`` says how often each number is measured."""
    lowering_seconds(2, 1)  # imports and first calls belong to no round
    spent = {layers: lowering_seconds(layers, count) for layers, count in rounds.items()}
    bars, rows = [], []
    for name, (_, base, most) in FORMS.items():
        rows.append([name, *[spent[layers][name] for layers in rounds]])
        if base:
            ratios = {layers: spent[layers][name] / spent[layers][base] for layers in rounds}
            rows.append([f"  over {base}", *ratios.values()])
            bars += [
                Bar(f"lowering {name}, {layers} layers", ratio, most, "times float32")
                for layers, ratio in ratios.items()
            ]
    head = ["layers: processor seconds to trace and lower", *map(str, rounds)]
    return bars, table(head, rows), {str(layers): found for layers, found in spent.items()}
