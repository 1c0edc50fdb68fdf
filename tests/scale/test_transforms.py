"""A whole training step under every transformation, and the state as something one saves."""

from __future__ import annotations

import dataclasses
import io
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from duotone.scale import (
    DynamicLossScale,
    FixedLossScale,
    NoLossScale,
    all_finite,
    scaled_value_and_grad,
    select_tree,
)

EVERY_SCALE = [
    pytest.param(DynamicLossScale(64, growth_interval=2), id="dynamic"),
    pytest.param(FixedLossScale(64), id="fixed"),
    pytest.param(NoLossScale(), id="none"),
]
BATCHES = jnp.array([0.5, 0.25, jnp.inf, 0.125, jnp.nan, 0.5])
GOOD = [True, True, False, True, False, True]


def loss_fn(w: Any, x: Any) -> jax.Array:
    return (w * x - 1.0) ** 2


def step(loss_scale: Any, w: Any, count: Any, x: Any) -> Any:
    """The training step of the documentation, with an optimizer's step counter."""
    out = scaled_value_and_grad(loss_fn)(loss_scale, w, x)
    new = (w - 0.5 * out.grads, count + 1)
    w, count = select_tree(out.finite, new, (w, count))
    return loss_scale.adjust(out.finite), w, count


def reference() -> tuple[float, int]:
    w, count = 1.0, 0
    for x, good in zip(BATCHES.tolist(), GOOD, strict=True):
        if good:
            w, count = w - 0.5 * 2 * x * (w * x - 1), count + 1
    return w, count


def check(scale: Any, loss_scale: Any, w: Any, count: Any) -> None:
    expected_w, expected_count = reference()
    np.testing.assert_allclose(w, expected_w, rtol=1e-6)
    assert int(count) == expected_count == 4  # skipped steps are not counted
    assert int(loss_scale.skipped) == 2
    if isinstance(scale, DynamicLossScale):  # 64, grown once, divided twice
        assert float(loss_scale.value) == 32


def start(scale: Any) -> tuple[Any, Any, Any]:
    return scale, jnp.float32(1), jnp.int32(0)


@pytest.mark.parametrize("scale", EVERY_SCALE)
@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_a_loop(scale: Any, compiled: bool):
    traces = []

    def counted(carry: tuple[Any, Any, Any], x: Any) -> Any:
        traces.append(None)
        return step(*carry, x)

    run = jax.jit(counted) if compiled else counted
    carry: Any = start(scale)
    for x in BATCHES:
        carry = run(carry, x)
    check(scale, *carry)
    # Compiled once: the state never changes its structure, shapes, dtypes or weak types.
    assert len(traces) == (1 if compiled else len(BATCHES))


@pytest.mark.parametrize("scale", EVERY_SCALE)
def test_scan(scale: Any):
    def body(carry: tuple[Any, Any, Any], x: Any) -> Any:
        return step(*carry, x), None

    carry, _ = jax.lax.scan(body, start(scale), BATCHES)
    check(scale, *carry)


def test_while_loop_and_cond():
    def body(state: Any) -> Any:
        i, (loss_scale, w, count) = state
        carry = jax.lax.cond(
            i >= 0,
            lambda: step(loss_scale, w, count, BATCHES[i]),
            lambda: (loss_scale, w, count),
        )
        return i + 1, carry

    scale = DynamicLossScale(64, growth_interval=2)
    _, carry = jax.lax.while_loop(lambda s: s[0] < 6, body, (jnp.int32(0), start(scale)))
    check(scale, *carry)


@pytest.mark.parametrize("scale", EVERY_SCALE)
def test_vmap_over_a_population(scale: Any):
    three: Any = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), start(scale))
    rows = jnp.stack([BATCHES, BATCHES, jnp.full(6, jnp.inf)])
    for column in rows.T:
        three = jax.vmap(lambda c, x: step(c[0], c[1], c[2], x))(three, column)
    check(scale, *jax.tree.map(lambda leaf: leaf[1], three))
    assert int(three[0].skipped[2]) == 6  # one scale each: a bad neighbour skips only itself
    assert float(three[1][2]) == 1


@pytest.mark.parametrize("scale", EVERY_SCALE)
def test_checkpoint_and_grad_of_the_step(scale: Any):
    def after_training(w: Any) -> Any:
        carry: Any = (scale, w, jnp.int32(0))
        for x in BATCHES[:2]:
            carry = jax.checkpoint(step)(*carry, x)
        return carry[1]

    expected = (1 - 0.5**2) * (1 - 0.25**2)  # each step multiplies w by 1 - x**2
    np.testing.assert_allclose(jax.grad(after_training)(jnp.float32(1)), expected, rtol=1e-5)


