"""Gradients against float64, on inputs that float16 does not forgive.

Each class of fault that other loss scaling libraries have is planted here once, to show that the
check next to it would catch it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from duotone.scale import (
    DynamicLossScale,
    FixedLossScale,
    LossScale,
    NoLossScale,
    all_finite,
    scaled_value_and_grad,
    select_tree,
)

HALF_ULP = 2.0**-11  # relative spacing of float16, half a unit


def weighted_loss(w: Any, x: Any, weight: float) -> jax.Array:
    """A float16 product, averaged in float32: its gradient passes float16 as weight / n."""
    return jnp.mean((w * x).astype(jnp.float32)) * weight


def exact_gradient(x: Any, weight: float) -> np.ndarray:
    return np.asarray(x, np.float64) * weight / x.size


def heavy_tailed(size: int, seed: int = 0) -> jax.Array:
    values = np.random.default_rng(seed).standard_t(1.2, size)
    return jnp.asarray(np.clip(values, -100, 100), jnp.float16)


def relative_error(gradient: Any, exact: np.ndarray) -> float:
    difference = np.asarray(gradient, np.float64) - exact
    return float(np.linalg.norm(difference) / np.linalg.norm(exact))


# ---- gradients that float16 loses


def test_gradients_that_underflow_survive_with_scaling_only():
    x, w, weight = heavy_tailed(2**12), jnp.ones(2**12, jnp.float16), 1e-5  # 2.4e-9 each
    grad_fn = jax.jit(lambda scale: scaled_value_and_grad(weighted_loss)(scale, w, x, weight))
    lost, kept = grad_fn(NoLossScale()), grad_fn(DynamicLossScale())
    assert float(jnp.max(jnp.abs(lost.grads))) == 0
    assert relative_error(kept.grads, exact_gradient(x, weight)) < 4 * HALF_ULP
    assert bool(kept.finite)


@pytest.mark.parametrize("weight", [1e-6, 1e-3, 1.0, 1e3])
def test_a_dynamic_scale_finds_its_place_for_any_magnitude(weight: float):
    x, w = heavy_tailed(2**10, seed=1), jnp.ones(2**10, jnp.float16)
    state, grad_fn = DynamicLossScale(2.0**24), jax.jit(scaled_value_and_grad(weighted_loss))
    out = grad_fn(state, w, x, weight)
    while not bool(out.finite) and int(state.skipped) < 24:
        state = state.adjust(out.finite)
        out = grad_fn(state, w, x, weight)
    assert bool(out.finite)
    assert relative_error(out.grads, exact_gradient(x, weight)) < 4 * HALF_ULP


def test_a_small_network_in_float16_against_float64():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((64, 8)), rng.standard_normal((64, 1)) * 1e-3
    weights = [rng.standard_normal((8, 16)) / 3, rng.standard_normal((16, 1)) * 1e-3]

    def loss_fn(weights: Any, x: Any, y: Any) -> Any:
        hidden = jax.nn.relu(x @ weights[0])
        return jnp.mean((hidden @ weights[1] - y) ** 2)

    hidden = np.maximum(x @ weights[0], 0)
    error = 2 * (hidden @ weights[1] - y) / y.size
    exact = [x.T @ ((error @ weights[1].T) * (hidden > 0)), hidden.T @ error]

    half = jax.tree.map(lambda a: jnp.asarray(a, jnp.float16), (weights, x, y))
    errors = {}
    for scale in (NoLossScale(), FixedLossScale(2.0**12)):
        out = scaled_value_and_grad(loss_fn)(scale, *half)
        assert bool(out.finite)
        errors[type(scale)] = [relative_error(g, e) for g, e in zip(out.grads, exact, strict=True)]
    assert max(errors[FixedLossScale]) < 4 * HALF_ULP
    assert errors[NoLossScale][0] > 0.1  # the first layer's gradients sink below float16


@pytest.mark.parametrize("exponent", [0, 3, 15, 24])
def test_powers_of_two_change_no_bit(exponent: int):
    # Not compiled: fused multiply-adds, which round once, may be grouped otherwise with a scale.
    w = jnp.asarray(np.random.default_rng(3).standard_t(1.5, 1000), jnp.float32)
    plain = jax.grad(lambda w: jnp.sum(jnp.sin(w) * w))(w)
    out = scaled_value_and_grad(lambda w: jnp.sum(jnp.sin(w) * w))(FixedLossScale(2**exponent), w)
    np.testing.assert_array_equal(out.grads, plain)


def test_small_true_gradients_are_not_cut_to_the_half_type_again():
    # 2**-30 is below every float16; it exists only because unscaling is in float32.
    out = scaled_value_and_grad(weighted_loss)(
        FixedLossScale(2.0**15), jnp.float16(1), jnp.float16(1), 2.0**-30
    )
    assert float(out.grads) == 2.0**-30


# ---- overflow


def overflow_step(state: Any, w: Any, momentum: Any, x: Any) -> Any:
    out = scaled_value_and_grad(lambda w: jnp.sum((w * x).astype(jnp.float32)))(state, w)
    new = (w - 0.1 * out.grads.astype(w.dtype), 0.9 * momentum + out.grads)
    return state.adjust(out.finite), *select_tree(out.finite, new, (w, momentum)), out


def test_an_overflow_skips_the_step_and_the_next_scale_fits():
    w, momentum = jnp.ones(4, jnp.float16), jnp.full(4, 0.5)
    x = jnp.full(4, 3, jnp.float16)  # 3 * 2**15 is above 65504, 3 * 2**14 below
    state, same_w, same_momentum, out = jax.jit(overflow_step)(DynamicLossScale(), w, momentum, x)
    assert not bool(out.finite)
    np.testing.assert_array_equal(same_w, w)
    np.testing.assert_array_equal(same_momentum, momentum)
    assert (float(state.value), int(state.skipped)) == (2.0**14, 1)

    state, new_w, _, out = jax.jit(overflow_step)(state, same_w, same_momentum, x)
    assert bool(out.finite)
    assert out.grads.tolist() == [3] * 4
    assert float(new_w[0]) == pytest.approx(0.7, abs=1e-3)
    assert int(state.skipped) == 1


# ---- faults of other libraries


def gradients_around_a_growth(state: Any) -> list[float]:
    """Each step's gradient of 3 * w, with scaling and unscaling by hand and growth every step."""
    gradients = []
    for _ in range(4):
        scale_now = state
        scaled = jax.grad(lambda w, s=scale_now: s.scale(3.0 * w))(jnp.float32(1))
        state = state.adjust(all_finite(scaled))
        gradients.append(float(scale_now.unscale(scaled)))
    return gradients


