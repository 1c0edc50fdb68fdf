"""The training step that all the small models share, and how their batches are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.case import Tree
from benchmarks.zoo.case import TrainCase, train_case

Size = Literal["full", "tiny"]
"""As measured; small enough for a test."""
SIZES: tuple[Size, ...] = ("full", "tiny")
Batch = tuple[Tree, jax.Array]
"""What a model reads, and what its loss compares with."""
Draw = Callable[[jax.Array, str], Batch]
"""``draw(key, inputs)``: as :class:`~benchmarks.models.case.Case` has it."""


def cross_entropy(logits: jax.Array, batch: Batch) -> jax.Array:
    """The mean of Optax's cross-entropy with the batch's labels."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()


def other_case(
    name: str,
    model: nn.Module,
    draw: Draw,
    loss: Callable[[Any, Batch], jax.Array] = cross_entropy,
) -> TrainCase:
    """A case of one network and AdamW; a batch is what ``draw`` gives and a seed for its draws.

    Args:
        name: for tables.
        model: called with the first part of a batch.
        draw: draws a batch.
        loss: of what the model returns, and the batch.
    """

    def variables(key: jax.Array) -> tuple[Tree, Tree]:
        shapes, _ = jax.eval_shape(lambda key: draw(key, "ordinary"), key)
        one = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), shapes)
        made = dict(model.init({"params": key, "dropout": key}, one))
        return made.pop("params"), made

    def whole_loss(
        params: Tree, statistics: Tree, data: tuple[Batch, jax.Array]
    ) -> tuple[jax.Array, Tree]:
        batch, seed = data
        found, new = model.apply(
            {"params": params, **statistics},
            batch[0],
            mutable=[*statistics],
            rngs={"dropout": jax.random.key(seed)},
        )
        return loss(found, batch), new

    def batch(key: jax.Array, inputs: str) -> tuple[Batch, jax.Array]:
        first, second = jax.random.split(key)
        return draw(first, inputs), jax.random.bits(second, (), jnp.uint32)

    return train_case(
        name, variables=variables, loss=whole_loss, optimizer=optax.adamw(1e-3), batch=batch
    )


def labels(key: jax.Array, shape: tuple[int, ...], classes: int) -> jax.Array:
    """Whole numbers below ``classes``."""
    return jax.random.randint(key, shape, 0, classes, jnp.int32)
