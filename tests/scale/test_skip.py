"""Skipping by itself: what a skipped step leaves alone, and where devices could disagree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.scale import ScaledGrad, skip

# Optax's types of trees are narrower than what is used here.
skip_nonfinite: Any = skip.skip_nonfinite
apply_updates: Any = optax.apply_updates

# Not the smallest ones: an addition on a CPU may make 0 of them, whatever is added.
EVERY_NUMBER = jnp.array([0.0, -0.0, 1e-30, 1.5, -3e38, jnp.inf, -jnp.inf, jnp.nan])
BAD = [jnp.inf, -jnp.inf, jnp.nan]


@pytest.fixture(params=["branch", "select"])
def way(request: Any, monkeypatch: Any) -> None:
    """As on a CPU, and as on devices for which the host would have to wait."""
    monkeypatch.setattr(skip, "_branching_is_free", lambda: request.param == "branch")


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("way")
def test_a_skipped_step_changes_no_bit_of_any_number(bad, dtype, compiled):
    """Catches: updates of +0.0, which turn -0.0 into 0.0."""
    params = EVERY_NUMBER.astype(dtype)
    tx = skip_nonfinite(optax.sgd(0.1, momentum=0.9))

    def step(params, state):
        updates, state = tx.update(jnp.full(params.shape, bad, params.dtype), state, params)
        return apply_updates(params, updates), state

    kept, state = (jax.jit(step) if compiled else step)(params, tx.init(params))
    assert np.asarray(kept).tobytes() == np.asarray(params).tobytes()
    assert kept.dtype == params.dtype
    assert int(state.skipped) == 1
    assert not state.last_finite


def test_steps_outside_of_jit_are_not_compiled_anew():
    """Catches: a branch of fresh functions, which JAX compiles at every step and keeps."""
    tx, params = skip_nonfinite(optax.adam(0.1)), {"a": jnp.ones(2), "b": jnp.ones((2, 3))}
    state, compiled = tx.init(params), []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        del duration_secs
        compiled.append(event) if "backend_compile" in event else None

    for turn in range(4):
        if turn == 2:
            jax.monitoring.register_event_duration_secs_listener(listen)
        grads = optax.tree.scale(jnp.nan if turn % 2 else 1.0, params)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    jax.monitoring.unregister_event_duration_listener(listen)
    assert int(state.skipped) == 2
    assert optax.tree.get(state, "count") == 2
    assert not compiled


@pytest.mark.usefixtures("way")
def test_one_bad_leaf_skips_all_of_them():
    tx = skip_nonfinite(optax.sgd(0.5))
    params = {"a": jnp.ones(2), "b": jnp.ones(2), "n": jnp.int32(3)}
    grads = {"a": jnp.ones(2), "b": jnp.array([1, jnp.nan]), "n": jnp.int32(0)}
    updates, state = tx.update(grads, tx.init(params), params)
    assert updates["a"].tolist() == [0, 0]
    assert np.signbit(updates["a"]).all()
    grads["b"] = jnp.ones(2)
    updates, state = tx.update(grads, state, params)
    assert updates["a"].tolist() == [-0.5, -0.5]
    assert int(state.skipped) == 1
    assert state.last_finite


def test_without_parameters_and_without_gradients():
    tx = skip_nonfinite(optax.sgd(0.5))
    updates, _ = tx.update(jnp.array(jnp.nan), tx.init(jnp.ones(())))
    assert float(updates) == 0
    updates, state = tx.update({}, tx.init({}), {})
    assert updates == {}
    assert state.last_finite


def test_a_scaled_grad_says_itself_whether_it_is_finite():
    """Catches: an infinity that clipping hid, found finite because it is checked again."""
    tx = skip_nonfinite(optax.sgd(0.5))
    clipped = ScaledGrad(jnp.float32(1), jnp.ones(2), jnp.asarray(False))
    updates, state = tx.update(clipped, tx.init(jnp.ones(2)))
    assert updates.tolist() == [0, 0]
    assert int(state.skipped) == 1


def test_the_optimizer_does_not_run_on_gradients_that_are_not_finite():
    """Catches: the optimizer's arithmetic on NaN, which jax_debug_nans stops in."""
    tx = skip_nonfinite(optax.adam(0.1))
    params = jnp.ones(2)
    with jax.debug_nans(True):
        updates, _ = tx.update(jnp.array([jnp.inf, 1.0]), tx.init(params), params)
    assert updates.tolist() == [0, 0]


def test_without_jit():
    tx = skip_nonfinite(optax.adam(0.1))
    params = jnp.ones(2)
    with jax.disable_jit():
        for bad, moved in ((jnp.inf, False), (1.0, True)):
            updates, _ = tx.update(jnp.array([bad, 1.0]), tx.init(params), params)
            assert bool((updates != 0).all()) is moved


