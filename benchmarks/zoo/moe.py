"""A mixture of experts: GPT-2 small with eight experts in every other block, two for each token.

Tokens are sent by one-hot dots with a capacity (GShard); what an expert cannot take is passed by.
The router is float32 throughout, also by hand (Switch). The loss has the balancing term of Switch.

References:
    Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation" (2021).
    Fedus et al., "Switch Transformers" (2022): the router in float32, the balancing loss.
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.zoo.case import Size, TrainCase, at_least_float32, cross_entropy
from benchmarks.zoo.gpt2 import language_model_case
from benchmarks.zoo.layers import Block, Dtype, SelfAttention, causal_mask, small_normal

Shape = namedtuple(
    "Shape", "batch length layers width heads vocabulary experts chosen room", defaults=(8, 2, 1.25)
)
"""Numbers of a mixture of experts and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(8, 1024, 12, 768, 12, 32128),
    "cpu": Shape(4, 128, 4, 256, 4, 4096),
    # Room for every token: which token finds none would hang on the last bit of another.
    "tiny": Shape(8, 32, 2, 64, 4, 128, experts=4, room=4.0),
}


def route(scores: jax.Array, chosen: int, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Which expert takes a token, at which of its places, and with what weight.

    Args:
        scores: (batch, length, experts) of the router, float32.
        chosen: experts for a token.
        capacity: places of an expert for one sequence.

    Returns:
        sent: (batch, length, experts, capacity), 1 where a token takes a place.
        weights: the same with the weights of the experts, which sum to 1 for a token.
        balance: the balancing loss, at least 1.
    """
    experts = scores.shape[-1]
    shares = jax.nn.softmax(scores)
    best, index = jax.lax.top_k(shares, chosen)
    best = best / jnp.sum(best, axis=-1, keepdims=True)
    taken = jax.nn.one_hot(index, experts, dtype=shares.dtype)  # batch, length, chosen, experts
    # A token's first choice comes before every token's second choice.
    order = jnp.swapaxes(taken, 1, 2).reshape(taken.shape[0], -1, experts)
    place = (jnp.cumsum(order, axis=1) - 1) * order
    place = place.reshape(taken.shape[0], chosen, -1, experts).swapaxes(1, 2)
    fits = taken * (place < capacity)
    spot = jax.nn.one_hot(
        jnp.sum(place * taken, axis=-1).astype(jnp.int32), capacity, dtype=shares.dtype
    )
    sent = jnp.einsum("blke,blkc->blec", fits, spot)
    weights = jnp.einsum("blk,blke,blkc->blec", best, fits, spot)
    load = jnp.mean(taken[:, :, 0], axis=(0, 1))
    balance = experts * jnp.sum(load * jnp.mean(shares, axis=(0, 1)))
    return jax.lax.stop_gradient(sent), weights, balance


class Experts(nn.Module):
    """A router and two-layer perceptrons, of which each token meets a few."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps (batch, length, width) to the same, and the balancing loss."""
        shape = self.shape
        width, hidden = x.shape[-1], 4 * x.shape[-1]
        capacity = math.ceil(shape.room * shape.chosen * x.shape[1] / shape.experts)
        capacity = min(capacity, x.shape[1])
        wide = at_least_float32(x)
        router = nn.Dense(
            shape.experts, use_bias=False, kernel_init=small_normal, dtype=wide.dtype, name="router"
        )
        sent, weights, balance = route(router(wide), shape.chosen, capacity)
        first = self.param("first", small_normal, (shape.experts, width, hidden))
        second = self.param("second", small_normal, (shape.experts, hidden, width))
        kind = x.dtype
        y = jnp.einsum("blec,bld->ebcd", sent.astype(kind), x)
        y = nn.gelu(jnp.einsum("ebcd,edh->ebch", y, first.astype(kind)))
        y = jnp.einsum("ebch,ehd->ebcd", y, second.astype(kind))
        return jnp.einsum("blec,ebcd->bld", weights.astype(kind), y), balance


class SparseBlock(nn.Module):
    """A transformer block with experts in place of the perceptron."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps (batch, length, width) to the same, and the balancing loss."""
        norm = functools.partial(nn.LayerNorm, epsilon=1e-5, dtype=self.dtype)
        x = x + SelfAttention(self.shape.heads, self.dtype)(norm()(x), mask)
        y, balance = Experts(self.shape, self.dtype)(norm()(x))
        return x + y, balance


class MixtureOfExperts(nn.Module):
    """GPT-2 whose every second block is sparse."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits and a loss."""
        shape = self.shape

        def embedding(count: int, name: str) -> nn.Embed:
            return nn.Embed(
                count, shape.width, dtype=self.dtype, embedding_init=small_normal, name=name
            )

        token = embedding(shape.vocabulary, "token")
        x = token(tokens) + embedding(shape.length, "position")(jnp.arange(tokens.shape[1]))
        mask = causal_mask(tokens.shape[1])
        balance = jnp.zeros(())
        for i in range(shape.layers):
            if i % 2:
                x, more = SparseBlock(shape, self.dtype, name=f"layer_{i}")(x, mask)
                balance = balance + more
            else:
                x = Block(shape.heads, self.dtype, name=f"layer_{i}")(x, mask)
        return token.attend(nn.LayerNorm(epsilon=1e-5, dtype=self.dtype)(x)), balance


def mixture_of_experts(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A GPT-2 small with eight experts, 309 million parameters."""
    shape = SHAPES[size]

    def loss(found: tuple[jax.Array, jax.Array], tokens: jax.Array) -> jax.Array:
        logits, balance = found
        return cross_entropy(logits, tokens[:, 1:]) + 0.01 * balance

    model = MixtureOfExperts(shape, dtype)
    return language_model_case("Mixture of experts", model, shape, "position", loss)
