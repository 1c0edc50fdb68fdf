"""Sums of dots over a loop become one dot after it, and stay the same sums."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import Policy, _jax
from duotone.devices import assuming, find_target
from duotone.precision.optimize import loop_sums

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def on_a_gpu():
    """CPUs do not have the optimization: their caches hold the sum."""
    with assuming(find_target("h200").device()):
        yield


STEPS, BATCH, WIDTH, HIDDEN = 6, 8, 96, 64


def recurrent(params, xs):
    """A tanh RNN; the loss is a mean square of its states."""

    def step(state, x):
        state = jnp.tanh(x @ params["in"] + state @ params["own"])
        return state, state

    start = jnp.zeros((BATCH, HIDDEN))
    return jnp.mean(jax.lax.scan(step, start, xs)[1] ** 2)


def arguments():
    keys = jax.random.split(KEY, 3)
    params = {
        "in": jax.random.normal(keys[0], (WIDTH, HIDDEN)) / 10,
        "own": jax.random.normal(keys[1], (HIDDEN, HIDDEN)) / 10,
    }
    return params, jax.random.normal(keys[2], (STEPS, BATCH, WIDTH))


def loops(jaxpr):
    """The carries of every scan, by shape."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            body = eqn.params["jaxpr"]
            body = getattr(body, "jaxpr", body)
            found.append([v.aval.shape for v in body.outvars])
        for param in eqn.params.values():
            for inner in param if isinstance(param, (tuple, list)) else (param,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    found += loops(inner)
    return found


def without_sums(monkeypatch):
    monkeypatch.setenv("DUOTONE_OPTIMIZATIONS_REMOVE", "loop_sums")


def relative_error(got, want):
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    top = bottom = 0.0
    for g, w in pairs:
        top += float(np.sum((np.asarray(g, np.float64) - np.asarray(w, np.float64)) ** 2))
        bottom += float(np.sum(np.asarray(w, np.float64) ** 2))
    return (top / bottom) ** 0.5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_gradient_of_a_recurrent_weight_is_made_after_the_loop(dtype):
    params, xs = arguments()
    gradient = duotone.autocast(jax.grad(recurrent), dtype=dtype)
    carried = loops(jax.make_jaxpr(gradient)(params, xs).jaxpr)
    assert len(carried) == 2
    assert not any((HIDDEN, HIDDEN) in shapes or (WIDTH, HIDDEN) in shapes for shapes in carried)
    full = loops(jax.make_jaxpr(jax.grad(recurrent))(params, xs).jaxpr)
    assert any((HIDDEN, HIDDEN) in shapes for shapes in full)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_it_is_as_exact_as_the_loop(dtype, monkeypatch):
    params, xs = arguments()
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), (params, xs))
        want = jax.tree.map(np.asarray, jax.grad(recurrent)(*wide))
    after = relative_error(duotone.autocast(jax.grad(recurrent), dtype=dtype)(params, xs), want)
    without_sums(monkeypatch)
    inside = relative_error(duotone.autocast(jax.grad(recurrent), dtype=dtype)(params, xs), want)
    assert after <= inside * 1.05 + 1e-7


def test_an_accumulator_that_starts_somewhere_keeps_its_start():
    def summed(start, a, b):
        def step(total, pair):
            return total + pair[0].T @ pair[1], None

        return jax.lax.scan(step, start, (a, b))[0]

    start = jnp.full((24, 24), 3.0)
    a, b = jnp.ones((5, 8, 24)), jnp.ones((5, 8, 24))
    got = duotone.autocast(summed, dtype="float16")(start, a, b)
    np.testing.assert_array_equal(got, jnp.full((24, 24), 43.0))
    again = duotone.autocast(summed, dtype="float16", policy=Policy(deny_add=["dot_general"]))
    np.testing.assert_array_equal(got, again(start, a, b))


