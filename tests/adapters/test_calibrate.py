"""``calibrate`` of the optimizers: what is measured holds for the step that they paint."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import duotone
import duotone.linen
import duotone.nnx
from duotone.adapters.optax import MixedPrecisionOptimizer, wrap
from duotone.errors import ArgumentError, ArgumentTypeError, CalibrationError
from duotone.scale import ScaledGrad, scaled_value_and_grad

X = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
PARAMS = {"first": np.full((8, 8), 0.5, np.float32), "last": np.full((8, 8), 1e-4, np.float32)}
LARGE, SMALL = X * 200, X * 1e-3


def energy(params: Any, x: Any) -> Any:
    """A cube of activations, whose range nobody can prove."""
    hidden = x @ params["first"]
    with jax.named_scope("cube"):
        cubed = hidden * hidden * hidden
    return jnp.mean((cubed @ params["last"]) * 1e-4)


def with_aux(params: Any, x: Any) -> Any:
    return energy(params, x), x


def overflows(
    opt: MixedPrecisionOptimizer, loss_fn: Any = energy, has_aux: bool = False
) -> set[str]:
    """The scopes of operations denied because they were measured to overflow."""
    wrapped = opt._wrapped
    function = wrapped.functions.of(loss_fn, has_aux, traced=False)
    state: Any = opt.init(PARAMS)
    seen = duotone.explain(function, state.loss_scale, PARAMS, X)
    return {o.scope for o in seen.operations if o.rule == "overflow"}


def gradients(opt: MixedPrecisionOptimizer, x: Any) -> ScaledGrad:
    return opt.compute_gradients(energy, PARAMS, opt.init(PARAMS), x)


def made(**settings: Any) -> MixedPrecisionOptimizer:
    return wrap(optax.sgd(0.1), dtype="float16", **settings)


def test_what_was_measured_holds_for_the_step() -> None:
    opt = made(policy=duotone.Policy(infer_add=["mul"]), loss_scale=None)
    state: Any = opt.init(PARAMS)
    assert not overflows(opt)
    gradients(opt, LARGE)  # compiled without what is measured now
    measured = opt.calibrate(energy, PARAMS, state, LARGE)
    assert "cube" in overflows(opt)
    assert any(value.name == "cube/mul" and value.over > 0 for value in measured.values)
    assert "overflows" in str(measured)
    exact = jax.grad(energy)(PARAMS, LARGE)
    found = gradients(opt, LARGE)
    assert bool(found.finite)
    for name, expected in exact.items():
        np.testing.assert_allclose(found.grads[name], expected, rtol=3e-2, atol=1e-2)
    # Under jit the step is the same program, and knows what was measured.
    step = jax.jit(lambda params, state, x: opt.minimize(energy, params, state, x))
    assert np.isfinite(step(PARAMS, state, LARGE).loss)


def test_batches_add_up_and_other_losses_are_measured_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opt = made()
    state: Any = opt.init(PARAMS)
    first = opt.calibrate(energy, PARAMS, state, SMALL)
    assert "cube" not in overflows(opt)
    both = opt.calibrate(energy, PARAMS, state, LARGE)
    assert (first.batches, both.batches) == (1, 2)
    assert first.fingerprint == both.fingerprint
    hidden = [next(v for v in m.values if v.name == "cube/mul") for m in (first, both)]
    assert hidden[0].largest < hidden[1].largest
    assert hidden[0].smallest == hidden[1].smallest
    whole = duotone.calibrate(
        scaled_value_and_grad(energy), [(state.loss_scale, PARAMS, x) for x in (SMALL, LARGE)]
    )
    assert [(v.low, v.high, v.small) for v in whole.values] == [
        (v.low, v.high, v.small) for v in both.values
    ]
    assert opt.calibrate(with_aux, PARAMS, state, LARGE, has_aux=True).batches == 1
    assert "cube" in overflows(opt)
    assert "cube" in overflows(opt, with_aux, has_aux=True)
    assert not caplog.messages
    overflows(opt, lambda params, x: jnp.sum((x @ params["first"]) ** 4))
    assert any("painted without" in message for message in caplog.messages)


def test_copies_keep_it_and_a_policy_takes_it() -> None:
    opt = made()
    measured = opt.calibrate(energy, PARAMS, opt.init(PARAMS), LARGE)
    assert "cube" in overflows(copy.deepcopy(opt))
    assert "cube" in overflows(made(policy=duotone.Policy(calibration=measured)))


def test_a_step_compiled_before_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    opt = made()
    state: Any = opt.init(PARAMS)
    jax.jit(lambda p, s, x: opt.minimize(energy, p, s, x))(PARAMS, state, X)
    opt.calibrate(energy, PARAMS, state, X)
    opt.calibrate(energy, PARAMS, state, X)
    (message,) = caplog.messages
    assert "keeps its painting" in message


def test_what_cannot_be_measured() -> None:
    opt = made()
    state: Any = opt.init(PARAMS)
    with pytest.raises(ArgumentTypeError, match="has no data"):
        jax.jit(lambda p: opt.calibrate(energy, p, state, X).batches)(PARAMS)
    with pytest.raises(CalibrationError, match="NaN"):
        opt.calibrate(energy, PARAMS, state, X * np.nan)
    with pytest.raises(ArgumentTypeError, match="loss_fn must be a function"):
        opt.calibrate(3, PARAMS, state)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="Policy\\(ranges="):
        made(axis_name="devices").calibrate(energy, PARAMS, state, X)
    with pytest.raises(ArgumentError, match="rewrites no program"):
        made(rewrite=False).calibrate(energy, PARAMS, state, X)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.norm(self.first(x) ** 3))


def nnx_loss(model: Net, x: Any) -> Any:
    return jnp.mean(model(x) ** 2)


def test_nnx() -> None:
    model = Net(nnx.Rngs(0))
    policy = duotone.Policy(infer_add=["integer_pow"])
    optimizer = duotone.nnx.Optimizer(model, optax.sgd(0.1), dtype="float16", policy=policy)
    before = jax.tree.map(np.asarray, nnx.state((model, optimizer), nnx.Not(nnx.RngState)))
    counts = int(model.dropout.rngs.count[...])  # pyright: ignore[reportOptionalMemberAccess]
    measured = optimizer.calibrate(nnx_loss, model, LARGE)
    after = jax.tree.map(np.asarray, nnx.state((model, optimizer), nnx.Not(nnx.RngState)))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert counts == int(model.dropout.rngs.count[...])  # pyright: ignore
    assert any(v.name == "Net/integer_pow" and v.over > 0 for v in measured.values)

    def step(model: Net, optimizer: Any, x: Any) -> Any:
        return optimizer.minimize(nnx_loss, model, x)

    assert optimizer.tx._wrapped.functions.policy == policy.replace(calibration=[measured])
    assert np.isfinite(nnx.jit(step)(model, optimizer, LARGE))
    assert int(optimizer.step[...]) == 1


def test_linen() -> None:
    model = linen.Dense(8)
    state = duotone.linen.TrainState.create(
        apply_fn=model.apply,
        params=model.init(jax.random.key(0), X),
        tx=optax.sgd(0.1),
        dtype="float16",
    )

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(model.apply(params, x) ** 2)  # pyright: ignore[reportOperatorIssue]

    measured = state.calibrate(loss, X * 1e4)
    assert any(value.over > 0 for value in measured.values)
    assert state.tx._wrapped.functions.policy == duotone.Policy(calibration=[measured])
    assert bool(state.compute_gradients(loss, X).finite)
