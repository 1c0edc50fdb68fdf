"""Loss scaling inside a step that ``autocast`` rewrites as a whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.scale import scaled_value_and_grad

FORCED = duotone.Policy(ignore_performance=True)


def loss_fn(params: Any, x: Any, y: Any) -> jax.Array:
    hidden = jnp.tanh(x @ params["in"])
    return jnp.mean((hidden @ params["out"] - y) ** 2)


def step(loss_scale: Any, params: Any, x: Any, y: Any) -> Any:
    out = scaled_value_and_grad(loss_fn)(loss_scale, params, x, y)
    new = jax.tree.map(lambda p, g: p - 0.1 * g, params, out.grads)
    return loss_scale.adjust(out.finite), duotone.select_tree(out.finite, new, params), out


def problem(scale_of_targets: float = 1.0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    params = {"in": rng.standard_normal((16, 32)) / 4, "out": rng.standard_normal((32, 8)) / 6}
    x, y = rng.standard_normal((64, 16)), rng.standard_normal((64, 8)) * scale_of_targets
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (params, x, y))


def relative_error(got: Any, wanted: Any) -> float:
    flat = [jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(t)]) for t in (got, wanted)]
    return float(jnp.linalg.norm(flat[0] - flat[1]) / jnp.linalg.norm(flat[1]))


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_whole_step(dtype: Any, compiled: bool):
    mixed = duotone.autocast(step, dtype=dtype, policy=FORCED)
    state, data = duotone.DynamicLossScale(), problem()
    mixed_state, params, out = (jax.jit(mixed) if compiled else mixed)(state, *data)
    _, exact_params, exact = step(state, *data)
    assert bool(out.finite)
    assert 0 < relative_error(out.grads, exact.grads) < 8 * float(jnp.finfo(dtype).eps)
    assert relative_error(params, exact_params) < float(jnp.finfo(dtype).eps)
    assert [a.dtype for a in jax.tree.leaves((mixed_state, params, out))] == [
        a.dtype for a in jax.tree.leaves((state, exact_params, exact))
    ]
    assert float(mixed_state.value) == 2.0**15


def test_the_scale_itself_never_becomes_half():
    # 2**20 is infinite in float16: it must stay float32 in scale, unscale and adjust, although
    # what the mean over 512 numbers makes of it, 2**11, may be half.
    mixed = duotone.autocast(step, dtype=jnp.float16, policy=FORCED)
    params, x, y = problem()
    tiny = (x * 1e-4, y * 1e-4)  # gradients of about 1e-9
    state = duotone.DynamicLossScale(2.0**20, growth_interval=1)
    mixed_state, _, out = mixed(state, params, *tiny)
    exact = step(state, params, *tiny)[2]
    assert bool(out.finite)
    assert float(mixed_state.value) == 2.0**21
    assert relative_error(out.grads, exact.grads) < 0.01


def test_scaling_saves_gradients_that_float16_loses():
    mixed = jax.jit(duotone.autocast(step, dtype=jnp.float16, policy=FORCED))
    params, x, y = problem()
    tiny = (x * 1e-4, y * 1e-4)
    exact = step(duotone.NoLossScale(), params, *tiny)[2].grads
    lost = mixed(duotone.NoLossScale(), params, *tiny)[2].grads
    kept = mixed(duotone.DynamicLossScale(2.0**20), params, *tiny)[2].grads
    assert relative_error(kept, exact) < 0.01
    assert relative_error(lost, exact) > 10 * relative_error(kept, exact)


def test_an_overflow_inside_is_skipped_and_training_recovers():
    mixed = jax.jit(duotone.autocast(step, dtype=jnp.float16, policy=FORCED))
    state, (params, x, y) = duotone.DynamicLossScale(2.0**24), problem(100.0)
    before = params
    first, params, out = mixed(state, params, x, y)
    assert not bool(out.finite)
    assert relative_error(params, before) == 0
    assert (float(first.value), int(first.skipped)) == (2.0**23, 1)
    state = first
    for _ in range(30):
        state, params, out = mixed(state, params, x, y)
    assert bool(out.finite)
    assert 1 < int(state.skipped) < 24
    assert relative_error(params, before) > 0.01


@pytest.mark.parametrize("scale", [duotone.FixedLossScale(1024), duotone.NoLossScale()])
def test_the_other_loss_scales(scale: Any):
    mixed = duotone.autocast(step, dtype=jnp.float16, policy=FORCED)
    data = problem()
    state, _, out = mixed(scale, *data)
    assert jax.tree.structure(state) == jax.tree.structure(scale)
    assert relative_error(out.grads, step(scale, *data)[2].grads) < 0.01


def test_autocast_of_the_loss_alone():
    mixed_loss = duotone.autocast(loss_fn, dtype=jnp.float16, policy=FORCED)
    data = problem()
    out = jax.jit(scaled_value_and_grad(mixed_loss))(duotone.DynamicLossScale(), *data)
    exact = step(duotone.DynamicLossScale(), *data)[2]
    assert (out.value.dtype, bool(out.finite)) == (jnp.float32, True)
    assert 0 < relative_error(out.grads, exact.grads) < 0.01


def test_scan_over_steps():
    def train(state: Any, params: Any, x: Any, y: Any) -> Any:
        def body(carry: tuple[Any, Any], _: Any) -> Any:
            state, params, out = step(*carry, x, y)
            return (state, params), out.value

        return jax.lax.scan(body, (state, params), None, length=5)

    mixed = duotone.autocast(train, dtype=jnp.float16, policy=FORCED)
    state, data = duotone.DynamicLossScale(growth_interval=2), problem()
    (mixed_state, params), losses = mixed(state, *data)
    (exact_state, exact_params), exact_losses = train(state, *data)
    assert mixed_state == exact_state
    np.testing.assert_allclose(losses, exact_losses, rtol=0.01)
    assert relative_error(params, exact_params) < 0.01