@pytest.mark.parametrize("scale", EVERY_SCALE)
def test_eval_shape(scale: Any):
    shapes = jax.eval_shape(step, *start(scale), BATCHES[0])
    assert jax.tree.structure(shapes) == jax.tree.structure(start(scale))
    assert [(s.shape, s.dtype) for s in jax.tree.leaves(shapes)] == [
        (s.shape, s.dtype) for s in jax.tree.leaves(start(scale))
    ]


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_on_one_device(check_vma: bool):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    scale = DynamicLossScale(64, growth_interval=2)
    run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=check_vma))
    carry: Any = start(scale)
    for x in BATCHES:
        carry = run(*carry, x)
    check(scale, *carry)


def test_donated_state():
    run = jax.jit(step, donate_argnums=(0, 1, 2))
    carry: Any = start(DynamicLossScale(64, growth_interval=2))
    for x in BATCHES:
        carry = run(*carry, x)
    check(DynamicLossScale(), *carry)


def test_leaks_nothing():
    with jax.checking_leaks():
        carry = jax.jit(step)(*start(DynamicLossScale(64)), BATCHES[0])
        half = scaled_value_and_grad(lambda w: jnp.sum(w))
        jax.jit(half)(DynamicLossScale(2.0**20), jnp.ones(3, jnp.float16))
    assert int(carry[2]) == 1


# ---- the state on disk


def test_plain_arrays_restore_the_state():
    state = DynamicLossScale(256, growth_interval=3).adjust(True).adjust(False).adjust(True)
    file = io.BytesIO()
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(state)]
    np.savez(file, **dict(zip(paths, jax.tree.leaves(state), strict=True)))
    file.seek(0)
    saved = np.load(file)

    fresh = DynamicLossScale(256, growth_interval=3)
    restored = jax.tree.unflatten(jax.tree.structure(fresh), [saved[path] for path in paths])
    assert restored == state
    assert restored.adjust(True) == state.adjust(True)  # NumPy arrays serve as state
    direct = dataclasses.replace(fresh, value=jnp.asarray(saved[".value"]))
    assert float(direct.value) == 128


# ---- several devices


def test_two_devices_agree():
    mesh = jax.make_mesh(
        (2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
    )
    x = jnp.array([1.0, jnp.inf])  # the second device sees an infinity

    def finite_on_each(check_vma, **options):
        @jax.jit
        @partial(
            jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=check_vma
        )
        def check(x):
            return all_finite({"w": x, "b": jnp.ones(2)}, **options)[None] | jnp.zeros(1, bool)

        return check(x).tolist()

    # sharded gradients: the types tell the axis; without them it must be named
    assert finite_on_each(True) == [False, False]
    assert finite_on_each(True, axis_name=()) == [True, False]
    assert finite_on_each(True, axis_name="data") == [False, False]
    assert finite_on_each(False) == [True, False]
    assert finite_on_each(False, axis_name="data") == [False, False]

    # a whole step: with the axis named or inferred, both devices skip, and stay equal
    def step(loss_scale, w, x, **options):
        out = scaled_value_and_grad(lambda w, x: jnp.sum(w * x), **options)(loss_scale, w, x)
        return loss_scale.adjust(out.finite), select_tree(out.finite, w - 0.1 * out.grads, w)

    for check_vma, options in ((True, {}), (False, {"axis_name": "data"})):
        mapped = jax.shard_map(
            partial(step, **options),
            mesh=mesh,
            in_specs=(P(), P(), P("data")),
            out_specs=P(),
            check_vma=check_vma,
        )
        state, w = jax.jit(mapped)(DynamicLossScale(), jnp.float32(1), x)
        assert [float(s.data) for s in w.addressable_shards] == [1.0, 1.0]
        assert [float(s.data) for s in state.value.addressable_shards] == [2.0**14] * 2

    # parameters sharded over the devices (each device owns its part of the gradients)
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=(P(), P("data"))
    )
    state, w = jax.jit(mapped)(DynamicLossScale(), jnp.ones(2), x)
    assert w.tolist() == [1.0, 1.0]
    assert int(state.skipped) == 1

    # plain jit over sharded arrays: the compiler makes the check global
    sharded = jax.device_put(x, NamedSharding(mesh, P("data")))
    state, w = jax.jit(step)(DynamicLossScale(), jnp.ones(2), sharded)
    assert w.tolist() == [1.0, 1.0]
    assert int(state.skipped) == 1


def test_axis_name_reaches_the_check_through_partial():
    finite = jax.vmap(partial(all_finite, axis_name="i"), axis_name="i")(jnp.array([1, jnp.nan]))
    assert finite.tolist() == [False, False]
