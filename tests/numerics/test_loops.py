"""What loops add up, and loops that end when a number is small enough."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from tests.numerics.oracle import mixed, reference, relative

W = jax.random.normal(jax.random.key(0), (8, 8)) / 4
X = jax.random.normal(jax.random.key(1), (8, 8))
HALVES = ["float16", "bfloat16"]


def scanned(step: Callable[[Any, Any], Any], start: Any, length: int) -> Any:
    return jax.lax.scan(lambda state, _: (step(state, None), None), start, None, length=length)[0]


def ode(w: Any, x: Any) -> Any:
    return jnp.mean(scanned(lambda h, _: h + 0.005 * jnp.tanh(h @ w), x, 200) ** 2)


def runge_kutta(w: Any, x: Any) -> Any:
    def step(h: Any, _: Any) -> Any:
        k1 = jnp.tanh(h @ w)
        k2 = jnp.tanh((h + 0.05 * k1) @ w)
        return h + 0.1 / 2 * (k1 + k2)

    return jnp.mean(scanned(step, x, 20) ** 2)


def weighted(w: Any, x: Any) -> Any:
    """An exponential mean with a decay for each channel, read by a dot."""
    terms = jnp.tanh(jnp.broadcast_to(x, (200, 8, 8)) @ w) + 0.2
    decay = jnp.linspace(0.95, 0.999, 8, dtype=x.dtype)

    def step(state: Any, term: Any) -> tuple[Any, Any]:
        state = decay * state + (1 - decay) * term
        return state, state @ w

    return jnp.mean(jax.lax.scan(step, jnp.zeros_like(x), terms)[1] ** 2)


def descent(w: Any, x: Any) -> Any:
    """Weights that a loop trains."""
    learned = scanned(lambda p, _: p - 0.002 * (x.T @ jnp.tanh(x @ p)), w, 40)
    return jnp.mean((x @ learned) ** 2)


def blocks(w: Any, x: Any) -> Any:
    """An attention in blocks: what was summed is weighted anew in each."""
    keys = (jnp.linspace(-1, 1, 16, dtype=x.dtype)[:, None, None] + x) @ w

    def step(state: Any, key: Any) -> tuple[Any, None]:
        top, total, acc = state
        scores = x @ key.T
        new = jnp.maximum(top, scores.max(-1))
        p, left = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
        return (new, total * left + p.sum(-1), acc * left[:, None] + p @ key), None

    start = (x[:, 0] * 0 - jnp.inf, x[:, 0] * 0, x * 0)
    _, total, acc = jax.lax.scan(step, start, keys)[0]
    return jnp.mean((acc / total[:, None]) ** 2)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [ode, runge_kutta, weighted, descent, blocks])
def test_a_sum_over_iterations_keeps_small_terms(function: Callable[..., Any], half: str) -> None:
    """As dots in half alone: with the state in half the first is off by a third."""
    program = jax.value_and_grad(function)
    want = reference(program, W, X)
    error = relative(mixed(program, half, W, X), want)
    dots = relative(mixed(program, half, W, X, level="TENSOR_CORES_ONLY"), want)
    assert error <= 4 * dots


def halting(w: Any, x: Any) -> Any:
    """Adaptive computation time, https://arxiv.org/abs/1603.08983: the last step takes the rest."""

    def step(state: Any, _: Any) -> tuple[Any, Any]:
        h, total, mean = state
        h = h + 0.3 * jnp.tanh(h @ w)
        chance = jax.nn.sigmoid((h @ w)[:, 0] - 1)
        runs = total < 0.99
        last = runs & (total + chance > 0.99)
        weight = jnp.where(last, 1 - total, jnp.where(runs, chance, 0))
        total = total + jnp.where(runs, chance, 0)
        return (h, total, mean + weight[:, None] * h), weight

    (_, _, mean), weights = jax.lax.scan(step, (x, x[:, 0] * 0, x * 0), None, 10)
    return jnp.sum(weights, 1), mean @ w


