"""``Policy(heal=True)`` through the one line of Optax and of NNX: what overflows is kept full."""

from __future__ import annotations

import json
import logging
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
from duotone.blaming import healing as _healing
from duotone.errors import ArgumentError, PolicyError, PolicyTypeError
from duotone.scale import DynamicLossScale

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(32, 16)), jnp.float32)
Y = jnp.zeros((32, 8))
HEAL = duotone.Policy(heal=True)


def same(h: Any) -> Any:
    return h


def attention_logits(h: Any) -> Any:
    return (h * 100.0) @ (h * 100.0).T @ h


def variance(h: Any) -> Any:
    return jnp.broadcast_to((h * 500.0).var(-1, keepdims=True), h.shape)


def exponential(h: Any) -> Any:
    return jnp.exp(h * 4.0)


def large_sum(h: Any) -> Any:
    return jnp.cumsum(jnp.abs(h) * 1e4, 0)


PLANTED = [
    exponential,
    *(pytest.param(f, marks=pytest.mark.slow) for f in (attention_logits, variance, large_sum)),
]


def loss_with(plant: Any) -> Any:
    def loss(params: Any, x: Any, y: Any) -> Any:
        h = x @ params["w"]
        with jax.named_scope("planted"):
            h = plant(h)
        with jax.named_scope("head"):
            return jnp.mean((jnp.arcsinh(h @ params["v"]) - y) ** 2)

    return loss


def large_loss(params: Any, x: Any, y: Any) -> Any:
    with jax.named_scope("planted"):
        return jnp.sum((x @ params["w"] * 300.0) ** 2 @ jnp.ones((16, 1))) + jnp.sum(y)


class Training:
    """A compiled step, counted when it is traced; its arguments are donated."""

    def __init__(self, loss: Any, policy: Any = HEAL, scale: Any = "dynamic") -> None:
        rng = np.random.default_rng(0)
        self.opt = wrap(optax.sgd(1e-4), scale, dtype="float16", policy=policy)
        self.params: Any = {
            "w": jnp.asarray(rng.normal(size=(16, 16)) * 0.5, jnp.float32),
            "v": jnp.asarray(rng.normal(size=(16, 8)) * 0.025, jnp.float32),
        }
        self.state: Any = self.opt.init(self.params)
        self.loss, self.traces = loss, 0
        self.step = jax.jit(self._step, donate_argnums=(0, 1))

    def _step(self, params: Any, state: Any, x: Any, y: Any) -> Any:
        self.traces += 1
        done = self.opt.minimize(self.loss, params, state, x, y)
        return done.params, done.state, done.loss

    def run(self, steps: int, x: Any = X) -> float:
        """The last loss; what the steps call the host for has been done after it."""
        loss = jnp.nan
        for _ in range(steps):
            self.params, self.state, loss = self.step(self.params, self.state, x, Y)
            jax.effects_barrier()
        return float(loss)


def said(caplog: Any) -> list[str]:
    return [
        r.getMessage()
        for r in caplog.records
        if r.name == "duotone" and r.levelno == logging.WARNING
    ]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_compiled_step_heals_and_a_resumed_run_need_not(plant: Any, caplog: Any) -> None:
    training = Training(loss_with(plant))
    assert not np.isfinite(training.run(3))
    assert not bool(training.state.last_finite)
    before = jax.tree.map(np.asarray, training.params)
    assert not np.isfinite(training.run(1))  # next to its reference
    assert np.isfinite(training.run(12))  # in which the loss scale may come down
    assert bool(training.state.last_finite)
    assert training.traces == 3
    assert any((np.asarray(training.params[k]) != before[k]).any() for k in before)
    (line,) = said(caplog)
    assert "planted/" in line
    assert "test_heal.py" in line
    assert all(repr(pin) in line for pin in training.opt.pins)
    resumed = Training(
        loss_with(plant), HEAL.replace(keep_full=json.loads(json.dumps(training.opt.pins)))
    )
    assert np.isfinite(resumed.run(1))
    assert np.isfinite(resumed.run(12))
    assert resumed.traces == 1
    assert resumed.opt.pins == training.opt.pins


