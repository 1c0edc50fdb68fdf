"""``duotone.reroll``: the same results, fewer equations, and what is declined."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.compiling.listing import list_program
from duotone.errors import ArgumentTypeError
from tests.compiling.unrolled import random_program

ONES = jnp.linspace(-1.0, 1.0, 4)


def equations(fn: Callable[..., Any], *args: Any) -> int:
    return int(sum(list_program(jax.make_jaxpr(fn)(*args)).weights))


def assert_same(mine: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    a, b = jax.tree.leaves(mine), jax.tree.leaves(theirs)
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert x.weak_type == y.weak_type
        scale = float(np.abs(np.asarray(y)).max()) if y.size else 1.0
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(scale, 1e-6))


def loss_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(fn(*args)))


def logistic_map(x: Any) -> Any:
    for _ in range(64):
        x = 0.9 * x * (1.0 - jnp.tanh(x))
    return x


@pytest.mark.parametrize("seed", range(8))
def test_a_random_program_gives_the_same(seed: int) -> None:
    fn, args = random_program(seed)
    assert_same(duotone.reroll(fn)(*args), jax.jit(fn)(*args))


@pytest.mark.parametrize("seed", [0, 4])
def test_gradients_inside_and_around(seed: int) -> None:
    fn, args = random_program(seed)
    whole = jax.grad(loss_of(fn), (0, 1, 2))
    inside = duotone.reroll(whole)
    around = jax.grad(duotone.reroll(loss_of(fn)), (0, 1, 2))
    expected = jax.jit(whole)(*args)
    assert_same(inside(*args), expected, 1e-4)
    assert_same(around(*args), expected, 1e-4)
    assert equations(inside, *args) * 3 < equations(whole, *args)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 40))
def test_more_random_programs(seed: int) -> None:
    """Some gradients are chaotic: they may differ as they do for arguments moved by an ULP."""
    fn, args = random_program(seed)
    assert_same(duotone.reroll(fn)(*args), jax.jit(fn)(*args))
    whole = jax.grad(loss_of(fn), (0, 1, 2))
    expected = jax.jit(whole)(*args)
    moved = jax.jit(whole)(*moved_by_an_ulp(args))
    assert_same(duotone.reroll(whole)(*args), expected, 1e-4 + 4.0 * apart(moved, expected))


def test_few_random_programs_are_chaotic() -> None:
    """The test above compares something."""
    calm = 0
    for seed in range(8, 16):
        fn, args = random_program(seed)
        whole = jax.jit(jax.grad(loss_of(fn), (0, 1, 2)))
        calm += apart(whole(*moved_by_an_ulp(args)), whole(*args)) < 1e-4
    assert calm >= 6


def moved_by_an_ulp(args: Any) -> Any:
    return jax.tree.map(lambda x: np.nextafter(x, np.inf, dtype=np.float32), args)


def apart(one: Any, other: Any) -> float:
    """The largest difference, over the largest number of its array."""
    found = [0.0]
    for x, y in zip(map(np.asarray, jax.tree.leaves(one)), jax.tree.leaves(other), strict=True):
        if x.size:
            found.append(float(np.abs(x - y).max() / max(np.abs(np.asarray(y)).max(), 1e-6)))
    return max(found)


def test_most_random_programs_are_rolled() -> None:
    rolled = 0
    for seed in range(12):
        fn, args = random_program(seed)
        rolled += any(line.rolled for line in duotone.clusters(fn, *args).lines)
    assert rolled >= 10


def test_bits_are_those_of_the_unrolled_program() -> None:
    def steps(x: Any) -> Any:
        for turn in range(40):
            x = x + 0.5 * x - turn
        return x

    np.testing.assert_array_equal(duotone.reroll(steps)(ONES), jax.jit(steps)(ONES))


def test_a_loop_is_left() -> None:
    assert equations(duotone.reroll(logistic_map), ONES) < 10
    line = duotone.clusters(logistic_map, ONES).lines[0]
    assert (line.copies, line.period, line.rolled) == (64, 4, True)


def test_a_value_from_two_copies_back() -> None:
    def wave(u: Any) -> Any:
        before, now = u, 2 * u
        for _ in range(30):
            before, now = now, 2 * now - before - 0.1 * jnp.sin(now)
        return before, now

    assert_same(duotone.reroll(wave)(ONES), jax.jit(wave)(ONES))
    assert equations(duotone.reroll(wave), ONES) < 12


def test_layers_in_a_time_loop_keep_their_weights() -> None:
    def deep(weights: Any, x: Any) -> Any:
        for _ in range(12):
            for w in weights:
                x = jnp.tanh(x @ w) + x
        return x

    weights = [jnp.eye(4) * k for k in (0.1, 0.2, 0.3)]
    (line,) = duotone.clusters(deep, weights, ONES).lines
    assert (line.copies, line.rolled, line.stacked) == (12, True, 0)
    assert_same(duotone.reroll(deep)(weights, ONES), jax.jit(deep)(weights, ONES))


def test_loops_inside_of_a_loop() -> None:
    def nested(x: Any) -> Any:
        for _ in range(6):
            for _ in range(40):
                x = jnp.sin(x) * 0.5 + x
            x = jnp.cumsum(x)
        return x

    lines = duotone.clusters(nested, ONES).lines
    assert {(line.copies, line.depth) for line in lines if line.rolled} >= {(6, 0), (40, 1)}
    assert_same(duotone.reroll(nested)(ONES), jax.jit(nested)(ONES))


def test_two_loops_of_different_periods() -> None:
    def two(x: Any) -> Any:
        for _ in range(40):
            x = jnp.sin(x) + x
        y = jnp.cumsum(x)
        for _ in range(40):
            y = jnp.tanh(y) * 0.9 - 0.1
        return x, y

    assert sum(line.rolled for line in duotone.clusters(two, ONES).lines) == 2
    assert_same(duotone.reroll(two)(ONES), jax.jit(two)(ONES))


def test_what_the_first_loop_stacked_the_second_reads_backwards() -> None:
    def there_and_back(x: Any) -> Any:
        seen = []
        for _ in range(30):
            x = jnp.sin(x) + 0.1 * x
            seen.append(x)
        for y in seen[::-1]:
            x = x * 0.5 + jnp.tanh(y)
        return x

    lines = duotone.clusters(there_and_back, ONES).lines
    assert [(line.rolled, line.stacked) for line in lines] == [(True, 0), (True, 0)]
    assert_same(duotone.reroll(there_and_back)(ONES), jax.jit(there_and_back)(ONES))


def test_vmap_and_jit_around_and_inside() -> None:
    batch = jnp.stack([ONES, 2 * ONES])
    expected = jax.vmap(logistic_map)(batch)
    assert_same(jax.vmap(duotone.reroll(logistic_map))(batch), expected)
    assert_same(duotone.reroll(jax.vmap(logistic_map))(batch), expected)
    assert_same(duotone.reroll(jax.jit(logistic_map))(ONES), logistic_map(ONES))
    assert equations(duotone.reroll(jax.jit(logistic_map)), ONES) < 12


def test_autocast_around() -> None:
    def net(w: Any, x: Any) -> Any:
        for _ in range(40):
            x = jnp.tanh(x @ w)
        return x

    policy = duotone.Policy(ignore_performance=True)
    half = duotone.autocast(duotone.reroll(net), dtype="bfloat16", policy=policy)
    w, x = jnp.eye(8) * 0.9, jnp.ones((8, 8))
    np.testing.assert_allclose(half(w, x), net(w, x), atol=0.05)
    assert "bf16" in str(jax.make_jaxpr(half)(w, x))


def test_custom_derivatives_stay() -> None:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return jnp.sin(x)

    clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * 3.0 + 0.0 * x,))

    @jax.custom_jvp
    def scaled(x: Any) -> Any:
        return 0.9 * x

    scaled.defjvp(lambda primals, tangents: (scaled(*primals), 0.5 * tangents[0]))

    def net(x: Any) -> Any:
        for _ in range(40):
            x = scaled(clipped(x)) + 0.01
        return jnp.sum(x)

    assert equations(duotone.reroll(net), ONES) < 30
    mine, whole = jax.grad(duotone.reroll(net))(ONES), jax.grad(net)(ONES)
    np.testing.assert_allclose(mine, whole, rtol=1e-5)


def test_derivative_rules_that_close_over_other_numbers_are_not_one() -> None:
    def with_rule(factor: float) -> Callable[[Any], Any]:
        @jax.custom_jvp
        def f(x: Any) -> Any:
            return jnp.sin(x)

        f.defjvp(lambda primals, tangents: (f(*primals), factor * tangents[0]))
        return f

    def net(x: Any) -> Any:
        for turn in range(70):
            x = with_rule(0.9 + 0.001 * turn)(x)
        return jnp.sum(x)

    np.testing.assert_allclose(jax.grad(duotone.reroll(net))(ONES), jax.grad(net)(ONES), rtol=1e-5)


def test_effects_happen_once_and_in_order() -> None:
    seen: list[int] = []

    def noted(x: Any) -> Any:
        for turn in range(20):
            x = jnp.sin(x) + x * 0.1
            jax.debug.callback(lambda n, _: seen.append(int(n)), turn, x[0], ordered=True)
            x = jnp.tanh(x) + 0.01
        return x

    result = jax.block_until_ready(duotone.reroll(noted)(ONES))
    jax.effects_barrier()
    assert seen == list(range(20))
    assert_same(result, logged_without(noted))


def logged_without(fn: Callable[..., Any]) -> Any:
    return jax.jit(fn)(ONES)


def test_random_keys_are_carried() -> None:
    def walk(key: Any, x: Any) -> Any:
        for _ in range(30):
            key, now = jax.random.split(key)
            x = x + 0.1 * jax.random.normal(now, x.shape)
        return x, key

    key = jax.random.key(0)
    (x, last), (y, other) = duotone.reroll(walk)(key, ONES), walk(key, ONES)
    np.testing.assert_allclose(x, y, rtol=1e-5)
    assert (jax.random.key_data(last) == jax.random.key_data(other)).all()


def test_shardings_stay() -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

    def steps(x: Any) -> Any:
        for _ in range(30):
            x = jax.lax.with_sharding_constraint(jnp.sin(x) + 0.5 * x, sharding)
        return x

    assert_same(duotone.reroll(steps)(ONES), jax.jit(steps)(ONES))
    assert "sharding_constraint" in str(jax.make_jaxpr(duotone.reroll(steps))(ONES))


def test_weights_that_would_have_to_be_stacked_are_declined() -> None:
    def deep(weights: Any, x: Any) -> Any:
        for w, b in weights:
            x = jax.nn.gelu(x @ w + b)
        return x

    weights = [(jnp.eye(64), jnp.zeros(64)) for _ in range(12)]
    x = jnp.ones((4, 64))
    (line,) = duotone.clusters(deep, weights, x).lines
    assert not line.rolled
    assert "stacked at every call" in line.reason
    assert equations(duotone.reroll(deep), weights, x) == equations(deep, weights, x) + 0


def test_few_operations_are_left_alone() -> None:
    def short(x: Any) -> Any:
        for _ in range(5):
            x = jnp.sin(x) + 1
        return x

    assert not any(line.rolled for line in duotone.clusters(short, ONES).lines)


def test_what_is_no_function() -> None:
    with pytest.raises(ArgumentTypeError, match="reroll: fn is 3, which is not callable"):
        duotone.reroll(3)  # pyright: ignore[reportArgumentType]


def test_static_arguments_and_structures() -> None:
    def steps(x: dict[str, Any], turns: int) -> tuple[Any, str]:
        y = x["y"]
        for _ in range(turns):
            y = jnp.sin(y) * 0.5 + y
        return {"y": y}, "done"

    mine = duotone.reroll(steps)
    assert mine({"y": ONES}, 30)[1] == "done"
    assert_same(mine({"y": ONES}, 40)[0], steps({"y": ONES}, 40)[0])


def test_a_copy_with_another_number_of_elements_ends_a_run() -> None:
    rng = random.Random(0)
    sizes = [rng.randint(2, 5) for _ in range(40)]

    def ragged(x: Any) -> Any:
        for size in sizes:
            x = x + jnp.sum(jnp.sin(x[:size]))
        return x

    x = jnp.linspace(0.0, 1.0, 5)
    assert_same(duotone.reroll(ragged)(x), jax.jit(ragged)(x))


def test_gradients_of_a_loop_are_one_more_loop() -> None:
    def loss(w: Any, v: Any, x: Any) -> Any:
        for t in range(12):
            x = x + 0.1 * jnp.tanh(x @ w + 0.1 * t) @ v
        return jnp.sum(x**2)

    w = 0.1 * jnp.arange(12.0).reshape(4, 3) - 0.5
    args = (w, w.T, jnp.ones((2, 4)))
    gradient = jax.grad(duotone.reroll(loss), (0, 1))
    assert str(jax.make_jaxpr(gradient)(*args)).count(" scan[") == 2
    assert_same(gradient(*args), jax.jit(jax.grad(loss, (0, 1)))(*args))
