"""Functions between the last dot of a network and its loss: no dot rounds them by hand either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative

W = jax.random.normal(jax.random.key(0), (4, 16, 16)) / 4
X = jax.random.normal(jax.random.key(1), (64, 16))
TARGET = (jax.random.uniform(jax.random.key(2), (64, 16)) > 0.02).astype(jnp.float32)


def network(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w[0]) @ w[1]


def other(w: Any, x: Any) -> Any:
    """The same network with weights a small step away."""
    return network(w[:2] + 0.05 * w[2:], x)


def brier(w: Any, x: Any) -> Any:
    """Confident predictions, compared with given labels."""
    return 1e4 * jnp.mean(TARGET * (jax.nn.sigmoid(network(w, x) + 6) - TARGET) ** 2)


def adversarial(w: Any, x: Any) -> Any:
    real, fake = network(w, x) + 6, other(w, x) - 6
    return 1e3 * (jnp.mean((jax.nn.sigmoid(real) - 1) ** 2) + jnp.mean(jax.nn.sigmoid(fake) ** 2))


def overlap(w: Any, x: Any) -> Any:
    """The Dice loss of a segmentation that is nearly right."""
    found = jax.nn.sigmoid(2 * network(w, x) + 5)
    return 1 - 2 * jnp.sum(found * TARGET) / (jnp.sum(found) + jnp.sum(TARGET))


def single(w: Any, x: Any) -> Any:
    """One probability for each example: the dot is a product with a vector."""
    return 1e4 * jnp.mean((1 - jax.nn.sigmoid(network((w[0], w[1][:, :1]), x) + 6)) ** 2)


def teacher(w: Any, x: Any) -> Any:
    """Predictions of two sets of weights."""
    return 1e4 * jnp.mean(
        (jax.nn.sigmoid(network(w, x) + 5) - jax.nn.sigmoid(other(w, x) + 5)) ** 2
    )


def near_points(w: Any, x: Any) -> Any:
    """Predictions at two near points."""
    near = x + 0.1 * jnp.roll(x, 1, 0)
    return 1e4 * jnp.mean((jnp.tanh(network(w, near) + 3) - jnp.tanh(network(w, x) + 3)) ** 2)


def views(w: Any, x: Any) -> Any:
    """Predictions for two views in one batch."""
    both = jax.nn.sigmoid(network(w, jnp.concatenate([x, x + 0.1 * jnp.roll(x, 1, 0)])) + 5)
    one, other = jnp.split(both, 2)
    return 1e4 * jnp.mean((one - other) ** 2)


def stacked(w: Any, x: Any) -> Any:
    """Predictions of two sets of weights in one array."""
    weights = jnp.stack([w[:2], w[:2] + 0.1 * w[2:]])
    both = jax.nn.sigmoid(jax.vmap(network, (0, None))(weights, x) + 5)
    return 1e4 * jnp.mean((both[0] - both[1]) ** 2)


def in_a_loop(w: Any, x: Any) -> Any:
    """A loss that a loop sums over parts of a batch; the gradients are in another loop."""

    def step(total: Any, batch: Any) -> Any:
        return total + 1e4 * jnp.mean((jax.nn.sigmoid(network(w, batch) + 6) - 1) ** 2), None

    return jax.lax.scan(step, jnp.zeros((), x.dtype), x.reshape(4, 16, 16))[0]


def linear_between(w: Any, x: Any) -> Any:
    """What a network leaves of a mixture of its own results."""
    y = jnp.roll(x, 1, 0)
    rest = network(w, 0.9 * x + 0.1 * y) - 0.9 * network(w, x) - 0.1 * network(w, y)
    return 1e3 * jnp.mean(rest**2)


def spread(w: Any, x: Any) -> Any:
    """Distances between the members of an ensemble, in which a mean that all share cancels."""
    members = 0.05 * network(w, x).reshape(16, 4, 16) + 30 * w[3, 0]
    apart = members[:, :, None] - members[:, None]
    return jnp.mean(jnp.sqrt(jnp.sum(apart**2, -1) + 1e-12))


def ordered(w: Any, x: Any) -> Any:
    """A weighted sum of sorted results: equal numbers would have each other's gradients."""
    return jnp.mean(jnp.sort(network(w, x) + 6, 0) * jnp.linspace(-1, 1, 64)[:, None])


