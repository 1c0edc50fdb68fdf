"""``blame`` through the one line of Optax and of NNX: a planted overflow is named."""

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
from duotone.adapters.optax import wrap
from duotone.scale import DynamicLossScale
from tests.quick import slow_but

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(32, 16)), jnp.float32)
Y = jnp.zeros((32, 8))


def softmax_without_maximum(h: Any) -> Any:
    e = jnp.exp(h * 8.0)
    return e / e.sum(-1, keepdims=True)


PLANTED = {
    "exp": lambda h: jnp.exp(h * 6.0),
    "square": lambda h: jnp.square(h * 200.0),
    "product": lambda h: (h * 300.0) * (h * 300.0),
    "cube": lambda h: (h * 50.0) ** 3,
    "sum": lambda h: jnp.cumsum(jnp.abs(h) * 1e4, 0),
    "variance": lambda h: jnp.broadcast_to((h * 500.0).var(-1, keepdims=True), h.shape),
    "norm": lambda h: jnp.sum((h * 200.0) ** 2, -1, keepdims=True) * h,
    "logits": lambda h: (h * 100.0) @ (h * 100.0).T @ h,
    "product of many": lambda h: jnp.cumprod(jnp.abs(h) * 8.0, -1),
    "large constant": lambda h: h * 3e4 * 3.0,
}


def loss_with(plant: Any) -> Any:
    def loss(params: Any, x: Any, y: Any) -> Any:
        h = x @ params["w"]
        with jax.named_scope("planted"):
            h = plant(h)
        with jax.named_scope("head"):
            return jnp.mean((jnp.tanh(h @ params["v"]) - y) ** 2)

    return loss


@pytest.mark.parametrize("name", slow_but("exp sum logits", PLANTED))
def test_a_step_through_optax(name: str) -> None:
    loss = loss_with(PLANTED[name])
    opt = wrap(optax.sgd(0.1), dtype="float16")
    params = {
        "w": jnp.asarray(RNG.normal(size=(16, 16)) * 0.5, jnp.float32),
        "v": jnp.asarray(RNG.normal(size=(16, 8)) * 0.1, jnp.float32),
    }
    state: Any = opt.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        return opt.minimize(loss, params, state, x, y)

    found = duotone.blame(step, params, state, X, Y)
    print(found)
    assert found.verdict == "overflow"
    assert found.first is not None
    assert found.first.scope == "planted"
    assert "test_blame.py" in found.first.source
    cured = wrap(optax.sgd(0.1), dtype="float16", policy=duotone.Policy(keep_full=found.pins))
    again = duotone.blame(lambda *a: cured.minimize(loss, *a), params, state, X, Y)
    print(again)
    assert again.verdict in ("finite", "loss scale", "float32")


def test_a_scale_that_is_too_large_is_healthy_through_optax() -> None:
    opt = wrap(optax.sgd(0.1), DynamicLossScale(2.0**24), dtype="float16")
    params = {"w": jnp.ones((16, 16)) * 0.1, "v": jnp.ones((16, 8)) * 0.1}
    state: Any = opt.init(params)
    found = duotone.blame(
        lambda *a: opt.minimize(loss_with(lambda h: h), *a), params, state, X * 10, Y + 100.0
    )
    print(found)
    assert found.verdict == "loss scale"
    assert found.loss_scale == 2.0**24


class Net(nnx.Module):
    def __init__(self, plant: Any) -> None:
        self.first = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
        self.last = nnx.Linear(16, 8, rngs=nnx.Rngs(1))
        self.plant = plant

    def __call__(self, x: Any) -> Any:
        h = self.first(x)
        with jax.named_scope("planted"):
            h = self.plant(h)
        return jnp.tanh(self.last(h))


@pytest.mark.parametrize("name", slow_but("square logits", PLANTED))
def test_a_step_through_nnx(name: str) -> None:
    model = Net(lambda h: PLANTED[name](h * 2.0))
    opt = duotone.nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param, dtype="float16")

    def step(model: Any, opt: Any, x: Any, y: Any) -> Any:
        return opt.minimize(lambda m: jnp.mean((m(x) - y) ** 2), model)

    before = jax.tree.leaves(nnx.state(model))
    found = duotone.nnx.blame(step, model, opt, X, Y)
    print(found)
    assert found.verdict == "overflow"
    assert found.first is not None
    assert found.first.scope.endswith("planted")
    for old, new in zip(before, jax.tree.leaves(nnx.state(model)), strict=True):
        np.testing.assert_array_equal(old, new)