def test_a_derivative_through_a_skipped_step_is_finite():
    """Catches: a select, whose other side makes 0 * NaN in the backward pass."""
    tx = skip_nonfinite(
        optax.chain(optax.add_decayed_weights(0.1), optax.normalize_by_update_norm())
    )
    grads = jnp.array([1.0, jnp.inf])

    def after(params):
        updates, _ = tx.update(grads, tx.init(params), params)
        return jnp.sum(apply_updates(params, updates))

    assert jax.jit(jax.grad(after))(jnp.ones(2)).tolist() == [1, 1]


@pytest.mark.usefixtures("way")
def test_the_accumulated_sum_survives_a_bad_batch():
    """Catches: the other nesting, where one bad batch makes NaN of the sum."""
    tx = skip_nonfinite(optax.MultiSteps(optax.sgd(1.0), 2))
    params = jnp.zeros(())
    state = tx.init(params)
    for grad in (1.0, jnp.nan, 3.0):
        updates, state = tx.update(jnp.float32(grad), state, params)
        params = apply_updates(params, updates)
    assert float(params) == -2
    assert int(state.inner.gradient_step) == 1


def test_refusals():
    tx = skip_nonfinite(optax.sgd(0.5))
    bare = optax.sgd(0.5).init(jnp.ones(2))
    with pytest.raises(ArgumentTypeError, match=r"_replace\(inner=state\)"):
        tx.update(jnp.ones(2), bare)
    state = tx.init(jnp.ones(2))
    assert isinstance(state, skip.SkipState)
    tx.update(jnp.ones(2), state._replace(inner=bare))
    with pytest.raises(ArgumentTypeError, match="axis_name"):
        skip_nonfinite(optax.sgd(0.5), axis_name=3)


class Growing:
    """An optimizer whose state does not keep its shape."""

    def init(self, params: Any) -> Any:
        return {"seen": jnp.zeros(1)}

    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        return updates, {"seen": jnp.zeros(state["seen"].size + 1)}


def test_a_state_that_changes_its_shape_is_named():
    tx = skip_nonfinite(Growing())
    with pytest.raises(ArgumentError, match=r"\['seen'\].*float32\[2\].*float32\[1\]"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))


# Where devices could disagree. One device suffices: what is refused is seen in the program.


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def shard_step(axis_name: Any, *, check_vma: bool) -> Any:
    tx = skip_nonfinite(optax.sgd(0.5), axis_name=axis_name)

    def step(grads: Any) -> Any:
        return tx.update(grads, tx.init(grads), grads)[0]

    return jax.jit(
        jax.shard_map(
            step, mesh=mesh(), in_specs=P("data"), out_specs=P("data"), check_vma=check_vma
        )
    )


def test_shard_map_without_types_needs_the_axis():
    """Catches: one device that skips a step which the others take, in silence."""
    with pytest.raises(ArgumentError, match=r"axis_name='data'.*axis_name=\(\)"):
        shard_step(None, check_vma=False)(jnp.ones(2))
    for axis_name in ("data", ("data",), ()):
        assert shard_step(axis_name, check_vma=False)(jnp.ones(2)).tolist() == [-0.5, -0.5]


@pytest.mark.parametrize("axis_name", [None, "data"])
def test_shard_map_with_types_finds_the_axis(axis_name):
    assert shard_step(axis_name, check_vma=True)(jnp.array([1.0, jnp.nan])).tolist() == [0, 0]


def test_shard_map_with_types_and_a_model_for_each_device():
    assert shard_step((), check_vma=True)(jnp.array([1.0, jnp.nan])).tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore:.*pmap:DeprecationWarning")
def test_pmap_needs_the_axis():
    def step(axis_name: Any) -> Any:
        tx = skip_nonfinite(optax.sgd(0.5), axis_name=axis_name)
        return jax.pmap(lambda g: tx.update(g, tx.init(g), g)[0], axis_name="batch")

    with pytest.raises(ArgumentError, match=r"axis_name='batch'"):
        step(None)(jnp.ones((1, 2)))
    assert step("batch")(jnp.ones((1, 2))).tolist() == [[-0.5, -0.5]]


def test_in_vmap_a_lane_that_skips_alone_shows_in_the_shape():
    """Why vmap is not refused: JAX itself refuses to return one value for lanes that differ."""
    tx = skip_nonfinite(optax.sgd(0.5))
    params = jnp.ones(2)

    def step(grads: Any) -> Any:
        return apply_updates(params, tx.update(grads, tx.init(params), params)[0])

    lanes = jnp.array([[1.0, 1.0], [jnp.nan, 1.0]])
    with pytest.raises(ValueError, match="out_axes"):
        jax.vmap(step, axis_name="i", out_axes=None)(lanes)
    assert jax.vmap(step, axis_name="i")(lanes).tolist() == [[0.5, 0.5], [1, 1]]
    averaged = jax.vmap(lambda g: step(jax.lax.pmean(g, "i")), axis_name="i", out_axes=None)(
        jnp.ones((2, 2))
    )
    assert averaged.tolist() == [0.5, 0.5]