def test_several_dots_into_one_sum():
    def summed(a, b):
        def step(total, pair):
            x, y = pair
            return (total + x.T @ y) + (y.T @ x).T, None

        return jax.lax.scan(step, jnp.zeros((24, 24)), (a, b))[0]

    a, b = (jax.random.normal(k, (4, 8, 24)) / 2 for k in jax.random.split(KEY))
    fast = duotone.autocast(summed, dtype="float16")
    np.testing.assert_allclose(fast(a, b), summed(a, b), rtol=5e-3, atol=5e-3)
    assert [] in loops(jax.make_jaxpr(fast)(a, b).jaxpr) or all(
        (24, 24) not in shapes for shapes in loops(jax.make_jaxpr(fast)(a, b).jaxpr)
    )


def long(length, batch=8):
    """The gradient of a tanh RNN by its last state, and its arguments."""
    params = {"in": jnp.ones((24, 64)) / 30, "own": jnp.ones((64, 64)) / 80}
    xs = jax.random.normal(KEY, (length, batch, 24))

    def loss(params, xs):
        def one(state, x):
            return jnp.tanh(x @ params["in"] + state @ params["own"]), None

        return jnp.mean(jax.lax.scan(one, jnp.zeros((batch, 64)), xs)[0] ** 2)

    return jax.grad(loss), (params, xs)


def test_long_sequences_too_and_nothing_is_stacked_twice():
    """The cotangent of a state is read by both sums; states and inputs are in stacks already."""
    gradient, args = long(length=2048)
    jaxpr = jax.make_jaxpr(duotone.autocast(gradient, dtype="float16"))(*args).jaxpr
    (inner,) = [eqn for eqn in all_equations(jaxpr) if is_backward(eqn)]
    _, carries = _jax.scan_layout(inner)
    assert [v.aval.shape for v in inner.outvars[carries:]] == [(2048, 8, 64)]
    assert str(inner.outvars[-1].aval.dtype) == "float16"
    assert not any(v.aval.shape == (64, 64) for v in inner.outvars)
    got, want = duotone.autocast(gradient, dtype="float16")(*args), gradient(*args)
    assert relative_error(got, want) < 1e-2


def all_equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for param in eqn.params.values():
            inner = getattr(param, "jaxpr", param)
            if hasattr(inner, "eqns"):
                yield from all_equations(inner)


def is_backward(eqn):
    return eqn.primitive.name == "scan" and eqn.params["reverse"]


def test_what_is_stacked_is_no_larger_than_the_slices_of_the_loop():
    """Two cotangents of each step, where one state of each was kept."""

    def loss(params, xs):
        @jax.checkpoint
        def one(state, _):
            for _ in range(3):
                state = jnp.tanh(state @ params["own"]) @ params["out"]
            return state, None

        return jnp.mean(jax.lax.scan(one, xs, None, length=512)[0] ** 2)

    params = {"own": jnp.eye(64), "out": jnp.eye(64)}
    args = params, jax.random.normal(KEY, (8, 64))
    program = duotone.autocast(jax.grad(loss), dtype="bfloat16")
    jaxpr = jax.make_jaxpr(program)(*args).jaxpr
    (inner,) = [eqn for eqn in all_equations(jaxpr) if is_backward(eqn)]
    assert any(v.aval.shape == (64, 64) for v in inner.outvars)
    assert len(inner.outvars) == _jax.scan_layout(inner)[1]


