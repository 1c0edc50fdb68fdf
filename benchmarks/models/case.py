"""A case: a model with a loss and a way to make its weights and batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any
"""A pytree of arrays."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model to measure.

    Attributes:
        name: for tables.
        loss: ``loss(params, batch)`` to a float32 scalar, a training step's forward pass.
        init: ``init(key)`` to float32 parameters.
        batch: ``batch(key, inputs)`` to one batch; ``inputs`` is a key of :data:`INPUTS`.
        weights: ``weights(params, inputs)``: the parameters for these inputs. Where a batch holds
            whole numbers, hostile numbers have to come from the parameters.
    """

    name: str
    loss: Callable[[Tree, Tree], jax.Array]
    init: Callable[[jax.Array], Tree]
    batch: Callable[[jax.Array, str], Tree]
    weights: Callable[[Tree, str], Tree] = lambda params, inputs: params

    def shapes(self) -> tuple[Tree, Tree]:
        """Shapes and dtypes of parameters and batch; nothing is computed."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.eval_shape(self.init, key), jax.eval_shape(
            lambda k: self.batch(k, "ordinary"), key
        )


def _heavy(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Student's t with two degrees of freedom: no variance, outliers of hundreds."""
    return jax.random.t(key, 2.0, shape)


def _mixed(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Normal, each feature with its own scale, from 0.001 to 1000."""
    scales = jnp.logspace(-3.0, 3.0, shape[-1])
    return jax.random.normal(key, shape) * scales


INPUTS: dict[str, Callable[[jax.Array, tuple[int, ...]], jax.Array]] = {
    "ordinary": jax.random.normal,
    "heavy tails": _heavy,
    "large (x 1000)": lambda key, shape: 1e3 * jax.random.normal(key, shape),
    "tiny (x 0.0001)": lambda key, shape: 1e-4 * jax.random.normal(key, shape),
    "mixed scales": _mixed,
    "offset (+ 100)": lambda key, shape: 100.0 + jax.random.normal(key, shape),
}
"""Input distributions by name: all but the first are hostile to half precision."""


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy, in float32 (float64 stays)."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    chosen = jnp.take_along_axis(jax.nn.log_softmax(wide), labels[..., None], axis=-1)
    return -jnp.mean(chosen)
