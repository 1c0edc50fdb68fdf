"""Positions, counts, angles and indices: their absolute error counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from tests.numerics.oracle import mixed, reference, relative
from tests.numerics.test_everyday import by_hand

HALVES = ["float16", "bfloat16"]
N = 400
W = jax.random.normal(jax.random.key(0), (8, 8)) / 3
X = jax.random.normal(jax.random.key(1), (N, 8))
RATES = np.float32(1 / 100 ** (np.arange(4) / 4))


def turned(h: Any, angles: Any) -> Any:
    a, b = h[:, :4], h[:, 4:]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def rotary_by_einsum(w: Any, x: Any) -> Any:
    angles = jnp.einsum("i,j->ij", jnp.arange(N, dtype=x.dtype), RATES)
    return jnp.mean(jnp.tanh(turned(x @ w, angles) @ w) ** 2)


def rotary_by_lookup(w: Any, x: Any) -> Any:
    """One-hot rows times a table of positions."""
    rows = jax.nn.one_hot((jnp.arange(N) * 7) % 1000, 1000, dtype=x.dtype)
    angles = (rows @ jnp.arange(1000, dtype=x.dtype))[:, None] * RATES
    return jnp.mean(jnp.tanh(turned(x @ w, angles) @ w) ** 2)


def routed(w: Any, x: Any) -> Any:
    """Places in the buffers of two experts, counted by a running sum of one-hot rows."""
    expert = jax.nn.one_hot((jnp.arange(N) // 3) % 2, 2, dtype=x.dtype)
    place = jnp.einsum("te,te->t", jnp.cumsum(expert, 0) - 1, expert)
    rate = jnp.linspace(0.1, 2.0, N, dtype=x.dtype)[place.astype(jnp.int32)]
    return jnp.mean((jnp.tanh(x @ w) * rate[:, None]) ** 2)


def sampled(where: Any) -> Any:
    """A smooth curve at fractional places, linear in between."""
    below = jnp.floor(where)
    at = jnp.clip(below.astype(jnp.int32), 0, 998)
    curve = jnp.sin(jnp.arange(1000, dtype=where.dtype) / 20)
    return curve[at] * (1 - (where - below)) + curve[at + 1] * (where - below)


def offsets(w: Any, x: Any) -> Any:
    base = jnp.arange(N, dtype=x.dtype)[:, None] * 2
    return jnp.mean(sampled(base + 3 * (x @ w)) ** 2)


def reference_points(w: Any, x: Any) -> Any:
    return jnp.mean(sampled(jax.nn.sigmoid(x @ w) * 999) ** 2)


def grid(w: Any, x: Any) -> Any:
    """A grid from -1 to 1, moved by a predicted matrix."""
    points = jnp.linspace(-1, 1, 1000, dtype=x.dtype)
    matrix = jnp.eye(2, dtype=x.dtype) + 0.1 * jnp.tanh(x[:2] @ w)[:, :2]
    where = jnp.stack([points, points[::-1]], -1) @ matrix
    return jnp.mean(sampled((where + 1) * 499.5) ** 2)


def boxes(w: Any, x: Any) -> Any:
    sides = jax.nn.softplus(x @ w).reshape(2, N // 2, 8)
    anchors = jnp.arange(N // 2, dtype=x.dtype)[:, None] * 4 + jnp.arange(2, dtype=x.dtype)
    low, high = anchors - sides[..., :2], anchors + sides[..., 2:4]
    shared = jnp.prod(jnp.minimum(high, anchors + 1) - jnp.maximum(low, anchors - 1), -1)
    return jnp.mean(shared / (jnp.prod(high - low, -1) + 4 - shared))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    "function",
    [rotary_by_einsum, rotary_by_lookup, routed, offsets, reference_points, grid, boxes],
)
def test_a_model_with_places(function: Callable[..., Any], half: str) -> None:
    """As wrong as what is rounded in the dot of the weights; several times that before."""
    program = jax.value_and_grad(function)
    (value, gradient), want = mixed(program, half, W, X), reference(program, W, X)
    limit = {"float16": 0.02, "bfloat16": 0.08}[half]
    assert relative(value, want[0]) < limit / 10
    assert relative(gradient, want[1]) < limit


@pytest.mark.parametrize("half", HALVES)
def test_random_fourier_features(half: str) -> None:
    def loss(w: Any, x: Any) -> Any:
        angles = 2 * jnp.pi * x @ (10 * x[:8, :4])
        return jnp.mean(jnp.tanh(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1) @ w))

    want = reference(jax.grad(loss), W, X)
    assert relative(mixed(jax.grad(loss), half, W, X), want) < {"float16": 2e-3}.get(half, 0.015)


POINTS = np.random.default_rng(3).standard_normal((64, 12)).astype(np.float32)
CODES = np.random.default_rng(4).standard_normal((64, 8)).astype(np.float32)
FREQUENCIES = 10 * np.random.default_rng(5).standard_normal((12, 16)).astype(np.float32)
Dot = Callable[..., Any]


def moved_points(w: Any, codes: Any, points: Any, rates: Any, dot: Dot) -> Any:
    return jnp.sin(2 * jnp.pi * (points + 0.1 * dot("nk,kd->nd", codes, w)) @ rates)


def twice_moved_points(w: Any, codes: Any, points: Any, rates: Any, dot: Dot) -> Any:
    for _ in range(2):
        points = points + 0.1 * jnp.tanh(dot("nk,kd->nd", codes, w))
    return jnp.cos(points @ rates)


def learned_times(w: Any, codes: Any, points: Any, rates: Any, dot: Dot) -> Any:
    times = jax.nn.sigmoid(dot("nk,kd->nd", codes, w)[:, 0])
    return jnp.sin(jnp.outer(times * 20, rates[0]))


def learned_places(w: Any, codes: Any, points: Any, rates: Any, dot: Dot) -> Any:
    places = jax.nn.sigmoid(dot("nk,kd->nd", codes, w))
    return jnp.sin(10 * places[..., None] * rates[0])


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    "function", [moved_points, twice_moved_points, learned_times, learned_places]
)
def test_angles_of_a_network_are_as_exact_as_with_the_network_in_half(
    function: Callable[..., Any], half: str
) -> None:
    """Both the sines and their gradient; without this and rule ``cancellation`` they are worse."""

    def program(w: Any, codes: Any, points: Any, rates: Any, dot: Dot = jnp.einsum) -> Any:
        def loss(w: Any) -> Any:
            sines = function(w, codes, points, rates, dot)
            return jnp.sum(sines), sines

        return jax.grad(loss, has_aux=True)(w)

    args = jax.random.normal(jax.random.key(6), (8, 12)) / 3, CODES, POINTS, FREQUENCIES
    want = reference(program, *args)
    hand = jax.jit(lambda *a: program(*a, dot=by_hand(half, True)))(*args)
    ours = mixed(program, half, *args)
    without = mixed(program, half, *args, rules_remove={"position", "cancellation"})
    for own, other, bare, exact in zip(ours, hand, without, want, strict=True):
        assert relative(own, exact) < 1.5 * relative(other, exact)
        assert relative(bare, exact) > 1.5 * relative(own, exact)


def paints(function: Any, *args: Any, of: str = "dot_general") -> list[str]:
    seen = duotone.explain(function, *args, dtype="bfloat16")
    return [o.stored for o in seen.operations if o.operation == of]


def test_what_only_looks_like_places_stays_half() -> None:
    tokens, images = jnp.arange(N) % 8, (jnp.arange(N * 8) % 256).reshape(N, 8)
    assert paints(lambda t, w: jax.nn.one_hot(t, 8) @ w @ w, tokens, W) == ["half", "full"]
    scaled = lambda i, w: (i.astype(jnp.float32) / 255) @ w @ w  # noqa: E731
    assert paints(scaled, images, W) == ["half", "full"]
    masks = lambda w: jax.nn.softmax((X @ w) @ (X @ w).T) @ X  # noqa: E731
    assert paints(masks, W) == ["half", "half", "half", "full"]

    def quantized(w: Any, x: Any) -> Any:
        """The residual stream in front of a fake quantization."""
        for _ in range(3):
            h = jnp.round((x @ w) / 0.1) * 0.1
            x = x @ w + h @ w
        return (jnp.round(x / 0.1) * 0.1) @ w

    assert paints(quantized, W, X, of="add") == [
        "half",
        "half",
        "full",
    ]  # the last one is read once


def test_a_sine_between_layers_reads_a_half_dot() -> None:
    network = lambda w, x: jnp.sin(30 * (jnp.sin(30 * (x @ w)) @ w)) @ w  # noqa: E731
    assert paints(network, W, X) == ["full", "half", "full"]


def test_networks_of_sines_and_rotations_keep_half_dots() -> None:
    def residual(w: Any, x: Any) -> Any:
        for _ in range(2):
            x = x @ w
            x = x + jnp.sin(30 * (x @ w))
        return x @ w

    assert paints(residual, W, X) == ["half"] * 4 + ["full"]

    def attention(w: Any, x: Any) -> Any:
        angles = jnp.arange(N, dtype=x.dtype)[:, None] * RATES
        h = turned(x @ w, angles)
        return jax.nn.softmax(h @ h.T) @ (x @ w) @ w

    assert paints(attention, W, X) == ["half"] * 4 + ["full"]


def test_the_reason_is_reported_and_the_user_has_the_last_word() -> None:
    for policy, paint in (None, "full"), (duotone.Policy(keep_half=["*dot_general"]), "half"):
        seen = duotone.explain(rotary_by_lookup, W, X, dtype="bfloat16", policy=policy)
        angles = next(o for o in seen.operations if o.operation == "dot_general")
        assert angles.paint == paint
        assert ("positions or counts" in angles.reason) == (paint == "full")


@pytest.mark.parametrize("half", HALVES)
def test_distances_of_three_coordinates(half: str) -> None:
    """The dot is too short for half, and its gradient is a long one that cancels."""

    def kernel(x: Any, y: Any) -> Any:
        squares = jnp.sum(x * x, 1)[:, None] + jnp.sum(y * y, 1)[None]
        return jnp.sum(jnp.exp(2 * x @ y.T - squares))

    x, y = (4 + jax.random.normal(jax.random.key(k), (256, 3)) for k in (2, 3))
    assert relative(mixed(jax.grad(kernel), half, x, y), reference(jax.grad(kernel), x, y)) < 1e-4


def test_a_short_dot_inside_of_a_network_keeps_the_stream_half() -> None:
    """LoRA of rank 4: what is added to the residual stream taints nothing."""

    def adapted(x: Any, w: Any, a: Any, b: Any) -> Any:
        for _ in range(3):
            x = x + jnp.tanh(x @ w + (x @ a) @ b)
        return x @ w

    arguments = (jnp.ones((16, 64)), jnp.ones((64, 64)), jnp.ones((64, 4)), jnp.ones((4, 64)))
    seen = duotone.explain(adapted, *arguments, dtype="bfloat16").operations
    streams = [o.stored for o in seen if o.operation == "add" and "half" in o.stored]
    assert len(streams) >= 3


def ranks_by_triangle(w: Any, x: Any) -> Any:
    """Places in the buffer of an expert, counted by a dot with a triangle."""
    expert = jax.nn.one_hot(jnp.full(3000, jnp.argmax(w[0])), 8, dtype=x.dtype)
    before = jnp.tril(jnp.ones((3000, 3000), x.dtype)) @ expert
    return jnp.sum(before * expert, -1)


def forces(w: Any, x: Any) -> Any:
    """Forces between particles far from the origin of the coordinates."""
    where = (x @ w)[:64, :3] + 1000.0
    apart = where[:, None] - where
    return jnp.sum(apart / (jnp.sum(apart**2, -1, keepdims=True) + 1) ** 1.5, 1)


@pytest.mark.parametrize("half", HALVES)
def test_counts_of_truth_values(half: str) -> None:
    want = reference(ranks_by_triangle, W, X)
    assert not np.any(mixed(ranks_by_triangle, half, W, X) - want)
    assert np.any(mixed(ranks_by_triangle, half, W, X, rules_remove={"position"}) - want)


@pytest.mark.parametrize("half", HALVES)
def test_differences_of_values_far_from_zero(half: str) -> None:
    """As wrong as the dot; without the rules more wrong than the forces are large."""
    want = reference(forces, W, X)
    limit = {"float16": 0.005, "bfloat16": 0.05}[half]
    assert relative(mixed(forces, half, W, X), want) < limit
    off = {"position", "cancellation"}  # both keep differences of all pairs
    assert relative(mixed(forces, half, W, X, rules_remove=off), want) > 0.2


@pytest.mark.parametrize("half", HALVES)
def test_quantized_products_with_zero_points(half: str) -> None:
    """The sum of products of bytes and the corrections for their zero points nearly cancel."""
    numbers = np.random.default_rng(0)
    pixels = jnp.asarray(numbers.integers(100, 156, (64, 256)), jnp.uint8)
    weights = jnp.asarray(numbers.integers(100, 140, (256, 8)), jnp.uint8)

    def layer(w: Any, x: Any, pixels: Any, weights: Any) -> Any:
        a, b = pixels.astype(x.dtype), weights.astype(x.dtype)
        rows, columns = jnp.sum(a, 1, keepdims=True), jnp.sum(b, 0)
        products = a @ b - 128 * columns - 120 * rows + 256 * 128 * 120
        return jax.nn.relu(products * 1e-3) @ w

    args = W, X, pixels, weights
    want = reference(layer, *args)
    limit = {"float16": 0.002, "bfloat16": 0.015}[half]
    assert relative(mixed(layer, half, *args), want) < limit
    assert not relative(mixed(layer, half, *args, rules_remove={"position"}), want) < 0.2


def test_an_image_of_bytes_times_weights_is_half() -> None:
    images = (jnp.arange(N * 8) % 256).reshape(N, 8).astype(jnp.uint8)
    network = lambda i, w: jax.nn.relu((i.astype(jnp.float32) - 127) @ w) @ w  # noqa: E731
    assert paints(network, images, W) == ["half", "full"]
    table = jax.random.normal(jax.random.key(2), (3000, 8))
    embedding = lambda t, w: jax.nn.one_hot(t, 3000) @ table @ w  # noqa: E731
    assert paints(embedding, jnp.arange(N), W) == ["half", "full"]
    kernel = np.asarray(jax.random.normal(jax.random.key(3), (8, 8)))
    constant = lambda i, w: jax.nn.relu((i.astype(jnp.float32) - 127) @ kernel) @ w  # noqa: E731
    assert paints(constant, images, W) == ["half", "full"]


def test_small_numbers_and_masks_are_added_in_half() -> None:
    def hard_swish(w: Any, x: Any) -> Any:
        return ((x @ w) * jnp.clip((x @ w) + 3, 0, 6) / 6) @ w

    def masked(w: Any, x: Any) -> Any:
        return jnp.maximum(x @ w - 1e9, -2) @ w

    assert paints(hard_swish, W, X, of="add") == ["half"]
    assert paints(masked, W, X, of="sub") == ["half"]
