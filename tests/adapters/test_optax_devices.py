"""Eight devices: does every way of spreading a step agree with one device?"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from duotone.adapters.enable import enable_mixed_precision_graph_rewrite as enable
from duotone.errors import ArgumentError
from duotone.scale.choice import dynamic_loss_scale

DEVICES = 8
AUTO = jax.sharding.AxisType.Auto
SCALE = dynamic_loss_scale(2.0**8)
PARAMS = {"w": jnp.arange(64.0).reshape(8, 8) / 64, "b": jnp.zeros(8)}
XS = jax.random.normal(jax.random.key(0), (4, 16, 8))
XS = XS.at[2, 3, 1].set(jnp.inf)  # in the third batch one example of one device


def loss(params: Any, x: Any) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - 0.5) ** 2)


def optimizer(axis_name: Any = None) -> Any:
    return enable(optax.adam(0.1), SCALE, dtype="float16", axis_name=axis_name)


def train(step: Any, params: Any, state: Any, batches: Any) -> Any:
    for x in batches:
        params, state = step(params, state, x)
    return params, state


def by_minimize(tx: Any) -> Any:
    def step(params: Any, state: Any, x: Any) -> Any:
        done = tx.minimize(loss, params, state, x)
        return done.params, done.state

    return step


def averaged(tx: Any, axis: str, shard: Any = lambda tree: tree) -> Any:
    def step(params: Any, state: Any, x: Any) -> Any:
        out = tx.compute_gradients(loss, params, state, x)
        grads = lax.pmean(shard(out.grads), axis)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def expect(found: Any, *, tolerance: float = 2e-3) -> None:
    tx = optimizer()
    params, _ = train(jax.jit(by_minimize(tx)), PARAMS, tx.init(PARAMS), XS)
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)
        first, *others = [np.asarray(shard.data) for shard in a.addressable_shards]
        if a.sharding.is_fully_replicated:
            assert all((other == first).all() for other in others), "devices differ"
    assert jax.tree.map(np.asarray, found[1].loss_scale.value) == 2**7
    assert int(found[1].loss_scale.skipped) == 1
    assert int(found[1].inner[0].count) == 3


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((DEVICES,), ("data",), axis_types=(AUTO,))


def test_gspmd() -> None:
    """Batches and parameters sharded under plain jit."""
    tx, place = optimizer(), mesh()
    sharded = {
        "w": jax.device_put(PARAMS["w"], NamedSharding(place, P("data"))),
        "b": jax.device_put(PARAMS["b"], NamedSharding(place, P())),
    }
    batches = jax.device_put(XS, NamedSharding(place, P(None, "data")))
    state = jax.jit(tx.init)(sharded)
    expect(train(jax.jit(by_minimize(tx)), sharded, state, batches))


def test_shard_map_with_types() -> None:
    """Gradients of replicated parameters: JAX sums them over the axis, nothing is named."""
    tx, place = optimizer(), mesh()

    def step(params: Any, state: Any, x: Any) -> Any:
        done = tx.minimize(lambda p, x: lax.pmean(loss(p, x), "data"), params, state, x)
        return done.params, done.state

    run = jax.jit(
        jax.shard_map(step, mesh=place, in_specs=(P(), P(), P("data")), out_specs=(P(), P()))
    )
    expect(train(run, PARAMS, tx.init(PARAMS), XS))


def test_shard_map_sharded_parameters() -> None:
    """Each device has parameters of its own and must skip with the others."""
    tx, place = optimizer(), mesh()
    xs = jnp.ones((3, 8)).at[1, 5].set(jnp.nan)

    def step(w: Any, state: Any, x: Any) -> Any:
        done = tx.minimize(lambda w, x: jnp.sum(w * x), w, state, x)
        return done.params, done.state

    specs = jax.tree.map(
        lambda leaf: P("data") if leaf.ndim else P(), jax.eval_shape(tx.init, jnp.ones(8))
    )
    run = jax.jit(
        jax.shard_map(
            step, mesh=place, in_specs=(P("data"), specs, P("data")), out_specs=(P("data"), specs)
        )
    )
    w, state = train(run, jnp.ones(8), tx.init(jnp.ones(8)), xs)
    assert len(set(w.tolist())) == 1, w
    assert int(state.inner[0].count) == 2
    assert int(state.loss_scale.skipped) == 1


def test_shard_map_without_types() -> None:
    """Refused without a name; with it all devices agree."""
    place = mesh()

    def run(tx: Any) -> Any:
        step = jax.shard_map(
            averaged(tx, "data"),
            mesh=place,
            in_specs=(P(), P(), P("data")),
            out_specs=(P(), P()),
            check_vma=False,
        )
        return train(jax.jit(step), PARAMS, tx.init(PARAMS), XS)

    with pytest.raises(ArgumentError, match="axis_name='data'"):
        run(optimizer())
    expect(run(optimizer("data")))
    expect(run(optimizer(())))  # the average is taken before update looks


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pmap() -> None:
    """Likewise, by the older name."""

    def run(tx: Any) -> Any:
        params, state = jax.tree.map(
            lambda leaf: jnp.stack([leaf] * DEVICES), (PARAMS, tx.init(PARAMS))
        )
        step: Any = jax.pmap(averaged(tx, "batch"), axis_name="batch")
        batches = XS.reshape(4, DEVICES, 2, 8)
        return train(step, params, state, batches)

    where = "axis_name='batch' to enable_mixed_precision_graph_rewrite"
    with pytest.raises(ArgumentError, match=where):
        run(optimizer())
    params, state = run(optimizer("batch"))
    for leaf in jax.tree.leaves((params, state)):
        assert (np.asarray(leaf) == np.asarray(leaf)[0]).all(), "devices differ"
    expect(jax.tree.map(lambda leaf: leaf[0], (params, state)))


def test_what_the_refusal_prevents() -> None:
    """Without agreement devices do drift apart: the reason for all of this."""
    place = mesh()
    tx = optimizer(())

    def step(params: Any, state: Any, x: Any) -> Any:
        out = tx.compute_gradients(loss, params, state, x)  # local, and checked locally
        return tx.apply_gradients(out, params, state)

    run = jax.jit(
        jax.shard_map(
            lambda p, s, x: step(p, s, x)[0]["b"][None],
            mesh=place,
            in_specs=(P(), P(), P("data")),
            out_specs=P("data"),
            check_vma=False,
        )
    )
    bias = np.asarray(run(PARAMS, tx.init(PARAMS), XS[2]))
    assert (bias == 0).all(1).sum() == 1