@pytest.mark.parametrize("use", ["read", "scaled", "large"])
def test_other_carries_stay_in_the_loop(use):
    """The sum is read inside, is not a plain sum, or is smaller than what it is made of."""

    def summed(a, b):
        def step(carry, pair):
            total, seen = carry
            x, y = pair
            dot = x.T @ y
            if use == "read":
                seen = seen + jnp.sum(total)
            if use == "scaled":
                total = total * 0.5
            return (total + dot, seen), None

        return jax.lax.scan(step, (jnp.zeros((24, 24)), 0.0), (a, b))[0]

    rows = 512 if use == "large" else 8
    a, b = (jax.random.normal(k, (4, rows, 24)) for k in jax.random.split(KEY))
    fast = duotone.autocast(summed, dtype="float16")
    assert any((24, 24) in shapes for shapes in loops(jax.make_jaxpr(fast)(a, b).jaxpr))
    for got, want in zip(fast(a, b), summed(a, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2 * rows**0.5)


def test_reversed_vmapped_and_differentiated():
    params, xs = arguments()
    fast = duotone.autocast(jax.grad(recurrent), dtype="float16")
    many = jax.vmap(fast, in_axes=(None, 0))(params, jnp.stack([xs, -xs]))
    one = fast(params, xs)
    for got, want in zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(got[0], want, rtol=2e-2, atol=2e-4)
    hessian_product = jax.jvp(lambda p: fast(p, xs), (params,), (params,))[1]
    want = jax.jvp(lambda p: jax.grad(recurrent)(p, xs), (params,), (params,))[1]
    assert relative_error(hessian_product, want) < 2e-2


def test_a_sum_of_whole_numbers_stays_in_the_loop():
    """Its dot has no float32 accumulator; the loop is rewritten for another carry's sake."""

    def both(a, b, x, w):
        def step(carry, pair):
            total, x = carry
            return (total + pair[0].T @ pair[1], x @ w), None

        return jax.lax.scan(step, (jnp.zeros((24, 24), jnp.int32), x), (a, b))[0]

    a = b = jnp.ones((3, 8, 24), jnp.int32)
    total, moved = duotone.autocast(both, dtype="float16")(a, b, jnp.ones((2, 8)), jnp.eye(8))
    assert total.dtype == jnp.int32
    np.testing.assert_array_equal(total, jnp.full((24, 24), 24))
    np.testing.assert_array_equal(moved, jnp.ones((2, 8)))


def test_a_sum_that_the_user_keeps_half_stays_in_the_loop():
    def summed(a, b):
        def step(total, pair):
            return total + pair[0].T @ pair[1], None

        return jax.lax.scan(step, jnp.zeros((24, 24)), (a, b))[0]

    a = b = jnp.ones((64, 8, 24))
    policy = Policy(keep_half=["*add", "*loop.*"])
    fast = duotone.autocast(summed, dtype="float16", policy=policy)
    assert any((24, 24) in shapes for shapes in loops(jax.make_jaxpr(fast)(a, b).jaxpr))
    np.testing.assert_array_equal(fast(a, b), jnp.full((24, 24), 512.0))


def matrices_in_loops(program, *args):
    """The carries with two axes of more than one element, over all scans."""
    shapes = itertools.chain(*loops(jax.make_jaxpr(program)(*args).jaxpr))
    return [shape for shape in shapes if len(shape) > 1 and min(shape) > 1]


def wide_gradient(loss, *args):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), args)
        return jax.tree.map(np.asarray, jax.grad(loss)(*wide))


def gates(rows):
    """An RNN whose two weights are side by side in one dot, as in an LSTM of libraries."""

    def loss(params, xs):
        def step(state, x):
            weight = jnp.concatenate([params["a"], params["b"]], axis=-1)
            a, b = jnp.split(jnp.concatenate([state, x], axis=-1) @ weight, 2, axis=-1)
            return jnp.tanh(a) * jax.nn.sigmoid(b), None

        return jnp.mean(jax.lax.scan(step, jnp.zeros((rows, 64)), xs)[0] ** 2)

    keys = jax.random.split(KEY, 3)
    params = {
        name: jax.random.normal(key, (96, 64)) / 8 for name, key in zip("ab", keys[:2], strict=True)
    }
    return loss, (params, jax.random.normal(keys[2], (STEPS, rows, 32)))


def check_as_exact_as_the_loop(loss, args, monkeypatch):
    want = wide_gradient(loss, *args)
    gradient = jax.grad(loss)
    after = relative_error(duotone.autocast(gradient, dtype="float16")(*args), want)
    without_sums(monkeypatch)
    inside = relative_error(duotone.autocast(gradient, dtype="float16")(*args), want)
    assert after <= inside * 1.05 + 1e-7


@pytest.mark.parametrize("rows", [16, 2])
def test_weights_that_share_a_dot(rows, monkeypatch):
    """The gradient of both is one dot, of which each takes a part."""
    loss, args = gates(rows)
    gradient = duotone.autocast(jax.grad(loss), dtype="float16")
    assert (96, 64) not in matrices_in_loops(gradient, *args)
    assert (96, 64) in matrices_in_loops(jax.grad(loss), *args)
    check_as_exact_as_the_loop(loss, args, monkeypatch)


