"""The training step that all small models of the zoo share, and how their batches are drawn.

The small models put the layers of the zoo together in other ways: without batch norms, with biases,
with features that are joined and not added, with the cells of Flax in their loops. Each is as small
as a program may be that still shows what a rule is worth. By hand means the ``dtype`` argument of
Flax's layers and float32 logits, no more: Flax's attention then has its softmax in half. Losses are
those of Optax. The sizes are ``"full"``, as measured, and ``"tiny"``, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import optax

from benchmarks.zoo.case import TrainCase, Tree, drawn, network_case, seed

Batch = tuple[Tree, jax.Array]
"""The inputs of a model, and the targets of its loss."""
Draw = Callable[[jax.Array, str], Batch]
"""``draw(key, inputs)``: as :class:`~benchmarks.zoo.case.Case` has it."""


def cross_entropy(logits: jax.Array, batch: Batch) -> jax.Array:
    """The mean of Optax's cross-entropy with the batch's labels."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()


def small_case(
    name: str, model: nn.Module, draw: Draw, loss: Callable[[Any, Batch], jax.Array] = cross_entropy
) -> TrainCase:
    """A case of one network and AdamW; a batch is what ``draw`` gives and a seed for its draws."""
    return network_case(
        name,
        model,
        drawn(draw, seed),
        optax.adamw(1e-3),
        reads=lambda batch: (batch[0][0],),
        loss=lambda found, batch: loss(found, batch[0]),
        seeded=True,
    )
