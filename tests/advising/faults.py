"""Faults planted in clean steps, and the kind of finding that must come first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import duotone
from tests.advising.clean import (
    Step,
    cnn,
    conv,
    cross_entropy,
    f32,
    i32,
    mlp,
    training,
    transformer,
)

BF16 = jnp.bfloat16


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        kind: of the first finding.
        step: the step and its arguments.
        word: a word of the finding or its remedy.
        options: of ``duotone.advise``.
        x64: whether JAX has 64 bits.
    """

    kind: str
    step: Callable[[], Step]
    word: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    x64: bool = False


def half(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, BF16)


def exact_dots() -> Step:
    def between(x):
        scale = jnp.eye(4096, dtype=jnp.float32)
        return jax.nn.relu(jnp.matmul(x, scale, precision="highest"))

    return mlp(between=between)


def pinned() -> Step:
    def mix(scores):
        with duotone.keep_full():
            return jax.nn.softmax(jnp.einsum("bhqk,bhkc->bhqc", scores, scores))

    return transformer(mix=mix)


def running_sums() -> Step:
    return mlp(between=lambda x: jnp.cumsum(x, 1) / 64)


def loop_casts() -> Step:
    def predict(w, x):
        def body(h, _):
            return jnp.tanh(h @ w.astype(BF16)), None

        return jax.lax.scan(body, x, None, length=16)[0]

    return predict, f32(4096, 4096), half(64, 4096)


def doubled() -> Step:
    table = np.linspace(0, 1, 4096)
    return mlp(between=lambda x: jax.nn.relu(x * table))


def half_by_hand(scale: Any) -> Step:
    def loss(params, x, labels):
        for w in params["layers"]:
            x = jax.nn.relu(x @ w) * scale
        return cross_entropy((x @ params["head"]).astype(jnp.float32), labels)

    params = {"layers": [half(4096, 4096)] * 3, "head": half(4096, 1024)}
    return jax.value_and_grad(loss), params, half(8192, 4096), i32(8192)


def cast_results() -> Step:
    def predict(params, x):
        largest = []
        for w in params:
            y = jnp.dot(x, w, preferred_element_type=jnp.float32)
            largest.append(jnp.max(y, 0))  # so the dot cannot write its result in half alone
            x = y.astype(BF16)
        return x, largest

    return predict, [half(1024, 1024)] * 4, half(65536, 1024)


def two_tables() -> Step:
    def loss(params, ids, labels):
        x = jnp.concatenate([table[ids[:, k]] for k, table in enumerate(params["tables"])], 1)
        return cross_entropy(jax.nn.relu(x @ params["w"]) @ params["head"], labels)

    params = {"tables": [f32(1_000_000, 64)] * 2, "w": f32(128, 512), "head": f32(512, 8)}
    return training(loss), params, (params, params), i32(8192, 2), i32(8192)


def four_features() -> Step:
    def loss(params, images):
        for w in params:
            images = jax.nn.relu(conv(images, w))
        return jnp.mean(images)

    return jax.value_and_grad(loss), [f32(5, 5, 4, 4)] * 4, f32(256, 128, 128, 4)


def frozen_weights() -> Step:
    def predict(params, x):
        for w in params:
            x = jax.nn.relu(x @ w)
        return x

    return predict, [f32(4096, 4096)] * 4, f32(256, 4096)


def whole_weights() -> Step:
    mesh = AbstractMesh((8,), ("data",))

    def laid_out(*names: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*names))

    def loss(params, x):
        for w in params:
            x = jax.nn.relu(x @ w)
        return jnp.mean(jnp.square(x))

    w = jax.ShapeDtypeStruct((8192, 8192), jnp.float32, sharding=laid_out())
    x = jax.ShapeDtypeStruct((256, 8192), jnp.float32, sharding=laid_out("data"))
    return jax.value_and_grad(loss), [w] * 4, x


def lengths() -> Fault:
    step, params, state, tokens, labels = transformer()
    calls = [(params, state, i32(8, n), i32(8, n)) for n in (896, 512, 768)]
    return Fault("recompiles", lambda: (step, params, state, tokens, labels), "4", {"calls": calls})


FAULTS: dict[str, Fault] = {
    "width": Fault("tiles", lambda: mlp(width=4099), "4104"),
    "vocabulary": Fault("tiles", lambda: transformer(vocabulary=32771), "32771"),
    "features": Fault("tiles", lambda: cnn(width=60), "64"),
    "precision": Fault("full", exact_dots, "precision"),
    "pin": Fault("full", pinned, "keep_full"),
    "running sums": Fault("full", running_sums, "cumsum"),
    "fft": Fault("full", lambda: mlp(between=lambda x: jnp.fft.fft(x).real), "no half form"),
    "loop cast": Fault("casts", loop_casts, "every iteration"),
    "weights cast": Fault("casts", frozen_weights, "cast_params"),
    "dot cast": Fault("casts", cast_results, "preferred_element_type"),
    "float64": Fault("float64", doubled, "NumPy", x64=True),
    "numpy number": Fault("promotion", lambda: half_by_hand(np.float32(1.5)), "bfloat16"),
    "depthwise": Fault("convolutions", lambda: cnn(depthwise=True), "depthwise"),
    "few features": Fault("convolutions", four_features, "fewer than 8"),
    "small batch": Fault("launches", lambda: mlp(batch=32, width=256, classes=16), "batch"),
    "optimizer": Fault("optimizer", lambda: mlp(batch=64), "moments"),
    "small batch of tokens": Fault("optimizer", lambda: transformer(1, 64, 2048), "moments"),
    "tables": Fault("embedding", two_tables, "1000000x64"),
    "lengths": lengths(),
    "whole weights": Fault("sharding", whole_weights, "8 devices"),
}
