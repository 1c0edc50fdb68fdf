"""Programs that people write every day: as exact as half by hand, in both half types.

Each program takes ``dot`` (an einsum) and its arguments, and is compared with float64, result by
result. By hand, only its contractions are half: they take half operands and sum in float32, and
where they are layers they also give half, as a ``Dense(dtype=half)`` does. The error
of ``autocast`` may be twice that of the program by hand, or an eighth of a unit in the last place
of half where that is more (a scalar is exact by luck).

These programs decide nothing in half that they should not: positions in pixels, coordinates far
from the origin, cumulated sums, counts, distances, quantiles, gradients of gradients.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.ndimage import map_coordinates

from tests.numerics.oracle import EPSILON, HALVES, mixed, reference, relative

Dot = Callable[..., Any]
Program = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Everyday:
    """A program and its arguments.

    Attributes:
        program: takes an einsum and the arguments.
        args: makes them.
        layers: whether by hand its contractions would give half too, as layers do.
        exact: whether no error of its own is allowed, be it small.
    """

    program: Program
    args: Callable[[np.random.Generator], tuple[Any, ...]]
    layers: bool = False
    exact: bool = False


def by_hand(half: str, layers: bool) -> Dot:
    """An einsum of half operands with float32 sums; of layers, the result is half too.

    It rounds, and computes in float32, because CPUs do not have bfloat16 dots of every layout.
    """
    kind = jnp.finfo(half)
    rounded = functools.partial(
        lax.reduce_precision, exponent_bits=kind.nexp, mantissa_bits=kind.nmant
    )

    def dot(spec: str, *operands: Any) -> Any:
        result = jnp.einsum(spec, *map(rounded, operands))
        return rounded(result) if layers else result

    return dot


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Any:
    return (rng.normal(size=shape) * scale).astype(np.float32)


def box_decoding(dot: Dot, w: Any, features: Any, anchors: Any, truth: Any) -> Any:
    """Boxes of a detector in pixels of a large image, and the gradient of their IoU loss."""

    def decoded(w: Any) -> Any:
        deltas = dot("nd,dk->nk", features, w)
        centre = anchors[:, :2] + deltas[:, :2] * anchors[:, 2:]
        size = anchors[:, 2:] * jnp.exp(jnp.clip(deltas[:, 2:], -4, 4))
        return jnp.concatenate([centre - size / 2, centre + size / 2], 1)

    def losses(w: Any) -> Any:
        boxes = decoded(w)
        sides = jnp.minimum(boxes[:, 2:], truth[:, 2:]) - jnp.maximum(boxes[:, :2], truth[:, :2])
        common = jnp.prod(jnp.maximum(sides, 0), -1)
        areas = [jnp.prod(b[:, 2:] - b[:, :2], -1) for b in (boxes, truth)]
        return 1 - common / (areas[0] + areas[1] - common + 1e-7)

    return decoded(w), losses(w), jax.grad(lambda w: jnp.mean(losses(w)))(w)


def boxes(rng: np.random.Generator) -> tuple[Any, ...]:
    corner, size = rng.uniform(0, 1200, (64, 2)), rng.uniform(16, 200, (64, 2))
    anchors = np.concatenate([corner + size / 2, size], 1).astype(np.float32)
    truth = np.concatenate([corner + 5, corner + size * 1.1], 1).astype(np.float32)
    return normal(rng, 32, 4, scale=0.03), normal(rng, 64, 32), anchors, truth


def egnn(dot: Dot, x: Any, h: Any, w1: Any, w2: Any, wx: Any) -> Any:
    """One layer of an equivariant network; the molecule is far from the origin."""
    apart = x[:, None] - x[None]
    square = jnp.sum(apart**2, -1, keepdims=True)
    pairs = jnp.concatenate(
        [jnp.broadcast_to(h[:, None], (16, 16, 32)), jnp.broadcast_to(h, (16, 16, 32)), square], -1
    )
    message = jax.nn.silu(dot("ijd,dk->ijk", pairs, w1))
    weight = jnp.tanh(dot("ijk,kc->ijc", message, wx))
    moved = x + jnp.mean(apart / (jnp.sqrt(square + 1e-8) + 1) * weight, 1)
    return moved - 1000.0, h + dot("ik,kd->id", jnp.sum(message, 1), w2)


def molecule(rng: np.random.Generator) -> tuple[Any, ...]:
    weights = (normal(rng, 65, 32, scale=0.1), normal(rng, 32, 32, scale=0.1))
    return normal(rng, 16, 3) + 1000, normal(rng, 16, 32), *weights, normal(rng, 32, 1, scale=0.2)


def soft_argmax(dot: Dot, features: Any, w: Any) -> Any:
    """Key points in pixels: the mean place under a softmax of a heat map."""
    heat = dot("bpd,dk->bkp", features, w) * 3.0
    weights = jax.nn.softmax(heat, -1)
    place = jnp.arange(1024)
    grid = jnp.stack([place % 32, place // 32], -1).astype(weights.dtype) * 16.0
    return jnp.sum(weights[..., None] * grid, 2)


def nerf(dot: Dot, origins: Any, rays: Any, w1: Any, w2: Any) -> Any:
    """Precision and depth along rays: densities of a network, transmittance by a cumulated sum."""
    depth = jnp.linspace(2.0, 6.0, 32, dtype=origins.dtype)
    points = origins[:, None] + rays[:, None] * depth[:, None]
    angles = points[..., None] * 2.0 ** jnp.arange(8)
    encoded = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).reshape(16, 32, 48)
    out = dot("rsk,kc->rsc", jax.nn.relu(dot("rsd,dk->rsk", encoded, w1)), w2)
    density = jax.nn.softplus(out[..., 0]) * (4.0 / 31)
    passed = jnp.exp(-(jnp.cumsum(density, -1) - density))
    weights = passed * (1 - jnp.exp(-density))
    precision = jnp.sum(weights[..., None] * jax.nn.sigmoid(out[..., 1:]), 1)
    return precision, jnp.sum(weights * depth, -1)


def deformable(dot: Dot, image: Any, features: Any, w: Any) -> Any:
    """An image read between its pixels, at places that a network moves; and the gradient."""

    def sampled(w: Any) -> Any:
        offsets = dot("nd,dk->nk", features, w)
        place = jnp.arange(256)
        rows = 100.0 + place // 16 + offsets[:, 0]
        columns = 200.0 + place % 16 + offsets[:, 1]
        return map_coordinates(image, [rows, columns], order=1)

    return sampled(w), jax.grad(lambda w: jnp.mean(sampled(w) ** 2))(w)


def smooth_image(rng: np.random.Generator) -> tuple[Any, ...]:
    rows, columns = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    image = np.sin(rows / 7) + np.cos(columns / 9)
    return image.astype(np.float32), normal(rng, 256, 32), normal(rng, 32, 2, scale=0.2)


def fourier(dot: Dot, signal: Any) -> Any:
    """A discrete Fourier transform as two products with matrices of cosines and sines."""
    turns = np.outer(np.arange(64), np.arange(33)) % 64 * (2 * np.pi / 64)
    real, imaginary = (
        dot("bt,tf->bf", signal, jnp.asarray(wave, signal.dtype))
        for wave in (np.cos(turns), np.sin(turns))
    )
    return real**2 + imaginary**2


def counts(dot: Dot, tokens: Any, values: Any) -> Any:
    """How often each class occurs, and the mean of each class, by products with one-hot rows."""
    rows = jax.nn.one_hot(tokens, 8, dtype=values.dtype)
    total = dot("nc,n->c", rows, jnp.ones_like(values))
    return total, dot("nc,nd->cd", rows, values[:, None]) / total[:, None], jnp.sum(rows, 0)


def prefix_sums(dot: Dot, x: Any, w: Any) -> Any:
    """A cumulated sum of 4096 outputs of a network, and its last differences."""
    steps = jax.nn.sigmoid(dot("td,dk->tk", x, w))
    total = jnp.cumsum(steps, 0)
    return total, total[64:] - total[:-64]


def k_means(dot: Dot, points: Any, centres: Any) -> Any:
    """Three rounds of Lloyd's algorithm; distances by the product of points and centres."""
    for _ in range(3):
        squares = jnp.sum(points**2, -1)[:, None] + jnp.sum(centres**2, -1)
        nearest = jnp.argmin(squares - 2 * dot("nd,cd->nc", points, centres), -1)
        rows = jax.nn.one_hot(nearest, 4, dtype=points.dtype)
        centres = dot("nc,nd->cd", rows, points) / jnp.sum(rows, 0)[:, None]
    return centres


