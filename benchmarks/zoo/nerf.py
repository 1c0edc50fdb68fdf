"""A neural radiance field: 4,096 rays through a coarse network and a fine one, 1.2 million numbers.

Eight layers of 256 over sines and cosines of the place, a colour that also reads the direction;
64 even places along a ray, then 128 drawn where the coarse network found something. Positions,
encodings and the compositing along a ray are float32, also by hand.

References:
    Mildenhall et al., "NeRF: Representing Scenes as Neural Radiance Fields for View Synthesis"
    (2020).
"""

from __future__ import annotations

from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import INPUTS, Size, TrainCase, at_least_float32, network_case
from benchmarks.zoo.layers import Dtype
from benchmarks.zoo.unet import squared_error

Batch = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Where rays begin, their directions, their colours, and a seed."""
_NEAR, _FAR = 2.0, 6.0

Shape = namedtuple("Shape", "rays coarse fine layers width octaves turns")
"""Numbers of a radiance field and its batch."""
SHAPES: dict[Size, Shape] = {
    "full": Shape(4_096, 64, 128, 8, 256, 10, 4),
    "cpu": Shape(256, 16, 16, 4, 64, 6, 2),
    "tiny": Shape(16, 8, 8, 2, 16, 3, 2),
}


def encoded(x: jax.Array, octaves: int) -> jax.Array:
    """Numbers with their sines and cosines, (..., n) to (..., n + 2 * n * octaves)."""
    angles = x[..., None] * 2.0 ** jnp.arange(octaves, dtype=x.dtype)
    angles = angles.reshape(*x.shape[:-1], -1)
    return jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], axis=-1)


class Field(nn.Module):
    """Density and colour of places, seen from directions."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, places: jax.Array, directions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps (rays, places, 3) and (rays, 3) to densities and colours, in float32 by hand too."""
        shape = self.shape

        def dense(width: int, x: jax.Array) -> jax.Array:
            return nn.Dense(width, dtype=self.dtype)(x)

        given = encoded(places, shape.octaves)
        x = given
        for i in range(shape.layers):
            if i == shape.layers // 2:
                x = jnp.concatenate([x, given.astype(x.dtype)], axis=-1)
            x = nn.relu(dense(shape.width, x))
        density = at_least_float32(dense(1, x))[..., 0]
        seen = encoded(directions, shape.turns)[:, None]
        seen = jnp.broadcast_to(seen, (*x.shape[:2], seen.shape[-1])).astype(x.dtype)
        x = jnp.concatenate([dense(shape.width, x), seen], axis=-1)
        colour = dense(3, nn.relu(dense(shape.width // 2, x)))
        return density, nn.sigmoid(at_least_float32(colour))


def composed(
    density: jax.Array, colour: jax.Array, depths: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The colour of each ray, and the weight of each place on it.

    Args:
        density: (rays, places), as the depths, which grow.
        colour: (rays, places, 3).
        depths: of the places along the ray.
    """
    last = jnp.full_like(depths[:, :1], 1e10)
    lengths = jnp.concatenate([depths[:, 1:] - depths[:, :-1], last], axis=1)
    met = nn.softplus(density - 1.0) * lengths
    before = jnp.concatenate([jnp.zeros_like(met[:, :1]), jnp.cumsum(met, axis=1)[:, :-1]], axis=1)
    weights = jnp.exp(-before) * -jnp.expm1(-met)
    return jnp.sum(weights[..., None] * colour, axis=1), weights


def drawn_depths(key: jax.Array, depths: jax.Array, weights: jax.Array, count: int) -> jax.Array:
    """(rays, count) depths, drawn where the weights are; nothing is differentiated through them."""
    edges = (depths[:, 1:] + depths[:, :-1]) / 2
    inner = jax.lax.stop_gradient(weights[:, 1:-1]) + 1e-5
    shares = jnp.cumsum(inner / jnp.sum(inner, axis=1, keepdims=True), axis=1)
    shares = jnp.concatenate([jnp.zeros_like(shares[:, :1]), shares], axis=1)
    wanted = jax.random.uniform(key, (depths.shape[0], count), jnp.float32).astype(depths.dtype)
    return jax.vmap(jnp.interp)(wanted, shares, edges)


class Rendering(nn.Module):
    """The colours of rays, by the coarse network and by the fine one."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(
        self, begins: jax.Array, directions: jax.Array, seed: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Maps (rays, 3) beginnings and directions to two arrays of (rays, 3) colours."""
        shape, keys = self.shape, jax.random.split(jax.random.key(seed))
        length = jnp.sqrt(jnp.sum(directions * directions, axis=-1, keepdims=True))
        directions = directions / length

        def look(name: str, depths: jax.Array) -> tuple[jax.Array, jax.Array]:
            places = begins[:, None] + depths[..., None] * directions[:, None]
            density, colour = Field(shape, self.dtype, name=name)(places, directions)
            return composed(density, colour, depths)

        even = jnp.linspace(_NEAR, _FAR, shape.coarse, dtype=begins.dtype)
        coins = jax.random.uniform(keys[0], (shape.rays, shape.coarse), jnp.float32)
        depths = even + coins.astype(even.dtype) * ((_FAR - _NEAR) / shape.coarse)
        coarse, weights = look("coarse", depths)
        more = drawn_depths(keys[1], depths, weights, shape.fine)
        depths = jax.lax.stop_gradient(jnp.sort(jnp.concatenate([depths, more], axis=1), axis=1))
        fine, _ = look("fine", depths)
        return coarse, fine


def nerf(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """A radiance field with Adam. A batch is rays, their colours and a seed."""
    shape = SHAPES[size]

    def loss(found: tuple[jax.Array, jax.Array], batch: Batch) -> jax.Array:
        coarse, fine = found
        return squared_error(coarse, batch[2]) + squared_error(fine, batch[2])

    def draw(key: jax.Array, inputs: str) -> Batch:
        keys = jax.random.split(key, 4)
        begins = INPUTS[inputs](keys[0], (shape.rays, 3))
        directions = jax.random.normal(keys[1], (shape.rays, 3))
        colours = jax.random.uniform(keys[2], (shape.rays, 3))
        return begins, directions, colours, jax.random.bits(keys[3], (), jnp.uint32)

    return network_case(
        "Radiance field",
        Rendering(shape, dtype),
        draw,
        optax.adam(5e-4),
        reads=lambda batch: (batch[0], batch[1], batch[3]),
        loss=loss,
    )