def sparse(w: Any, x: Any) -> Any:
    """The loss of sparsemax: a threshold that is computed from the scores picks some of them."""
    scores = network(w, x) + 5
    largest = -jnp.sort(-scores, 1)
    total, count = jnp.cumsum(largest, 1), jnp.arange(1, 17)
    size = jnp.sum(1 + count * largest > total, 1, keepdims=True)
    limit = (jnp.take_along_axis(total, size - 1, 1) - 1) / size
    picked = jnp.sum(jnp.where(scores > limit, scores**2 - limit**2, 0), 1)
    return jnp.mean(picked / 2 - scores[:, 0])


def crossed(w: Any, x: Any) -> Any:
    """The phase between small complex numbers: differences of products that float16 rounds to 0."""
    real, imaginary = jnp.split(1e-3 * network(w, x), 2, 1)
    other, others = jnp.roll(real, 1, 0), jnp.roll(imaginary, 1, 0)
    across, along = real * others - imaginary * other, real * other + imaginary * others
    return jnp.mean(jnp.abs(across / jnp.sqrt(across**2 + along**2 + 1e-20)))


def undecided(w: Any, x: Any) -> Any:
    """A regularizer of confident predictions, which multiplies both distances."""
    y = jax.nn.sigmoid(network(w, x) + 5)
    return 1e3 * jnp.mean(y * (1 - y))


def penalty(w: Any, x: Any) -> Any:
    """Gradients of confident predictions: the derivative of a sigmoid's derivative."""
    found = jax.grad(lambda x: jnp.sum(jax.nn.sigmoid(network(w, x) + 5)))(x)
    return 1e3 * jnp.mean((jnp.sqrt(jnp.sum(found**2, -1)) - 1) ** 2)


def discrepancy(w: Any, x: Any) -> Any:
    """Kernels of all pairs from two near samples: the means nearly cancel."""
    one, other = network(w, x), network(w, x + 0.1 * jnp.roll(x, 1, 0))

    def mean(a: Any, b: Any) -> Any:
        return jnp.mean(jnp.exp(-jnp.sum((a[:, None] - b[None]) ** 2, -1) / 16))

    return 1e3 * (mean(one, one) + mean(other, other) - 2 * mean(one, other))


def turns(w: Any, x: Any) -> Any:
    """Angles between near rotations: what two norms subtract from the gradient is most of it."""

    def unit(v: Any) -> Any:
        return v / jnp.sqrt(jnp.sum(v**2, -1, keepdims=True) + 1e-20)

    one = unit(network(w, x).reshape(-1, 4))
    other = unit(one + 0.05 * x.reshape(-1, 4))
    return 1e3 * jnp.mean(1 - jnp.sum(one * other, -1) ** 2)


PROGRAMS = [brier, adversarial, overlap, single, teacher, near_points, views, stacked]
PROGRAMS += [linear_between, in_a_loop, spread, ordered, sparse, crossed]
PROGRAMS += [undecided, penalty, discrepancy, turns]


def by_hand(function: Callable[..., Any], half: str, w: Any, x: Any) -> Any:
    """Value and gradient with the networks in half, and all else in float32."""
    plain = network

    def cast(w: Any, x: Any) -> Any:
        w, x = jax.tree.map(lambda leaf: leaf.astype(half), (w, x))
        return plain(w, x).astype(jnp.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "network", cast)
        return jax.value_and_grad(function)(w, x)


def is_as_exact(function: Callable[..., Any], half: str, **policy: Any) -> bool:
    """Checks if value and gradient are at most twice as wrong as by hand, or 1%."""
    program = jax.value_and_grad(function)
    want = reference(program, W, X)
    found, hand = mixed(program, half, W, X, **policy), by_hand(function, half, W, X)
    pairs = zip(found, hand, want, strict=True)
    return all(relative(f, w) < max(2 * relative(h, w), 1e-2) for f, h, w in pairs)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", PROGRAMS)
def test_a_loss_is_as_exact_as_by_hand(function: Callable[..., Any], half: str) -> None:
    assert is_as_exact(function, half)