def clusters(rng: np.random.Generator) -> tuple[Any, ...]:
    centres = normal(rng, 4, 8, scale=4.0) + 20
    points = centres[rng.integers(0, 4, 256)] + normal(rng, 256, 8, scale=0.5)
    return points.astype(np.float32), (centres + 0.3).astype(np.float32)


def covariance(dot: Dot, x: Any) -> Any:
    centred = x - jnp.mean(x, 0)
    return dot("nd,ne->de", centred, centred) / (len(x) - 1)


def factorization(dot: Dot, x: Any, w: Any, v: Any) -> Any:
    """A factorization machine: pairs of features by the square of a sum less a sum of squares."""
    pairs = dot("nd,dk->nk", x, v) ** 2 - dot("nd,dk->nk", x**2, v**2)
    return dot("nd,d->n", x, w) + 0.5 * jnp.sum(pairs, -1)


def principal(dot: Dot, x: Any) -> Any:
    """The variances of the main axes, and how much of the data the first two explain."""
    values, axes = jnp.linalg.eigh(covariance(dot, x))
    scores = dot("nd,dk->nk", x - jnp.mean(x, 0), axes[:, -2:])
    return values, jnp.var(scores, 0) / jnp.sum(values)


def far_data(rng: np.random.Generator) -> tuple[Any, ...]:
    return ((normal(rng, 256, 8) * np.linspace(0.5, 4, 8) + 300).astype(np.float32),)