def test_a_loss_that_overflows_though_its_gradients_do_not(caplog: Any) -> None:
    training = Training(large_loss)
    assert not np.isfinite(training.run(4))
    assert np.isfinite(training.run(1))
    assert "planted/" in said(caplog)[0]


@pytest.mark.parametrize("scale", [DynamicLossScale(2.0**24), 2.0**24], ids=["dynamic", "fixed"])
def test_a_loss_scale_that_is_too_high_is_nothing_to_heal(scale: Any, caplog: Any) -> None:
    """On its way down it costs nothing either: no step is traced again."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        return 8 * jnp.mean((jnp.tanh(x @ params["w"] @ params["v"]) - y) ** 2)

    training = Training(loss, duotone.Policy(heal=1), scale)
    training.run(12, X * 100)
    assert training.opt.pins == ()
    if isinstance(scale, DynamicLossScale):
        assert int(training.state.loss_scale.skipped) > 1
        assert bool(training.state.last_finite)
        assert training.traces == 1
        assert not said(caplog)
    else:  # it cannot come down, so somebody has to be told
        assert not bool(training.state.last_finite)
        (line,) = said(caplog)
        assert "loss scale, 1.67772e+07; the backward pass fits at" in line


def test_data_that_are_not_finite_pin_nothing(caplog: Any) -> None:
    training = Training(loss_with(same))
    training.run(14, X.at[0, 0].set(jnp.nan))
    (line,) = said(caplog)
    assert "the arguments of the step contain NaN or infinity: " in line
    assert "Nothing is kept full for it." in line
    assert training.opt.pins == ()
    assert training.traces <= 6  # looks are farther and farther apart
    assert np.isfinite(training.run(2))


def test_one_bad_batch_now_and_then_pins_nothing() -> None:
    training = Training(loss_with(lambda h: jnp.exp(h)), duotone.Policy(heal=2))
    for _ in range(4):
        assert not np.isfinite(training.run(1, X * 100))
        assert np.isfinite(training.run(1))
    assert training.traces == 1
    assert training.opt.pins == ()


def in_turn(training: Training, pattern: str) -> None:
    """Runs a good step for each dot and one that overflows for each x."""
    for step in pattern:
        training.run(1, X * 100 if step == "x" else X)


def sum_of_some(h: Any) -> Any:
    """Overflows for ``X * 100`` only, which float32 holds."""
    return jnp.cumsum(jnp.abs(h) * 300, 0)


def test_an_overflow_of_some_batches_is_healed(caplog: Any) -> None:
    """Never twice in a row, and only good batches follow when the step is looked at."""
    training = Training(loss_with(sum_of_some), duotone.Policy(heal=2))
    in_turn(training, "x.." * 11)
    assert training.opt.pins == ()
    in_turn(training, "......x")  # the look waits
    assert training.opt.pins
    assert training.traces == 2
    (line,) = said(caplog)
    assert "planted/cumsum" in line
    before = int(training.state.loss_scale.skipped)
    in_turn(training, "x.x.xx")
    assert int(training.state.loss_scale.skipped) == before
    assert training.traces == 3


def test_a_look_that_meets_no_overflow_counts_for_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(_healing, "_PATIENCE", 3)
    training = Training(loss_with(sum_of_some), duotone.Policy(heal=2))
    for _ in range(3):
        in_turn(training, "xx....")
    assert training.opt.pins == ()
    in_turn(training, "xxx")
    assert training.opt.pins


def test_an_overflow_in_less_than_one_step_of_ten_is_left_alone() -> None:
    training = Training(loss_with(sum_of_some), duotone.Policy(heal=2))
    in_turn(training, ("x" + "." * 12) * 20)
    assert training.traces == 1
    in_turn(training, "x...." * 16)
    assert training.traces > 1


def test_looks_that_find_nothing_end_in_a_line(caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(_healing, "_FRUITLESS", 2)
    training = Training(loss_with(same), duotone.Policy(heal=1))
    training.run(8, X.at[0, 0].set(jnp.nan))
    found, ended = said(caplog)
    assert "the half type is not why the step is skipped" in found
    assert "2 looks found nothing" in ended
    assert "Nothing more is healed" in ended


def masked_attention(params: Any, x: Any, mask: Any) -> Any:
    """A row without a key is NaN in every precision."""
    scores = jnp.where(mask, x @ params["w"] @ x.T, -jnp.inf)
    return jnp.mean((jax.nn.softmax(scores, -1) @ x @ params["v"]) ** 2)


@pytest.mark.parametrize("policy", [None, HEAL])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_loss_that_is_nan_in_float32_too_is_not_halfs_fault(
    policy: Any, dtype: str, caplog: Any
) -> None:
    """Without ``heal`` the numbers that are read tell."""
    opt = wrap(optax.sgd(1e-4), dtype=dtype, policy=policy)
    params, state = Training(masked_attention).params, None
    state = opt.init(params)
    step = jax.jit(lambda p, s, mask: opt.minimize(masked_attention, p, s, X, mask))
    good = jnp.ones((32, 32), bool)
    for i in range(54):
        done = step(params, state, good.at[0].set(bool(i % 3)))
        params, state = done.params, done.state
        jax.effects_barrier()
        if i % 6 == 5:
            assert opt.metrics(state)["last_finite"]
    lines = said(caplog)
    assert sum("the half type is not why the step is skipped" in line for line in lines) == 1
    assert opt.pins == ()
    if dtype != "float32":
        assert any("softmax" in line or "test_heal.py" in line for line in lines)


def test_steps_in_a_scan_heal_at_the_next_call() -> None:
    training = Training(loss_with(exponential))

    def many(params: Any, state: Any, x: Any, y: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            params, state, loss = training._step(carry[0], carry[1], x, y)
            return (params, state), loss

        carry, losses = jax.lax.scan(body, (params, state), None, length=4)
        return *carry, losses[-1]

    training.step = jax.jit(many)  # pyright: ignore[reportAttributeAccessIssue]
    training.run(2)
    assert np.isfinite(training.run(1))
    assert training.traces == 3


@pytest.mark.slow
def test_steps_that_are_not_compiled() -> None:
    training = Training(loss_with(exponential))
    training.step = training._step  # pyright: ignore[reportAttributeAccessIssue]
    assert np.isfinite(training.run(5))
    assert training.opt.pins


def test_a_step_compiled_ahead_of_time_says_that_it_cannot_be_healed(
    caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(_healing, "_LATE", 4)
    training = Training(loss_with(exponential))
    given = training.params, training.state, X, Y
    training.step = training.step.lower(*given).compile()  # pyright: ignore
    training.run(12)
    (line,) = said(caplog)
    assert "was not retraced" in line
    assert "duotone.blame(step" in line


@pytest.mark.slow
def test_what_the_user_keeps_half_is_left_so(caplog: Any) -> None:
    healed = Training(loss_with(exponential))
    healed.run(5)
    caplog.clear()
    training = Training(loss_with(exponential), HEAL.replace(keep_half=healed.opt.pins))
    training.run(12)
    assert not set(training.opt.pins) & set(healed.opt.pins)
    assert "Nothing more is healed" in said(caplog)[-1]


def test_the_warning_of_skipped_steps_names_the_operation(caplog: Any) -> None:
    training = Training(loss_with(exponential), None, None)
    monitor = duotone.LossScaleMonitor(training.opt, every=1, warn_after=2)
    for step in range(5):
        training.run(1)
        monitor(training.state, step)
    warned, named = said(caplog)
    assert "2 steps in a row were skipped" in warned
    assert "a line will name the operation" in warned
    assert "planted/exp" in named
    assert "test_heal.py" in named
    assert "Policy(keep_full=['head/dot_general'" in named
    assert training.opt.pins == ()
    assert training.traces == 3


class Net(nnx.Module):
    def __init__(self, plant: Any) -> None:
        self.first = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
        self.last = nnx.Linear(16, 8, rngs=nnx.Rngs(1))
        self.plant = plant

    def __call__(self, x: Any) -> Any:
        h = self.first(x)
        with jax.named_scope("planted"):
            h = self.plant(h * 2.0)
        return jnp.tanh(self.last(h))


@pytest.mark.parametrize("plant", PLANTED)
def test_nnx(plant: Any) -> None:
    def train(policy: Any, steps: int) -> tuple[Any, float]:
        model = Net(plant)
        opt = duotone.nnx.Optimizer(model, optax.sgd(1e-3), dtype="float16", policy=policy)

        @nnx.jit
        def step(model: Any, opt: Any, x: Any, y: Any) -> Any:
            return opt.minimize(lambda model: jnp.mean((model(x) - y) ** 2), model)

        loss = jnp.nan
        for _ in range(steps):
            loss = step(model, opt, X, Y)
            jax.effects_barrier()
        return opt, float(loss)

    opt, loss = train(HEAL, 6)
    assert np.isfinite(loss)
    assert opt.metrics()["skipped_steps"] == 4
    resumed, loss = train(HEAL.replace(keep_full=opt.pins), 2)
    assert np.isfinite(loss)
    assert resumed.metrics()["skipped_steps"] == 0
    assert resumed.pins == opt.pins


def test_who_has_no_optimizer_is_reported_to_wrap_one() -> None:
    for make in (duotone.autocast, duotone.grad, duotone.value_and_grad):
        with pytest.raises(ArgumentError, match="Wrap the optimizer"):
            make(jnp.sum, policy=HEAL)
    assert duotone.blame(lambda x: x @ x, X[:16], dtype="float16", policy=HEAL).watched


def test_several_processes_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    training = Training(loss_with(exponential))
    with pytest.raises(ArgumentError, match="2 processes"):
        training.run(1)


def test_what_heal_takes() -> None:
    assert duotone.Policy(heal=True).heal == 3
    assert duotone.Policy(heal=False) == duotone.Policy(heal=0) == duotone.Policy()
    assert duotone.Policy(heal=5).describe() == "policy: heals what overflows in 5 steps in a row"
    with pytest.raises(PolicyError, match="0 \\(off\\) or more"):
        duotone.Policy(heal=-1)
    with pytest.raises(PolicyTypeError, match="True, False or a number"):
        duotone.Policy(heal="yes")  # pyright: ignore[reportArgumentType]


def test_gradients_that_are_taken_by_hand_say_that_nothing_is_healed(caplog: Any) -> None:
    opt = wrap(optax.sgd(0.1), dtype="float16", policy=HEAL)
    params = jnp.ones(2)
    state: Any = opt.init(params)
    for _ in range(2):
        grads = jax.grad(lambda p, state=state: opt.scale_loss(jnp.sum(p), state))(params)
        _, state = opt.update(opt.unscale(grads, state), state, params)
    (line,) = said(caplog)
    assert "do not come from compute_gradients or minimize" in line
    assert "Nothing more is healed" in line


@pytest.mark.slow
@pytest.mark.parametrize("around", ["jit", "shard_map", "vmap"])
def test_on_several_devices_and_mapped(around: str, caplog: Any) -> None:
    """Every device calls the host; a step counts once, and one line is logged."""
    own = loss_with(exponential)
    training = Training(own)
    step, x, rows = training._step, X, jax.P("data")
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=auto, devices=jax.devices()[:2])
    if around == "vmap":
        step = jax.vmap(step, (0, 0, None, None))
        training.params, training.state = jax.tree.map(
            lambda a: jnp.stack([a, a]), (training.params, training.state)
        )
    else:
        x = jax.device_put(x, jax.NamedSharding(mesh, rows))
    if around == "shard_map":
        training.loss = lambda *args: jax.lax.pmean(own(*args), "data")
        specs = (jax.P(), jax.P(), rows, rows)
        step = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=jax.P())
    training.step = jax.jit(step)  # pyright: ignore[reportAttributeAccessIssue]
    losses: list[Any] = []
    for _ in range(8):
        training.params, training.state, loss = training.step(training.params, training.state, x, Y)
        losses.append(loss)
        jax.effects_barrier()
    assert not np.isfinite(losses[2]).any()  # three in a row, however many call
    assert np.isfinite(losses[-1]).all()
    assert training.opt.pins
    assert len(said(caplog)) == 1