@pytest.mark.parametrize("function", PROGRAMS)
def test_without_the_rule_the_same_test_fails(function: Callable[..., Any]) -> None:
    off = {"rules_remove": {"cancellation"}}
    assert not all(is_as_exact(function, half, **off) for half in HALVES)


@pytest.mark.parametrize("half", HALVES)
def test_a_derived_gradient_is_as_exact(half: str) -> None:
    want = reference(jax.grad(brier), W, X)
    found = jax.grad(duotone.autocast(brier, dtype=half))(W, X)
    assert relative(found, want) < 0.01


def curvature(layers: Any, direction: Any, x: Any) -> Any:
    """The gradient of the curvature of a loss along a direction: a third derivative."""

    def loss(layers: Any) -> Any:
        predicted = jax.nn.sigmoid(jax.nn.softplus(x @ layers[0]) @ layers[1])
        return 1e3 * jnp.mean((predicted - TARGET[:, :1]) ** 2)

    def along(layers: Any) -> Any:
        found = jax.jvp(jax.grad(loss), (layers,), (direction,))[1]
        return sum(map(jnp.vdot, found, direction))

    return jax.grad(along)(layers)


@pytest.mark.parametrize("half", HALVES)
def test_third_derivatives_of_confident_predictions(half: str) -> None:
    layers = (W[0] / 3, 6 * jnp.abs(W[1][:, :1]))
    direction = (W[2] / 4, W[3][:, :1])
    want = reference(curvature, layers, direction, X)
    assert relative(mixed(curvature, half, layers, direction, X), want) < 0.03
    off = mixed(curvature, half, layers, direction, X, rules_remove={"cancellation"})
    assert relative(off, want) > 0.5


def gated(w: Any, x: Any) -> Any:
    """A gated recurrence, written out: each gate leads to the next dot."""
    state = x @ w[2]
    for _ in range(3):
        gate = jax.nn.sigmoid(state @ w[0])
        state = gate * state + (1 - gate) * jnp.tanh(state @ w[1])
    return jnp.mean((state @ w[3] - X) ** 2)


def tied(w: Any, x: Any) -> Any:
    """Layers with one matrix."""
    for _ in range(3):
        x = jnp.tanh(x @ w[0])
    return jnp.mean((x @ w[1]) ** 2)


def capped(w: Any, x: Any) -> Any:
    """Many logits, bounded softly: they are subtracted from their own maximum only."""
    logits = 30 * jnp.tanh(network(w, x) @ jnp.tile(w[2], (1, 64)) / 30)
    return -jnp.mean(jax.nn.log_softmax(logits)[:, 0])


def looped(w: Any, x: Any) -> Any:
    def step(state: Any, _: Any) -> Any:
        state = jax.nn.sigmoid(state @ w[0])
        return state, state

    return jnp.mean((jax.lax.scan(step, x, None, 3)[1] - X) ** 2)


def counted(w: Any, x: Any) -> Any:
    """A loss and how often it is right, with logits that have a bias."""
    logits = network(w, x) + w[2, 0]
    right = jnp.mean(jnp.argmax(logits, -1) == 0)
    return jax.lax.stop_gradient(right) - jnp.mean(jax.nn.log_softmax(logits)[:, 0])


@pytest.mark.parametrize("function", [gated, tied, capped, looped, counted])
def test_networks_are_decided_as_before(function: Callable[..., Any]) -> None:
    seen = duotone.explain(jax.value_and_grad(function), W, X, dtype="bfloat16").operations
    reasons = {o.reason for o in seen if o.rule == "cancellation"}
    assert all("a small array" in reason for reason in reasons)


def test_arithmetic_after_a_large_last_dot_is_decided_as_before() -> None:
    seen = duotone.explain(jax.value_and_grad(capped), W, X, dtype="bfloat16").operations
    assert {o.paint for o in seen if o.operation == "tanh"} == {"half"}


def test_the_reasons_are_reported() -> None:
    seen = duotone.explain(linear_between, W, X, dtype="bfloat16").operations
    assert any(
        "difference from another result" in o.reason for o in seen if o.rule == "cancellation"
    )
    seen = duotone.explain(brier, W, X, dtype="bfloat16").operations
    assert any("its limit" in o.reason for o in seen if o.operation == "logistic")
