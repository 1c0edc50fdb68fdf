"""GPT-2 small, its layers unrolled or scanned with checkpoints.

124 million parameters, eight sequences of 1024 tokens, AdamW after clipping by the global norm;
no dropout, as GPT-2 is pretrained today.

References:
    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
    Karpathy, nanoGPT: settings of the optimizer.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, TrainCase, cross_entropy, hostile_leaf, network_case, whole
from benchmarks.zoo.layers import Block, Dtype, causal_mask, small_normal

Shape = namedtuple("Shape", "batch length layers width heads vocabulary context")
"""Numbers of a language model and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(8, 1024, 12, 768, 12, 50257, 1024),
    "cpu": Shape(4, 128, 4, 256, 4, 4096, 128),
    "tiny": Shape(8, 32, 2, 64, 4, 128, 32),
}


class _Layer(nn.Module):
    """A block in the form that ``nn.scan`` asks for."""

    heads: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        return Block(self.heads, self.dtype)(x, mask), None


class GPT2(nn.Module):
    """Token and position embeddings, blocks, a norm, the token embedding again as the head.

    Attributes:
        shape: of the model.
        scan: scan over the layers, each recomputed in the backward pass.
        dtype: the type of activations.
    """

    shape: Shape
    scan: bool = False
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        shape = self.shape

        def embedding(count: int, name: str) -> nn.Embed:
            return nn.Embed(
                count, shape.width, dtype=self.dtype, embedding_init=small_normal, name=name
            )

        token = embedding(shape.vocabulary, "token")
        x = token(tokens) + embedding(shape.context, "position")(jnp.arange(tokens.shape[1]))
        mask = causal_mask(tokens.shape[1])
        if self.scan:
            broadcast: Any = nn.broadcast
            layers: Any = nn.scan(
                nn.remat(_Layer, prevent_cse=False),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=broadcast,
                length=shape.layers,
            )
            x, _ = layers(shape.heads, self.dtype, name="layers")(x, mask)
        else:
            for i in range(shape.layers):
                x = Block(shape.heads, self.dtype, name=f"layer_{i}")(x, mask)
        return token.attend(nn.LayerNorm(epsilon=1e-5, dtype=self.dtype)(x))


def next_tokens(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """The cross-entropy of what is said of each token but the first."""
    return cross_entropy(logits, tokens[:, 1:])


def language_model_case(
    name: str,
    model: nn.Module,
    shape: Any,
    hostile: str,
    loss: Callable[[Any, Any], jax.Array] = next_tokens,
) -> TrainCase:
    """A case that predicts the next token, with clipping and AdamW of nanoGPT's settings.

    Args:
        name: for tables.
        model: maps tokens to logits.
        shape: has ``batch``, ``length`` and ``vocabulary``.
        hostile: the embedding that hostile inputs replace, since tokens are whole numbers.
        loss: of what the model returns, and the tokens.
    """
    adamw = optax.adamw(6e-4, b1=0.9, b2=0.95, weight_decay=0.1)
    return network_case(
        name,
        model,
        whole((shape.batch, shape.length + 1), shape.vocabulary),
        optax.chain(optax.clip_by_global_norm(1.0), adamw),
        reads=lambda tokens: (tokens[:, :-1],),
        loss=loss,
        weights=hostile_leaf(hostile, "embedding"),
    )


def gpt2(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """GPT-2 small, its twelve layers one after another."""
    shape = SHAPES[size]
    return language_model_case("GPT-2 small", GPT2(shape, dtype=dtype), shape, "position")


def gpt2_scan(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """GPT-2 small, a scan over its layers with a checkpoint around each."""
    shape = SHAPES[size]
    model = GPT2(shape, scan=True, dtype=dtype)
    return language_model_case("GPT-2 small, scan", model, shape, "position")
