"""The names of dtypes, everywhere where one is taken, and float32 as the off switch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import duotone
import duotone.nnx
from duotone.graph.graph import HALF_TYPES
from duotone.policy.dtypes import HALF_NAMES, OFF_NAMES, canonical
from duotone.scale import DynamicLossScale, NoLossScale

W, X = jnp.full((8, 8), 1e-3), jnp.ones((4, 8))
OFF = [{"enabled": False}, {"dtype": "float32"}, {"dtype": jnp.float32}]
Settings = dict[str, Any]


def loss(w: Any, x: Any) -> Any:
    return jnp.mean((x @ w) ** 2)


def program(function: Any, *args: Any) -> str:
    return str(jax.make_jaxpr(function)(*args))


def test_every_name_means_a_half_type_or_off() -> None:
    assert set(HALF_NAMES.values()) == set(HALF_TYPES)
    assert {canonical(name) for name in OFF_NAMES} == {"float32"}


@pytest.mark.parametrize(
    ("name", "means"),
    [("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"), ("BFloat16", "bfloat16")],
)
def test_short_names_are_taken_everywhere(name: str, means: str) -> None:
    assert program(duotone.autocast(loss, dtype=name), W, X) == program(
        duotone.autocast(loss, dtype=means), W, X
    )
    assert duotone.explain(loss, W, X, dtype=name).summary.half_dtype == means
    assert duotone.cast_params(loss, W, X, dtype=name).dtype == means
    record = duotone.cast_params(loss, W, X, dtype=name)
    assert duotone.autocast(loss, weights=record, dtype=name)(X).shape == ()
    opt = duotone.enable_mixed_precision_graph_rewrite(optax.sgd(0.1), dtype=name)
    scaled = not isinstance(opt.find_state(opt.init(W)).loss_scale, NoLossScale)
    assert scaled is (means == "float16")
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    assert duotone.nnx.explain(model, X, dtype=name).summary.half_dtype == means


@pytest.mark.parametrize("off", OFF)
def test_autocast_switched_off_runs_the_function_as_it_is(off: Settings) -> None:
    fast = duotone.autocast(loss, **off)
    assert program(fast, W, X) == program(loss, W, X)
    np.testing.assert_array_equal(fast(W, X), loss(W, X))
    assert program(duotone.autocast(**off)(loss), W, X) == program(loss, W, X)
    fast = duotone.autocast(loss, weights=W, **off)
    np.testing.assert_array_equal(fast(X), loss(W, X))
    lifted = duotone.nnx.autocast(loss, **off)
    assert program(lifted, W, X) == program(loss, W, X)


def test_float32_math_is_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOTONE_FLOAT32_MATH", "exact")
    assert program(duotone.autocast(loss, enabled=False), W, X) == program(loss, W, X)


def test_weights_cast_with_it_off_stay_off() -> None:
    record = duotone.cast_params(loss, W, X, dtype="float32")
    assert (record.dtype, record.cast, record.chosen) == (None, frozenset(), False)
    assert program(duotone.autocast(loss, weights=record), X) == program(
        lambda x: loss(record.params, x), X
    )


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("loss_scale", ["dynamic", 8.0, DynamicLossScale()])
def test_the_one_line_switched_off_trains_in_float32(off: Settings, loss_scale: Any) -> None:
    plain = optax.adam(0.1)
    opt = duotone.enable_mixed_precision_graph_rewrite(plain, loss_scale, **off)
    state = opt.init(W)
    assert isinstance(opt.find_state(state).loss_scale, NoLossScale)
    done = jax.jit(lambda w, s: opt.minimize(loss, w, s, X))(W, state)

    @jax.jit
    def step(w: Any, inner: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(w, X)
        updates, _ = plain.update(grads, inner, w)
        return optax.apply_updates(w, updates), value

    np.testing.assert_array_equal(done.params, step(W, plain.init(W))[0])
    np.testing.assert_array_equal(done.loss, step(W, plain.init(W))[1])


def test_an_nnx_optimizer_switched_off() -> None:
    model = nnx.Linear(8, 1, rngs=nnx.Rngs(0))
    optimizer = duotone.nnx.Optimizer(model, optax.sgd(0.1), dtype="float32")
    assert isinstance(optimizer.loss_scale, NoLossScale)
    optimizer.minimize(lambda model, x: jnp.mean(model(x) ** 2), model, X)


def test_value_and_grad_switched_off_scales_nothing() -> None:
    """In float16 a gradient below 6e-8 is lost unless the loss is scaled."""
    w = jnp.full(2, 1e-4, jnp.float16)

    def gradient(**settings: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.sum((w * jnp.float16(1e-4)).astype(jnp.float32)) * 1e-4

        return duotone.grad(loss, **settings)

    on = gradient(scale=DynamicLossScale(), dtype="float16")(w)
    unscaled = gradient(scale=NoLossScale(), enabled=False)(w)
    for off in ({"enabled": False}, {"dtype": "float32"}):
        got = gradient(scale=DynamicLossScale(), **off)(w)
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, unscaled)
        assert (got != on).all()