def spikes(w: Any, x: Any) -> Any:
    """Neurons that integrate and fire, and lose 1 whenever they do."""
    inputs = jnp.linspace(-1, 1, 60, dtype=x.dtype)[:, None, None] + x

    def step(potential: Any, given: Any) -> tuple[Any, Any]:
        potential = potential + given @ w
        fires = jnp.where(potential - 1 > 0, 1.0, 0.0)
        return potential - fires, fires

    left, fired = jax.lax.scan(step, x * 0, inputs)
    return (left + jnp.sum(fired, 0)) @ w


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [halting, spikes])
def test_a_sum_that_a_comparison_with_a_constant_ends(
    function: Callable[..., Any], half: str
) -> None:
    """A sum in half ends in another step, and what is left of it has few digits."""
    want = reference(function, W, X)
    error = relative(mixed(function, half, W, X), want)
    dots = relative(mixed(function, half, W, X, level="TENSOR_CORES_ONLY"), want)
    without = relative(mixed(function, half, W, X, rules_remove={"carry"}), want)
    assert error <= 1.3 * dots < without


def best_path(w: Any, x: Any) -> Any:
    """The scores of the best paths through 60 steps, and the steps that they came from."""
    emitted = (jnp.linspace(-1, 1, 60, dtype=x.dtype)[:, None, None] + x) @ w + 2

    def step(score: Any, emission: Any) -> tuple[Any, Any]:
        ways = score[:, :, None] + w
        return jnp.max(ways, 1) + emission, jnp.argmax(ways, 1)

    return jnp.mean(jax.lax.scan(step, emitted[0], emitted[1:])[0])


@pytest.mark.parametrize("half", HALVES)
def test_scores_of_best_paths_are_not_rounded_at_each_step(half: str) -> None:
    """Half emissions choose other paths now and then; half scores do so often."""
    program = jax.value_and_grad(best_path)
    want = reference(program, W, X)
    value, grads = mixed(program, half, W, X)
    assert relative(value, want[0]) < 1e-4
    assert relative(grads, want[1]) < 0.02
    without = mixed(program, half, W, X, rules_remove={"carry"})
    assert relative(without[1], want[1]) > 0.05


def layers(weights: Any) -> Any:
    """A residual stream, each layer's part scaled down."""

    def layer(h: Any, pair: Any) -> tuple[Any, None]:
        return h + 0.5 * (jnp.tanh(h @ pair[0]) @ pair[1]), None

    return jnp.mean((jax.lax.scan(layer, X @ weights[0, 0], weights)[0] @ W) ** 2)


@pytest.mark.parametrize("count", [12, 100])
@pytest.mark.parametrize("program", [layers, jax.grad(layers)])
def test_the_residual_stream_of_a_scan_over_layers_is_half(program: Any, count: int) -> None:
    weights = jax.ShapeDtypeStruct((count, 2, 8, 8), jnp.float32)
    seen = duotone.explain(program, weights, dtype="bfloat16")
    sums = [o for o in seen.operations if o.operation == "add" and o.runs == count and o.shape]
    assert sums
    assert {o.stored for o in sums} == {"half"}


def memory(gates: Callable[[Any, Any], tuple[Any, Any]], w: Any, x: Any) -> Any:
    """A linear recurrence that forgets a thousandth of its state at each of 200 steps."""
    terms = jnp.sin(jnp.arange(200 * 8, dtype=x.dtype)).reshape(200, 8, 1) + x

    def step(state: Any, gate: tuple[Any, Any]) -> tuple[Any, Any]:
        state = gate[0] * state + gate[1]
        return state, state

    states = jax.lax.scan(step, jnp.zeros_like(x), gates(terms @ w + 7, jnp.tanh(terms @ w)))[1]
    return jnp.mean((states @ w) ** 2)