def attended(params, keys, steps):
    """A decoder whose state attends to the same keys in every step."""

    def step(state, x):
        weights = jax.nn.softmax(jnp.einsum("bd,bld->bl", state @ params, keys))
        state = jnp.tanh(state + x + jnp.einsum("bl,bld->bd", weights, keys))
        return state, None

    return jnp.mean(jax.lax.scan(step, steps[0], steps)[0] ** 2)


def test_outer_products_of_all_iterations_are_a_dot(monkeypatch):
    """The gradient of the keys: an outer product for each step, of operands that dots read."""
    draws = jax.random.split(KEY, 3)
    keys, steps = jax.random.normal(draws[0], (4, 24, 32)), jax.random.normal(draws[1], (16, 4, 32))
    args = keys, jax.random.normal(draws[2], (32, 32)) / 8, steps

    def loss(keys, params, steps):
        return attended(params, keys, steps)

    gradient = duotone.autocast(jax.grad(loss), dtype="float16")
    assert (4, 24, 32) not in matrices_in_loops(gradient, *args)
    operations = duotone.explain(gradient, *args).operations
    outer = [operation for operation in operations if operation.rule == "iterations"]
    assert len(outer) == 2
    assert all("loop_sums" in str(operation.optimizations) for operation in outer)
    check_as_exact_as_the_loop(loss, args, monkeypatch)


def products(steps, read=False, denied=()):
    """Adds up the outer products of float32 vectors, which may be operands of a dot too."""

    def summed(xs, w):
        def step(carry, x):
            seen = carry[1] + x @ w if read else carry[1]
            return (carry[0] + x[:, None] @ x[None], seen), None

        return jax.lax.scan(step, (jnp.zeros((64, 64)), jnp.zeros(64)), xs)[0]

    args = jax.random.normal(KEY, (steps, 64)), jnp.eye(64)
    return duotone.autocast(summed, dtype="float16", policy=Policy(deny_add=denied)), args


@pytest.mark.parametrize(
    ("steps", "read", "denied", "inside"),
    [
        (32, True, (), False),
        (32, False, (), True),
        (4, True, (), True),
        (32, True, ("short_dot",), True),
    ],
    ids=["half for another dot", "float32", "too few iterations", "denied by the user"],
)
def test_outer_products_are_half_only_where_their_operands_are(steps, read, denied, inside):
    program, args = products(steps, read, denied)
    assert ((64, 64) in matrices_in_loops(program, *args)) is inside


@pytest.mark.parametrize(
    "change",
    [jnp.abs, lambda x: jnp.pad(x, 1, constant_values=1.0)[1:-1, 1:-1] + 0.0, jnp.round],
    ids=["abs", "pad", "round"],
)
def test_only_operations_that_move_elements_are_passed(change):
    """``|a| + |b|`` is not ``|a + b|``."""

    def summed(a, b):
        def step(total, pair):
            return total + change(pair[0].T @ pair[1]), None

        return jax.lax.scan(step, jnp.zeros((24, 24)), (a, b))[0]

    a, b = (jax.random.normal(k, (4, 8, 24)) for k in jax.random.split(KEY))
    fast = duotone.autocast(summed, dtype="float16")
    assert (24, 24) in matrices_in_loops(fast, a, b)


def test_the_sums_of_a_loop_are_looked_at_a_fixed_number_of_times(monkeypatch):
    """400 took 4 s, since each sum looked at all of its loop."""
    looked: list[int] = []
    terms = loop_sums._terms
    monkeypatch.setattr(loop_sums, "_terms", lambda *args: looked.append(1) or terms(*args))

    def loss(weights, xs):
        def step(state, x):
            for weight in weights:
                state = jnp.tanh((x + state) @ weight)
            return state, state

        return jnp.sum(jax.lax.scan(step, jnp.zeros((8, 64)), xs)[1] ** 2)

    weights, xs = [jnp.ones((64, 64))] * 20, jnp.ones((32, 8, 64))
    seen = duotone.explain(jax.grad(loss), weights, xs, dtype="bfloat16")
    assert sum("loop_sums" in dict(row.optimizations) for row in seen.operations) == 20
    assert len(looked) <= 2 * 20 + 3
