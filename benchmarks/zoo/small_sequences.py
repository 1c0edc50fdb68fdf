"""Networks of tokens: recurrent ones of Flax's own cells, and transformers outside the zoo's.

References:
    Devlin et al., "BERT" (2019).
    Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder" (2014): GRU.
    Luong et al., "Effective Approaches to Attention-based Neural Machine Translation" (2015).
    Touvron et al., "LLaMA" (2023).
    Sun et al., "Retentive Network" (2023), in its chunkwise form.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.zoo.case import Size, TrainCase, at_least_float32
from benchmarks.zoo.layers import Dtype
from benchmarks.zoo.small import Batch, Draw, small_case


def _tokens(batch: int, length: int, vocabulary: int) -> Draw:
    def draw(key: jax.Array, inputs: str) -> Batch:
        del inputs  # tokens are whole numbers
        tokens, targets = jax.random.randint(key, (2, batch, length), 0, vocabulary)
        return tokens, targets

    return draw


class Bert(nn.Module):
    """An encoder with a norm after each sum, and dropout of weights and of what is added."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits in float32."""
        dense = functools.partial(nn.Dense, dtype=self.dtype)
        embed = functools.partial(nn.Embed, features=self.width, dtype=self.dtype)
        drop = functools.partial(nn.Dropout, 0.1, deterministic=False)
        x = embed(self.vocabulary)(tokens) + embed(512)(jnp.arange(tokens.shape[1]))
        for _ in range(self.layers):
            attention = nn.MultiHeadDotProductAttention(
                self.heads, dtype=self.dtype, dropout_rate=0.1, deterministic=False
            )
            x = nn.LayerNorm(dtype=self.dtype)(x + drop()(attention(x, x)))
            y = dense(self.width)(nn.gelu(dense(4 * self.width)(x)))
            x = nn.LayerNorm(dtype=self.dtype)(x + drop()(y))
        return at_least_float32(dense(self.vocabulary)(x))


def _run(cell: nn.RNNCellBase, x: jax.Array) -> jax.Array:
    """Returns the output of a cell at each step of (batch, length, features)."""
    out = nn.RNN(cell)(x)
    assert isinstance(out, jax.Array)
    return out


class GRU(nn.Module):
    """Layers of Flax's GRU cells."""

    layers: int
    width: int
    vocabulary: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits in float32."""
        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(tokens)
        for _ in range(self.layers):
            x = _run(nn.GRUCell(self.width, dtype=self.dtype), x)
        return at_least_float32(nn.Dense(self.vocabulary, dtype=self.dtype)(x))


class Decode(nn.Module):
    """One step of a decoder: an LSTM cell, attention to the encoder, a dense layer of both."""

    width: int
    dtype: Dtype = None

    @nn.compact
    def __call__(
        self, carry: Any, keys: jax.Array, values: jax.Array, token: jax.Array
    ) -> tuple[Any, jax.Array]:
        """Maps the state and what attention read last to the next ones, and to an output."""
        state, context = carry
        kind = context.dtype
        cell = nn.OptimizedLSTMCell(self.width, dtype=self.dtype)
        state, out = cell(state, jnp.concatenate([token, context], axis=-1))
        query = nn.Dense(self.width, use_bias=False, dtype=self.dtype)(out)
        scores = at_least_float32(jnp.einsum("bd,bld->bl", query, keys))
        weights = jax.nn.softmax(scores).astype(values.dtype)
        context = jnp.einsum("bl,bld->bd", weights, values).astype(kind)
        out = nn.Dense(self.width, dtype=self.dtype)(jnp.concatenate([out, context], axis=-1))
        return (jax.tree.map(lambda x: x.astype(kind), state), context), nn.tanh(out)


class Seq2Seq(nn.Module):
    """An LSTM reads one sentence; another, with attention to it, writes the other."""

    width: int
    vocabulary: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Maps two (batch, length) sentences to (batch, length, vocabulary) logits in float32."""
        source, target = tokens
        embed = functools.partial(nn.Embed, self.vocabulary, self.width, dtype=self.dtype)
        values = _run(nn.OptimizedLSTMCell(self.width, dtype=self.dtype), embed()(source))
        values = values.astype(self.dtype or jnp.float32)
        keys = nn.Dense(self.width, dtype=self.dtype)(values)
        zeros = jnp.zeros((source.shape[0], self.width), values.dtype)
        axes: Any = (nn.broadcast, nn.broadcast, 1)
        scan = nn.scan(
            Decode,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=axes,
            out_axes=1,
        )
        decode = scan(self.width, self.dtype)
        _, out = decode(((zeros, zeros), zeros), keys, values, embed()(target))
        return at_least_float32(nn.Dense(self.vocabulary, dtype=self.dtype)(out))


class Layer(nn.Module):
    """A Llama-like layer: RMS norms, causal attention, a gated perceptron, no biases."""

    heads: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        """Maps (batch, length, width) to the same, as a scan asks for it."""
        dense = functools.partial(nn.Dense, use_bias=False, dtype=self.dtype)
        attention = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype, use_bias=False)
        y = nn.RMSNorm(dtype=self.dtype)(x)
        x = x + attention(y, y, mask=nn.make_causal_mask(jnp.ones(x.shape[:2])))
        y, hidden = nn.RMSNorm(dtype=self.dtype)(x), 3 * x.shape[-1]
        return x + dense(x.shape[-1])(nn.silu(dense(hidden)(y)) * dense(hidden)(y)), None


