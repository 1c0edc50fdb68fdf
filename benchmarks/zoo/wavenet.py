"""WaveNet: two stacks of ten dilated causal convolutions over 4 pieces of 8,192 samples.

Gated layers of 128 channels with a residual and a skip connection each, the sum of all skips under
two 1 x 1 convolutions, a softmax over 256 levels; teacher forcing.

References:
    van den Oord et al., "WaveNet: A Generative Model for Raw Audio" (2016).
"""

from __future__ import annotations

import functools
from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import Size, TrainCase, drawn, network_case, numbers, whole
from benchmarks.zoo.layers import Dtype

Shape = namedtuple("Shape", "batch length stacks layers width skip levels", defaults=(256,))
"""Numbers of a WaveNet and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(4, 8_192, 2, 10, 128, 256),
    "cpu": Shape(2, 1_024, 1, 6, 64, 128),
    "tiny": Shape(4, 32, 1, 3, 8, 16, levels=16),
}


class Layer(nn.Module):
    """A gated dilated convolution; gives what goes on and what skips to the end."""

    shape: Shape
    dilation: int
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps (batch, length, width) to the same, and (batch, length, skip)."""
        width = self.shape.width
        window: tuple[int, ...] = (2,)
        conv = nn.Conv(
            2 * width, window, kernel_dilation=self.dilation, padding="CAUSAL", dtype=self.dtype
        )
        filtered, gate = jnp.split(conv(x), 2, axis=-1)
        y = jnp.tanh(filtered) * nn.sigmoid(gate)
        dense = functools.partial(nn.Dense, dtype=self.dtype)
        return x + dense(width, name="on")(y), dense(self.shape.skip, name="skip")(y)


class WaveNet(nn.Module):
    """A causal convolution, layers, and what their skips make together."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, sound: jax.Array) -> jax.Array:
        """Maps (batch, length) samples to (batch, length, levels) logits of the next ones."""
        shape = self.shape
        window: tuple[int, ...] = (2,)
        x = nn.Conv(shape.width, window, padding="CAUSAL", dtype=self.dtype)(sound[..., None])
        skips = []
        for i in range(shape.stacks * shape.layers):
            x, skip = Layer(shape, 2 ** (i % shape.layers), self.dtype, name=f"layer_{i}")(x)
            skips.append(skip)
        x = nn.relu(functools.reduce(jnp.add, skips))
        x = nn.relu(nn.Dense(shape.skip, dtype=self.dtype)(x))
        return nn.Dense(shape.levels, dtype=self.dtype)(x)


def wavenet(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """WaveNet with Adam. A batch is samples and the levels that follow them."""
    shape = SHAPES[size]

    sound = (shape.batch, shape.length)
    draw = drawn(numbers(*sound), whole(sound, shape.levels))
    return network_case("WaveNet", WaveNet(shape, dtype), draw, optax.adam(1e-3))
