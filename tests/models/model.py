"""What a small model gives to the tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Params = Any
"""Nested dictionaries of float32 arrays."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A model.

    Attributes:
        name: of the model.
        init: parameters from a key.
        batch: a batch from a key: a tuple of inputs and a tuple of labels.
        forward: ``forward(params, *inputs)``.
        loss: ``loss(params, inputs, labels)``, a scalar.
    """

    name: str
    init: Callable[[jax.Array], Params]
    batch: Callable[[jax.Array], tuple[tuple[Any, ...], tuple[Any, ...]]]
    forward: Callable[..., Any]
    loss: Callable[[Params, tuple[Any, ...], tuple[Any, ...]], jax.Array]

    def example(self, seed: int = 0) -> tuple[Params, tuple[Any, ...], tuple[Any, ...]]:
        """Parameters, inputs and labels."""
        one, two = jax.random.split(jax.random.key(seed))
        return (self.init(one), *self.batch(two))


class Keys:
    """As many random keys as are asked for."""

    def __init__(self, key: jax.Array) -> None:
        self._key = key

    def normal(self, *shape: int, scale: float = 1.0) -> jax.Array:
        """Normal numbers, scaled by the square root of the fan-in as well."""
        self._key, key = jax.random.split(self._key)
        fan_in = 1
        for size in shape[:-1]:
            fan_in *= size
        return scale * fan_in**-0.5 * jax.random.normal(key, shape, jnp.float32)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy of integer labels."""
    log_probabilities = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1)
    return -jnp.mean(picked)
