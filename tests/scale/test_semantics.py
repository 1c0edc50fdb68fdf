"""What a step does: one test for each row of the table in docs/optimizers.md, in its order.

Each docstring names the fault that the test was seen to catch, planted into the code once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from duotone.adapters.enable import enable_mixed_precision_graph_rewrite as enable
from duotone.scale import DynamicLossScale, NoLossScale, ScaledGrad
from duotone.scale.choice import dynamic_loss_scale

GOOD, BAD = 1.0, float("inf")


def linear(params: Any, x: Any) -> jax.Array:
    """Its gradient is `x`."""
    return jnp.sum(params * x)


def run(tx: Any, params: Any, xs: Any, state: Any = None) -> tuple[Any, Any]:
    step = jax.jit(lambda p, s, x: tx.minimize(linear, p, s, x))
    state = tx.init(params) if state is None else state
    for x in xs:
        done = step(params, state, jnp.float32(x))
        params, state = done.params, done.state
    return params, state


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def row_initial():
    """The first scale 2**10, an interval of 1000, a factor of 4, a floor of 0, no cap."""
    scale = enable(optax.sgd(1.0), dtype="float16").init(jnp.ones(2)).loss_scale
    assert isinstance(scale, DynamicLossScale)
    assert float(scale.value) == 2**15
    assert (scale.growth_interval, scale.factor, scale.floor, scale.cap) == (2000, 2, 1, 2**24)


def row_growth():
    """A scale that grows one step late (flax), and one that grows on a step that overflows."""
    tx = enable(optax.sgd(0.0), dynamic_loss_scale(8, growth_interval=3), dtype="float16")
    _, state = run(tx, jnp.float32(1), [GOOD, GOOD])
    assert float(state.loss_scale.value) == 8
    _, grown = run(tx, jnp.float32(1), [GOOD], state)
    assert float(grown.loss_scale.value) == 16
    assert int(grown.loss_scale.good_steps) == 0
    _, failed = run(tx, jnp.float32(1), [BAD], state)
    assert float(failed.loss_scale.value) == 4


def row_decrease():
    """A count of good steps that goes on over a skipped one."""
    tx = enable(optax.sgd(0.0), dynamic_loss_scale(8, growth_interval=3), dtype="float16")
    _, state = run(tx, jnp.float32(1), [GOOD, GOOD, BAD])
    assert float(state.loss_scale.value) == 4
    _, state = run(tx, jnp.float32(1), [GOOD, GOOD], state)
    assert float(state.loss_scale.value) == 4


def row_bounds():
    """Keras: 170 bad steps bring the scale to 0. Easy gradients bring it to infinity."""
    tx = enable(optax.sgd(1.0), "dynamic", dtype="float16")
    params, state = run(tx, jnp.float32(1), [BAD] * 200)
    assert float(state.loss_scale.value) == 1
    params, state = run(tx, params, [GOOD], state)
    assert float(params) == 0
    tx = enable(optax.sgd(0.0), dynamic_loss_scale(growth_interval=1), dtype="float16")
    _, state = run(tx, jnp.float32(1), [2.0**-12] * 200)
    assert float(state.loss_scale.value) == 2**24


def row_skip():
    """A step counter, a schedule or a momentum that moves on in a skipped step."""
    tx = enable(
        optax.chain(optax.adam(optax.linear_schedule(1.0, 0.0, 10)), optax.ema(0.9)),
        8,
        dtype="float16",
    )
    params = jnp.array([1.0, -0.0])
    params, state = run(tx, params, [GOOD, GOOD])
    after, skipped = run(tx, params, [BAD, float("nan"), -BAD], state)
    assert bits(after) == bits(params)
    assert bits(skipped.inner) == bits(state.inner)
    counts = [c for _, c in optax.tree_utils.tree_get_all_with_path(skipped.inner, "count")]
    assert {int(count) for count in counts} == {2}


def row_counted():
    """A skipped step that is counted as good, or not at all."""
    tx = enable(optax.sgd(1.0), dtype="float16")
    _, state = run(tx, jnp.float32(1), [GOOD, BAD, GOOD, BAD, GOOD])
    assert tx.metrics(state) == {
        "loss_scale": 2.0**13,
        "good_steps": 1,
        "skipped_steps": 2,
        "last_finite": True,
        "dtype": "float16",
    }
    _, state = run(tx, jnp.float32(1), [BAD], state)
    assert not tx.metrics(state)["last_finite"]


def row_unscale():
    """Unscaling with the new scale (mpx): in the step in which it changes, all is off by 2."""
    for start, xs in ((8, [GOOD]), (8, [BAD, GOOD])):
        tx = enable(optax.sgd(1.0), dynamic_loss_scale(start, growth_interval=1), dtype="float16")
        params, _ = run(tx, jnp.float32(0), xs)
        assert float(params) == -1


def row_float32():
    """Unscaling in half: a gradient too small for it becomes 0."""
    tx = enable(optax.sgd(1.0), 2.0**15, dtype="float16")
    params = jnp.float16(0)
    state = tx.init(params)
    small = 1e-9
    out = tx.compute_gradients(lambda p: p.astype(jnp.float32) * small, params, state)
    by_hand = tx.unscale(jnp.float16(small * 2**15), state)
    for found in (out.grads, by_hand):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, small, rtol=0.01)


def row_clipping():
    """Clipping that sees scaled gradients: everything is clipped, to a step too small."""
    tx = enable(optax.chain(optax.clip(2.0), optax.sgd(1.0)), 2.0**10, dtype="float16")
    params, _ = run(tx, jnp.float32(0), [GOOD])
    assert float(params) == -1
    params, _ = run(tx, jnp.float32(0), [5.0])
    assert float(params) == -2


def row_accumulation():
    """A sum of gradients scaled by different numbers; a bad micro-batch that stays in the sum."""
    scale = dynamic_loss_scale(8, growth_interval=1)
    tx = enable(optax.MultiSteps(optax.sgd(1.0), 4), scale, dtype="float16")
    params, state = run(tx, jnp.float32(0), [1.0, 3.0, BAD, 5.0, 7.0])
    assert float(params) == -4
    assert int(state.inner.gradient_step) == 1
    assert int(state.inner.mini_step) == 0
    assert float(state.loss_scale.value) == 64


def row_several_losses():
    """One scale for two losses: the one that overflows takes precision from the other."""
    first = enable(optax.sgd(1.0), dynamic_loss_scale(8), dtype="float16")
    second = enable(optax.sgd(1.0), dynamic_loss_scale(8), dtype="float16")
    a, b = jnp.float32(0), jnp.float32(0)

    @jax.jit
    def step(a, b, state_a, state_b):
        one = first.minimize(linear, a, state_a, BAD)
        two = second.minimize(linear, b, state_b, GOOD)
        return one, two

    one, two = step(a, b, first.init(a), second.init(b))
    assert (float(one.params), float(two.params)) == (0, -1)
    assert (float(one.state.loss_scale.value), float(two.state.loss_scale.value)) == (4, 8)


def row_half_loss():
    """A float16 loss times 2**16, which is infinite, so that every step is skipped."""
    tx = enable(optax.sgd(1.0), 2.0**16, dtype="float16")
    params = jnp.float16(0)
    done = tx.minimize(lambda p: p * jnp.float16(1), params, tx.init(params))
    assert done.loss.dtype == jnp.float16
    assert bool(done.state.last_finite)
    assert float(done.params) == -1


def row_bfloat16():
    """Scaling in bfloat16, which needs none; skipping must stay."""
    tx = enable(optax.sgd(1.0), dtype="bfloat16")
    params, state = run(tx, jnp.float32(0), [GOOD, BAD])
    assert isinstance(tx.find_state(state).loss_scale, NoLossScale)
    assert float(params) == -1
    assert tx.metrics(state)["skipped_steps"] == 1
    assert tx.metrics(state)["loss_scale"] == 1
    assert float(state.loss_scale.value) == 2**15  # kept for a run in float16


def row_checked_before():
    """An infinity that clipping hides before the optimizer looks."""
    tx = enable(optax.sgd(1.0), 8, dtype="float16")
    params = jnp.float32(0)
    state = tx.init(params)
    out = tx.compute_gradients(linear, params, state, jnp.float32(BAD))
    clipped = ScaledGrad(out.value, jnp.clip(out.grads, -1, 1), out.finite)
    kept, state = tx.apply_gradients(clipped, params, state)
    assert float(kept) == 0
    assert int(state.loss_scale.skipped) == 1  # pyright: ignore[reportAttributeAccessIssue]


ROWS = {name.removeprefix("row_"): row for name, row in globals().items() if name[:4] == "row_"}


@pytest.mark.parametrize("name", ROWS)
def test_row(name):
    ROWS[name]()


def test_the_table_has_these_rows():
    """Documented in this order, each by its name; rows about devices are tested there."""
    page = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()
    table = page[page.index("## What a step does") :]
    names = re.findall(r"<!-- row: (\w+) -->", table)
    assert [name for name in names if name not in ("devices", "checkpoint")] == list(ROWS)