def test_unscaling_uses_the_scale_that_was_used(monkeypatch: pytest.MonkeyPatch):
    state = DynamicLossScale(8, growth_interval=1)
    assert gradients_around_a_growth(state) == [3.0] * 4
    grad_fn = scaled_value_and_grad(lambda w: 3.0 * w)
    assert float(grad_fn(state, 1.0).grads) == 3

    # The planted fault: unscale with the scale as it is after the adjustment. It must show.
    honest = DynamicLossScale.unscale
    monkeypatch.setattr(DynamicLossScale, "unscale", lambda s, tree: honest(s.adjust(True), tree))
    assert gradients_around_a_growth(state) == [1.5] * 4
    assert float(grad_fn(state, 1.0).grads) == 1.5


def test_a_float16_loss_is_not_multiplied_in_float16():
    loss = jnp.float16(4)
    assert bool(jnp.isinf(loss * jnp.float16(2**15)))  # the fault
    assert float(DynamicLossScale().scale(loss)) == 2.0**17


def test_a_good_step_after_170_bad_ones_does_not_destroy_the_weights():
    def step(state: LossScale, w: Any, x: Any) -> Any:
        out = scaled_value_and_grad(lambda w, x: jnp.sum((w * x).astype(jnp.float32)))(state, w, x)
        return state.adjust(out.finite), select_tree(out.finite, w - 0.1 * out.grads, w)

    run = jax.jit(step)
    state, w = DynamicLossScale(), jnp.ones(3)
    for _ in range(170):
        state, w = run(state, w, jnp.full(3, jnp.inf))
    assert (float(state.value), w.tolist()) == (1.0, [1.0] * 3)
    state, w = run(state, w, jnp.ones(3))
    np.testing.assert_allclose(w, 0.9, rtol=1e-6)


def test_clipping_sees_unscaled_gradients():
    clip = optax.clip_by_global_norm(1.0)
    out = scaled_value_and_grad(lambda w: jnp.sum(0.25 * w))(DynamicLossScale(), jnp.ones(4))
    clipped, _ = clip.update(out.grads, clip.init(jnp.ones(4)))
    np.testing.assert_array_equal(clipped, jnp.full(4, 0.25))  # norm 0.5: nothing to clip


def test_accumulation_survives_a_change_of_scale():
    tx = optax.MultiSteps(optax.sgd(1.0), every_k_schedule=4)
    w = jnp.zeros(2)
    tx_state, state = tx.init(w), DynamicLossScale(8, growth_interval=1)
    grad_fn = scaled_value_and_grad(lambda w, x: jnp.sum(w * x))
    taken = 0
    for x in (1.0, 2.0, np.inf, 3.0, 6.0):  # the scale changes at each of them
        out = grad_fn(state, w, x)
        updates, new_tx = tx.update(out.grads, tx_state, w)
        w, tx_state = select_tree(
            out.finite, (optax.apply_updates(w, updates), new_tx), (w, tx_state)
        )
        state = state.adjust(out.finite)
        taken += bool(out.finite)
    assert taken == 4
    np.testing.assert_allclose(w, -3.0, rtol=1e-6)  # the mean of the four good ones


def test_schedules_see_only_the_steps_that_were_taken():
    tx = optax.sgd(optax.piecewise_constant_schedule(1.0, {2: 0.0}))  # moves in steps 0 and 1
    w, state = jnp.float32(0), DynamicLossScale()
    tx_state = tx.init(w)
    for x in (np.nan, 1.0, np.inf, np.nan, 1.0, 1.0):
        out = scaled_value_and_grad(lambda w, x: w * x)(state, w, x)
        updates, new_tx = tx.update(out.grads, tx_state, w)
        w, tx_state = select_tree(
            out.finite, (optax.apply_updates(w, updates), new_tx), (w, tx_state)
        )
        state = state.adjust(out.finite)
    assert float(w) == -2
    assert int(state.skipped) == 3


def test_several_losses_have_one_scale_each():
    scales = {"easy": DynamicLossScale(), "hard": DynamicLossScale()}
    factors = {"easy": 1e-4, "hard": 1e3}
    grad_fn = scaled_value_and_grad(lambda w, f: jnp.sum((w * f).astype(jnp.float32)))
    w = jnp.ones(2, jnp.float16)
    finite: dict[str, Any] = {}
    for _ in range(12):
        finite = {n: grad_fn(s, w, jnp.float16(factors[n])).finite for n, s in scales.items()}
        scales = {n: s.adjust(finite[n]) for n, s in scales.items()}
    assert float(scales["easy"].value) == 2.0**15
    assert float(scales["hard"].value) <= 2.0**6
    assert all(bool(f) for f in finite.values())
