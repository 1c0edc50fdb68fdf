"""Optax optimizers of every make: inside the wrapper, and with the wrapper inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

LABELS = {"w1": "one", "w2": "two", "b": "two"}
MASK = {"w1": True, "w2": True, "b": False}


def schedule(count):
    return 0.1 / (1 + count)


INSIDE: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "sgd with a schedule": lambda: optax.sgd(schedule, momentum=0.9),
    "warm-up": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, 20)),
    "adam": lambda: optax.adam(0.05),
    "adam, half momentum": lambda: optax.adam(0.05, mu_dtype=jnp.bfloat16),
    "adamw": lambda: optax.adamw(0.05),
    "adagrad": lambda: optax.adagrad(0.05),
    "rmsprop": lambda: optax.rmsprop(0.05),
    "adabelief": lambda: optax.adabelief(0.05),
    "lion": lambda: optax.lion(0.01),
    "lamb": lambda: optax.lamb(0.05),
    "lars": lambda: optax.lars(0.05),
    "adafactor": lambda: optax.adafactor(0.05, min_dim_size_to_factor=4),
    "muon": lambda: optax.contrib.muon(0.05),
    "prodigy": lambda: optax.contrib.prodigy(0.5),
    "schedule_free": lambda: optax.contrib.schedule_free_adamw(0.05),
    "sam": lambda: optax.contrib.sam(optax.sgd(0.05), optax.sgd(0.01), sync_period=2),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.05)),
    "agc": lambda: optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(0.05)),
    "noise": lambda: optax.chain(optax.add_noise(0.01, 0.5, key=0), optax.sgd(0.05)),
    "named": lambda: optax.named_chain(("a", optax.scale_by_adam()), ("b", optax.scale(-0.05))),
    "masked": lambda: optax.chain(optax.masked(optax.trace(0.9), MASK), optax.scale(-0.05)),
    "multi_transform": lambda: optax.multi_transform(
        {"one": optax.adam(0.05), "two": optax.sgd(0.05)}, LABELS
    ),
    "frozen": lambda: optax.multi_transform(
        {"one": optax.adam(0.05), "two": optax.set_to_zero()}, LABELS
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=schedule),
    "accumulated": lambda: optax.MultiSteps(optax.adam(0.05), every_k_schedule=2),
    "accumulated, transformation": lambda: optax.MultiSteps(
        optax.sgd(0.05), 3
    ).gradient_transformation(),
    "averaged": lambda: optax.chain(optax.sgd(0.05), optax.ema(0.9)),
    "plateau": lambda: optax.chain(optax.sgd(0.05), optax.contrib.reduce_on_plateau(patience=1)),
    "polyak": lambda: optax.polyak_sgd(0.5),
    "lbfgs": lambda: optax.lbfgs(memory_size=3),
    "backtracking": lambda: optax.chain(
        optax.sgd(0.5), optax.scale_by_backtracking_linesearch(max_backtracking_steps=5)
    ),
}


def problem(key: int = 0, batches: int = 6) -> tuple[Any, list[Any]]:
    """Parameters of a small network, and batches."""
    keys = jax.random.split(jax.random.key(key), 4)
    params = {
        "w1": jax.random.normal(keys[0], (12, 10)) / 3,
        "w2": jax.random.normal(keys[1], (10, 8)) / 3,
        "b": jnp.array([0.0, -0.0] * 4),  # the sign of a zero is a bit as well
    }
    xs = jax.random.normal(keys[2], (batches, 8, 12))
    ys = jax.random.normal(keys[3], (batches, 8, 8))
    return params, list(zip(xs, ys, strict=True))


def loss_fn(params: Any, batch: Any) -> jax.Array:
    x, y = batch
    return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"] + params["b"] - y) ** 2)


def overflowing(batch: Any) -> Any:
    """A batch whose gradients are not finite."""
    return batch[0].at[0, 0].set(jnp.inf), batch[1]