def gates_of_exponentials(z: Any, u: Any) -> tuple[Any, Any]:
    a = jnp.exp(jax.nn.log_sigmoid(z))
    return a, (1 - a) * u


def gates_kept_full(z: Any, u: Any) -> tuple[Any, Any]:
    with duotone.keep_full():
        a = jax.nn.sigmoid(z)
        return a, (1 - a) * u


@pytest.mark.parametrize("gates", [gates_of_exponentials, gates_kept_full])
def test_a_long_memory_as_the_limits_page_advises_to_write_it(gates: Any) -> None:
    gradient = jax.grad(functools.partial(memory, gates))
    got = mixed(gradient, "bfloat16", W, X)
    assert relative(got, reference(gradient, W, X)) < 0.02


def fixed_point(w: Any, *, limit: int = 200) -> Any:
    def step(state: Any) -> Any:
        z, _, count = state
        new = jnp.tanh(z @ w + X)
        return new, jnp.linalg.norm(new - z), count + 1

    goes_on = lambda state: (state[1] > 1e-5) & (state[2] < limit)  # noqa: E731
    return jax.lax.while_loop(goes_on, step, (X, jnp.inf, 0))


def bisection(w: Any) -> Any:
    wanted = X @ w

    def step(state: Any) -> Any:
        low, high, count = state
        middle = (low + high) / 2
        above = jnp.tanh(middle) + middle > wanted
        return jnp.where(above, low, middle), jnp.where(above, middle, high), count + 1

    goes_on = lambda s: (jnp.max(s[1] - s[0]) > 1e-4) & (s[2] < 200)  # noqa: E731
    return jax.lax.while_loop(goes_on, step, (wanted - 2, wanted + 2, 0))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [fixed_point, bisection])
def test_a_loop_until_a_number_is_small_ends(function: Callable[[Any], Any], half: str) -> None:
    want = function(W)[-1]
    assert want < 50
    assert abs(mixed(function, half, W)[-1] - want) <= 1


def uncounted(w: Any) -> Any:
    step = lambda state: (jnp.tanh(state[0] @ w + X), jnp.max(jnp.abs(state[0])))  # noqa: E731
    return jax.lax.while_loop(lambda state: state[1] > 1e-3, step, (X, jnp.float32(1.0)))[0]


def decoding(w: Any) -> Any:
    """Ends when no score can get better: a beam search."""

    def step(state: Any) -> Any:
        h, best, worst, count = state
        h = jnp.tanh(h @ w)
        return h, best + jnp.max(h), worst + jnp.min(h), count + 1

    goes_on = lambda s: (s[1] < s[2]) & (s[3] < 50)  # noqa: E731
    return jax.lax.while_loop(goes_on, step, (X, 0.0, 1.0, 0))[0]


def timed(w: Any) -> Any:
    """Ends at a time that no dot has a part in."""
    step = lambda state: (jnp.tanh(state[0] @ w), state[1] + 0.1)  # noqa: E731
    return jax.lax.while_loop(lambda state: state[1] < 1.0, step, (X, 0.0))[0]


@pytest.mark.parametrize(
    ("function", "paint"),
    [(fixed_point, "full"), (uncounted, "full"), (decoding, "half"), (timed, "half")],
)
def test_what_is_kept_full_for_the_end_of_a_loop(function: Any, paint: str) -> None:
    seen = duotone.explain(function, W, dtype="float16")
    assert {o.paint for o in seen.operations if o.operation == "dot_general"} == {paint}
    kept = [o for o in seen.operations if "in half it may never end" in o.reason]
    assert bool(kept) == (paint == "full")


def test_the_user_has_the_last_word() -> None:
    policy = duotone.Policy(keep_half=["*dot_general*"])
    seen = duotone.explain(fixed_point, W, dtype="float16", policy=policy)
    assert {o.paint for o in seen.operations if o.operation == "dot_general"} == {"half"}
    assert np.isfinite(mixed(fixed_point, "float16", W)[0]).all()
