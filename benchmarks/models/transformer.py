"""A decoder-only transformer: GPT-2, in its small published size and in a size that runs in tests.

References:
    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.models.case import INPUTS, Case, Tree, cross_entropy


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and with a residual."""

    heads: int
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps (batch, length, width) to the same."""
        norm = functools.partial(nn.LayerNorm, dtype=self.dtype)
        dense = functools.partial(nn.Dense, dtype=self.dtype)
        attention = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype)
        x = x + attention(norm()(x), mask=mask)
        width = x.shape[-1]
        return x + dense(width)(nn.gelu(dense(4 * width)(norm()(x))))


class Transformer(nn.Module):
    """GPT-2: token and position embeddings, blocks, a layer norm, the embedding as the head."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    dtype: Any = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        embed = functools.partial(
            nn.Embed,
            features=self.width,
            dtype=self.dtype,
            embedding_init=nn.initializers.normal(0.02),
        )
        tokens_in = embed(self.vocabulary, name="token")
        position = embed(self.context, name="position")
        x = tokens_in(tokens) + position(jnp.arange(tokens.shape[1]))
        mask = nn.make_causal_mask(tokens)
        for i in range(self.layers):
            x = Block(self.heads, self.dtype, name=f"block_{i}")(x, mask)
        return tokens_in.attend(nn.LayerNorm(dtype=self.dtype)(x))


def _case(
    name: str,
    model: Transformer,
    batch: int,
    length: int,
    embedding: Callable[[Tree, str], Tree] = lambda params, inputs: params,
) -> Case:
    def loss(params: Tree, tokens: jax.Array) -> jax.Array:
        logits = model.apply(params, tokens[:, :-1])
        assert isinstance(logits, jax.Array)
        return cross_entropy(logits, tokens[:, 1:])

    def init(key: jax.Array) -> Tree:
        return model.init(key, jnp.zeros((1, length), jnp.int32))

    def draw(key: jax.Array, inputs: str) -> jax.Array:
        del inputs  # tokens are whole numbers: what they stand for is hostile, see _embedding
        return jax.random.randint(key, (batch, length + 1), 0, model.vocabulary)

    return Case(name, loss, init, draw, embedding)


def _embedding(params: Tree, inputs: str) -> Tree:
    """The parameters with position embeddings (what the blocks read) drawn from ``inputs``."""
    if inputs == "ordinary":
        return params
    rows = params["params"]["position"]["embedding"]
    drawn = INPUTS[inputs](jax.random.key(7), rows.shape).astype(rows.dtype)
    inner = {**params["params"], "position": {"embedding": drawn}}
    return {**params, "params": inner}


def gpt2_small(dtype: Any = None, *, batch: int = 1, length: int = 128, layers: int = 12) -> Case:
    """GPT-2 small: 124 million parameters. Use :meth:`Case.shapes`; nothing need be computed."""
    model = Transformer(layers, 768, 12, 50257, 1024, dtype)
    return _case("GPT-2 small", model, batch, length)


def small_transformer(dtype: Any = None, *, layers: int = 2, width: int = 64) -> Case:
    """The same with 2 layers of width 64."""
    model = Transformer(layers, width, 4, 128, 32, dtype)
    return _case("transformer", model, 8, 32, _embedding)
