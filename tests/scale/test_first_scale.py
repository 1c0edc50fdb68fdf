"""The first scale: a large loss that overflows brings it down in one skipped step or two."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec

from duotone.adapters.optax import wrap
from duotone.scale import DynamicLossScale, FixedLossScale, NoLossScale

KEYS = jax.random.split(jax.random.key(0), 4)
X = jax.random.normal(KEYS[0], (64, 32))
Y = jax.random.normal(KEYS[1], (64, 8))
PARAMS = {
    "w1": jax.random.normal(KEYS[2], (32, 128)) / 4,
    "w2": jax.random.normal(KEYS[3], (128, 8)) / 8,
}


def predict(params: Any) -> Any:
    return jax.nn.relu(X @ params["w1"]) @ params["w2"]


def mean_of_squares(params: Any, size: float) -> Any:
    return jnp.mean((predict(params) - size * Y) ** 2)


def sum_of_squares(params: Any, size: float) -> Any:
    return jnp.sum((predict(params) - size * Y) ** 2)


def cross_entropy(params: Any, weight: float) -> Any:
    labels = jnp.argmax(Y, axis=1)
    losses = optax.softmax_cross_entropy_with_integer_labels(predict(params), labels)
    return weight * jnp.mean(losses)


def trained(loss_fn: Any, *args: Any, steps: int = 12, **settings: Any) -> Any:
    """The first loss, and the metrics after some steps."""
    tx = wrap(optax.adam(1e-3), dtype=settings.pop("dtype", "float16"), **settings)
    step = jax.jit(lambda params, state, *args: tx.minimize(loss_fn, params, state, *args))
    params, state, losses = PARAMS, tx.init(PARAMS), []
    for _ in range(steps):
        done = step(params, state, *args)
        params, state = done.params, done.state
        losses.append(float(done.loss))
    return losses[0], tx.metrics(state)


@pytest.mark.parametrize("size", [1.0, 10.0, 100.0])
def test_a_large_loss_whose_gradients_fit_changes_nothing(size):
    """Losses of 1e2 and 1e4: the loss alone is not a reason to lower the scale."""
    loss, metrics = trained(mean_of_squares, size)
    assert loss == pytest.approx(size**2, rel=0.3) or size == 1
    assert metrics["skipped_steps"] == 0
    assert metrics["loss_scale"] == 2.0**15


@pytest.mark.parametrize(
    ("loss_fn", "argument"),
    [(sum_of_squares, 10.0), (sum_of_squares, 100.0), (cross_entropy, 1e4), (cross_entropy, 1e5)],
)
def test_gradients_that_overflow_at_first_cost_a_step_or_two(loss_fn, argument):
    loss, metrics = trained(loss_fn, argument)
    assert loss > 1e3
    assert metrics["skipped_steps"] in (1, 2)
    # So it was before: one step for each halving.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DynamicLossScale, "fitted_to", lambda self, *args: self)
        _, before = trained(loss_fn, argument)
    assert before["skipped_steps"] >= 4
    assert before["loss_scale"] <= 2.0**5 * metrics["loss_scale"], "lowered far too much"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nothing_is_lowered_where_nothing_is_scaled(dtype):
    _, metrics = trained(sum_of_squares, 100.0, dtype=dtype, loss_scale=None)
    assert metrics["loss_scale"] == 1
    _, metrics = trained(sum_of_squares, 10.0, dtype=dtype, loss_scale=2.0**15)
    assert metrics["loss_scale"] == 2.0**15


def test_the_rule():
    def after(loss: Any, *, finite: bool = False, **settings: Any) -> float:
        return float(DynamicLossScale(**settings).fitted_to(loss, finite).adjust(finite).value)

    # 2**15 / sqrt(loss / 16), and half the scale at most.
    found = [after(loss) for loss in (0.0, 16.0, 17.0, 63.9, 64.0, 1e4, -1e4, 1e8, 1e30)]
    assert found == [2.0**14] * 5 + [2.0**10, 2.0**10, 2.0**3, 1.0]
    assert after(1e4, finite=True) == 2.0**15
    assert [after(loss) for loss in (jnp.inf, jnp.nan)] == [2.0**14] * 2
    assert after(1e30, floor=8.0) == 8
    assert after(1e4, initial=2.0**8) == 2.0**7, "what the user stated is lower"
    assert after(1e4, initial=2.0**20) == 2.0**10
    assert after(1.0, initial=2.0**20) == 2.0**19, "an ordinary loss"
    assert after(1e4, factor=4.0) == 2.0**10
    assert after(jnp.float16(6e4)) == 2.0**9


def test_a_second_skipped_step_falls_to_what_a_sum_over_examples_needs():
    state = DynamicLossScale().fitted_to(1e4, False).adjust(False)
    assert float(state.fitted_to(1e4, False, False).adjust(False).value) == 2.0**5
    assert float(state.fitted_to(1e4, False, True).adjust(False).value) == 2.0**9
    assert float(state.fitted_to(1.0, False, False).adjust(False).value) == 2.0**9


def test_no_later_step():
    state = DynamicLossScale().adjust(True)
    assert float(state.fitted_to(1e8, False).adjust(False).value) == 2.0**14
    state = DynamicLossScale().adjust(False)
    assert float(state.fitted_to(1e8, False).adjust(False).value) == 2.0**13
    state = DynamicLossScale(growth_interval=1, cap=2.0**16).adjust(True)
    assert float(state.fitted_to(1e8, False).adjust(False).value) == 2.0**15


@pytest.mark.parametrize("other", [FixedLossScale(8.0), NoLossScale()])
def test_other_scales_stay(other):
    assert other.fitted_to(1e8, False) is other


def test_by_hand_and_under_vmap():
    """A population of models, each with its own first loss."""
    scales = jax.vmap(lambda _: DynamicLossScale())(jnp.arange(2))
    losses, finite = jnp.array([1e4, 1.0]), jnp.array([False, False])
    after = jax.vmap(lambda s, loss, ok: s.fitted_to(loss, ok).adjust(ok))(scales, losses, finite)
    assert after.value.tolist() == [2.0**10, 2.0**14]


def scale_after_overflow(*, follow: bool, agreed: bool) -> Any:
    """The scale on each of two devices, after a first step whose loss differs by device."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    tx = wrap(optax.sgd(0.0), dtype="float16", axis_name=None if follow else "data")

    def step(params: Any, state: Any, x: Any, size: Any) -> Any:
        def loss_fn(w: Any) -> Any:
            loss = size * jnp.sum((x @ w) ** 2)
            return jax.lax.pmean(loss, "data") if agreed else loss

        out = tx.compute_gradients(loss_fn, params, state)
        updated: Any = tx.update(out, state, params)[1]
        return updated.loss_scale.value[None]

    every, each = PartitionSpec(), PartitionSpec("data")
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(every, every, each, every), out_specs=each, check_vma=follow
    )
    w = jnp.ones((8, 2))
    x = jnp.array([[1.0] * 8] * 8 + [[9.0] * 8] * 8)
    scales: Any = jax.jit(mapped)(w, tx.init(w), x, 1e6)
    return scales.tolist()


def test_devices_keep_the_same_scale():
    """A loss that differs by device is not used: to agree would cost every step a collective."""
    assert scale_after_overflow(follow=True, agreed=False) == [2.0**14] * 2
    assert scale_after_overflow(follow=False, agreed=False) == [2.0**14] * 2
    agreed = scale_after_overflow(follow=True, agreed=True)
    assert agreed[0] == agreed[1] < 2.0**8