def quantiles(dot: Dot, x: Any, w: Any) -> Any:
    """Quantiles and a robust scale of a network's outputs."""
    y = dot("nd,dk->nk", x, w)
    low, middle, high = jnp.quantile(y, jnp.array([0.05, 0.5, 0.95]), axis=0)
    return low, high, high - low, jnp.median(jnp.abs(y - middle), 0)


def gradient_penalty(dot: Dot, x: Any, w1: Any, w2: Any) -> Any:
    """WGAN-GP: the gradient of a norm of a gradient."""

    def critic(weights: Any, x: Any) -> Any:
        return jnp.sum(dot("nk,k->n", jax.nn.silu(dot("nd,dk->nk", x, weights[0])), weights[1]))

    def penalties(weights: Any) -> Any:
        slopes = jax.grad(critic, argnums=1)(weights, x)
        return (jnp.sqrt(jnp.sum(slopes**2, -1) + 1e-12) - 1) ** 2

    return penalties((w1, w2)), jax.grad(lambda w: jnp.mean(penalties(w)))((w1, w2))


PROGRAMS = [
    Everyday(box_decoding, boxes, layers=True),
    Everyday(egnn, molecule, layers=True),
    Everyday(soft_argmax, lambda r: (normal(r, 2, 1024, 16), normal(r, 16, 4)), layers=True),
    Everyday(
        nerf,
        lambda r: (*normal(r, 2, 16, 3), normal(r, 48, 64, scale=0.3), normal(r, 64, 4)),
        layers=True,
    ),
    Everyday(deformable, smooth_image, layers=True),
    Everyday(fourier, lambda r: (normal(r, 8, 64),), layers=True),
    Everyday(counts, lambda r: (r.integers(0, 8, 40000), 3 + normal(r, 40000)), exact=True),
    Everyday(prefix_sums, lambda r: (normal(r, 4096, 16), normal(r, 16, 4)), layers=True),
    Everyday(k_means, clusters),
    Everyday(covariance, far_data),
    Everyday(
        factorization,
        lambda r: (normal(r, 64, 32), normal(r, 32), normal(r, 32, 8)),
        layers=True,
    ),
    Everyday(principal, far_data),
    Everyday(quantiles, lambda r: (normal(r, 501, 16), normal(r, 16, 8)), layers=True),
    Everyday(
        gradient_penalty,
        lambda r: (normal(r, 128, 16), normal(r, 16, 32, scale=0.3), normal(r, 32, scale=0.3)),
        layers=True,
    ),
]


@functools.cache
def expected(everyday: Everyday) -> tuple[Any, Any]:
    """The arguments, and what float64 makes of them."""
    args = everyday.args(np.random.default_rng(0))
    return args, reference(functools.partial(everyday.program, jnp.einsum), *args)


def excess(everyday: Everyday, half: str, got: Any) -> float:
    """The largest error of a result as a multiple of what it may be; 1 or less is right."""
    args, want = expected(everyday)
    dot = by_hand(half, everyday.layers)
    hand = jax.jit(functools.partial(everyday.program, dot))(*args)
    floor = 1e-12 if everyday.exact else EPSILON[half] / 8
    return max(
        relative(ours, right) / max(2 * relative(theirs, right), floor)
        for ours, theirs, right in zip(*map(jax.tree.leaves, (got, hand, want)), strict=True)
    )


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("everyday", PROGRAMS, ids=lambda e: e.program.__name__)
def test_as_exact_as_by_hand(everyday: Everyday, half: str) -> None:
    program = functools.partial(everyday.program, jnp.einsum)
    got = mixed(program, half, *expected(everyday)[0], ignore_performance=True)
    assert excess(everyday, half, got) <= 1


@pytest.mark.parametrize("half", HALVES)
def test_half_throughout_is_caught(half: str) -> None:
    """The bar has teeth wherever more than layers is computed, by arithmetic that takes half."""
    for everyday in PROGRAMS:
        if everyday.program in (
            box_decoding,
            egnn,
            nerf,
            deformable,
            counts,
            prefix_sums,
            covariance,
        ):
            args = [jnp.asarray(x) for x in expected(everyday)[0]]
            args = [x.astype(half) if x.dtype == jnp.float32 else x for x in args]
            got = jax.jit(functools.partial(everyday.program, jnp.einsum))(*args)
            assert excess(everyday, half, got) > 1, everyday.program.__name__