class Scanned(nn.Module):
    """Layers in a scan, recomputed in the backward pass."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits in float32."""
        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(tokens)
        scan = nn.scan(
            nn.remat(Layer, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.layers,
        )
        x, _ = scan(self.heads, self.dtype)(x, None)
        x = nn.RMSNorm(dtype=self.dtype)(x)
        return at_least_float32(nn.Dense(self.vocabulary, use_bias=False, dtype=self.dtype)(x))


def retained(query: jax.Array, key: jax.Array, value: jax.Array, chunk: int) -> jax.Array:
    """Linear attention whose weights decay by 0.9 a token, chunk by chunk.

    Args:
        query: (batch, length, heads, size).
        key: the same.
        value: the same.
        chunk: how many tokens at a time; divides ``length``.

    Returns:
        The same shape, in the type of ``value``.
    """
    batch, _, heads, size = query.shape
    kind, place = query.dtype, jnp.arange(chunk)
    apart = place[:, None] - place
    within = jnp.where(apart >= 0, 0.9 ** apart.astype(jnp.float32), 0.0).astype(kind)
    decay = (jnp.float32(0.9) ** (place + 1))[:, None, None].astype(kind)
    ahead = (jnp.float32(0.9) ** (chunk - 1 - place))[:, None, None].astype(kind)
    whole = jnp.asarray(0.9**chunk, kind)

    def step(
        state: jax.Array, given: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        query, key, value = given
        scores = jnp.einsum("bihd,bjhd->bhij", query, key) * within
        out = jnp.einsum("bhij,bjhd->bihd", scores, value)
        out = out + jnp.einsum("bihd,bhde->bihe", query * decay, state)
        return state * whole + jnp.einsum("bjhd,bjhe->bhde", key * ahead, value), out

    chunks = [x.reshape(batch, -1, chunk, heads, size).swapaxes(0, 1) for x in (query, key, value)]
    start = jnp.zeros((batch, heads, size, size), kind)
    _, out = jax.lax.scan(step, start, (chunks[0], chunks[1], chunks[2]))
    return out.swapaxes(0, 1).reshape(query.shape)


class Retention(nn.Module):
    """A decoder with retention in place of attention, gated by SiLU."""

    layers: int
    width: int
    heads: int
    chunk: int
    vocabulary: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits in float32."""
        dense = functools.partial(nn.Dense, dtype=self.dtype)
        norm = functools.partial(nn.LayerNorm, dtype=self.dtype)
        features = (self.heads, self.width // self.heads)
        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(tokens)
        for _ in range(self.layers):
            y = norm()(x)
            query, key, value = (
                nn.DenseGeneral(features, use_bias=False, dtype=self.dtype)(y) for _ in range(3)
            )
            mixed = norm()(retained(query, key, value, self.chunk).reshape(x.shape))
            x = x + dense(self.width, use_bias=False)(mixed * nn.silu(dense(self.width)(y)))
            x = x + dense(self.width)(nn.gelu(dense(4 * self.width)(norm()(x))))
        return at_least_float32(dense(self.vocabulary)(x))


def bert(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Four layers of BERT-base, 16 x 512 tokens, every token predicted."""
    if size == "tiny":
        return small_case("BERT", Bert(1, 32, 2, 64, dtype), _tokens(4, 16, 64))
    return small_case("BERT", Bert(4, 768, 12, 30_522, dtype), _tokens(16, 512, 30_522))


def gru(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Two layers of 512 cells, 16 x 512 tokens."""
    if size == "tiny":
        return small_case("GRU", GRU(2, 32, 64, dtype), _tokens(8, 8, 64))
    return small_case("GRU", GRU(2, 512, 10_000, dtype), _tokens(16, 512, 10_000))


def seq2seq(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """512 cells each, 64 pairs of sentences of 128 tokens."""
    batch, length, width, vocabulary = (64, 128, 512, 10_000) if size == "full" else (8, 8, 32, 64)

    def draw(key: jax.Array, inputs: str) -> Batch:
        del inputs  # tokens are whole numbers
        source, target, wanted = jax.random.randint(key, (3, batch, length), 0, vocabulary)
        return (source, target), wanted

    return small_case("encoder and decoder", Seq2Seq(width, vocabulary, dtype), draw)


def scanned(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Eight layers of width 512, 16 x 512 tokens."""
    if size == "tiny":
        return small_case("scanned decoder", Scanned(2, 32, 2, 64, dtype), _tokens(4, 16, 64))
    model = Scanned(8, 512, 8, 32_000, dtype)
    return small_case("scanned decoder", model, _tokens(16, 512, 32_000))


def retention(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """Four layers of width 512, 16 x 512 tokens in chunks of 64."""
    if size == "tiny":
        return small_case("retention", Retention(1, 32, 2, 4, 64, dtype), _tokens(4, 16, 64))
    model = Retention(4, 512, 8, 64, 32_000, dtype)
    return small_case("retention", model, _tokens(16, 512, 32_000))
