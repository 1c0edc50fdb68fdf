"""``duotone.nnx.Optimizer``: whole steps in float16, and steps that are skipped."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import duotone
import duotone.nnx
from duotone.adapters import nnx_optimizer
from duotone.adapters.optax import wrap
from duotone.errors import ArgumentError, ArgumentTypeError
from tests.adapters.training import bits, digits, half_dots, heavy_tails, relative_error


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, sizes: tuple[int, int, int] = (8, 16, 8)) -> None:
        self.first = nnx.Linear(sizes[0], sizes[1], rngs=rngs)
        self.norm = nnx.BatchNorm(sizes[1], rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(sizes[1], sizes[2], rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def loss_fn(model: Net, x: Any, y: Any, blow_up: Any = 1.0) -> Any:
    return jnp.mean((model(x) - y) ** 2) * blow_up


# One optimizer for most tests: it is part of the key under which a step is compiled.
TX = wrap(optax.adam(optax.linear_schedule(1e-2, 1e-3, 10)), dtype="float16")


def made(tx: Any = TX, **settings: Any) -> tuple[Any, Any]:
    model = Net(nnx.Rngs(0))
    return model, duotone.nnx.Optimizer(model, tx, **settings)


def minimize(model: Any, optimizer: duotone.nnx.Optimizer, *args: Any) -> Any:
    return optimizer.minimize(loss_fn, model, *args)


def kept(model: Any, optimizer: duotone.nnx.Optimizer) -> list[bytes]:
    """What a skipped step leaves as it was."""
    inner = nnx.as_pure(optimizer.opt_state).inner
    state = nnx.state(model, nnx.Not(nnx.RngState))
    return bits((nnx.as_pure(state), inner, optimizer.step[...]))


X: Any
Y: Any
X, Y = heavy_tails()
BLOW_UP = np.float32(1e12)
run = {"eager": minimize, "jit": nnx.jit(minimize)}


@pytest.mark.parametrize("mode", run)
def test_a_skipped_step_changes_nothing_and_is_not_counted(mode):
    """Catches step counters that count skipped steps, and batch statistics of an overflow."""
    model, optimizer = made()
    step = run[mode]
    for _ in range(2):
        step(model, optimizer, X, Y)
    before, draws = kept(model, optimizer), int(model.dropout.rngs.count[...])
    assert np.isfinite(step(model, optimizer, X, Y, BLOW_UP))
    assert kept(model, optimizer) == before
    assert int(optimizer.step[...]) == 2
    assert int(model.dropout.rngs.count[...]) == draws + 1, "the next try would draw the same"
    assert optimizer.metrics() == {
        "loss_scale": 2.0**14,
        "good_steps": 0,
        "skipped_steps": 1,
        "last_finite": False,
        "dtype": "float16",
    }
    step(model, optimizer, X, Y)
    assert kept(model, optimizer) != before
    assert int(optimizer.step[...]) == 3


def test_flax_own_optimizer_counts_skipped_steps():
    """The fault that the adapter is for; everything else works there as well."""
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, wrap(optax.adam(1e-2), dtype="float16"), wrt=nnx.Param)
    before = bits(nnx.as_pure(nnx.state(model, nnx.Param)))
    grads = jax.tree.map(lambda leaf: leaf * np.inf, nnx.state(model, nnx.Param))
    optimizer.update(model, grads)
    assert bits(nnx.as_pure(nnx.state(model, nnx.Param))) == before
    assert int(optimizer.step[...]) == 1


def test_metrics_of_a_skipped_step_are_not_counted():
    def loss_with_metric(model: Net, metric: nnx.metrics.Average, blow_up: Any) -> Any:
        loss = loss_fn(model, X, Y, blow_up)
        metric.update(values=loss)
        return loss

    model, optimizer = made()
    metric = nnx.metrics.Average()
    for blow_up in (1.0, BLOW_UP, 1.0):
        optimizer.minimize(loss_with_metric, model, metric, jnp.float32(blow_up))
    assert int(metric.count[...]) == 2
    assert float(metric.compute()) < 10


class Keeper(nnx.Module):
    """Keeps what it computed, in a variable that may have had another value before."""

    def __init__(self, before: Any) -> None:
        self.dense = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        self.kept = nnx.Cache(before)

    def __call__(self, x: Any) -> Any:
        out = self.dense(x)
        self.kept.set_value(jax.lax.stop_gradient(out))
        return out


class Sower(Keeper):
    def __call__(self, x: Any) -> Any:
        out = self.dense(x)
        self.sow(nnx.Intermediate, "sown", out)
        return out


@pytest.mark.parametrize("mode", run)
@pytest.mark.parametrize("before", [np.zeros((0, 1), np.float32), np.int32(0), None])
def test_variables_may_change_shape_dtype_and_structure(mode, before):
    """As with ``nnx.Optimizer``: an empty cache that is filled, batches of two sizes."""
    model = Keeper(before if before is None else jnp.asarray(before))
    optimizer = duotone.nnx.Optimizer(model, TX)
    for size, blow_up in ((32, 1.0), (9, 1.0), (11, BLOW_UP)):
        run[mode](model, optimizer, X[:size], Y[:size], np.float32(blow_up))
        assert model.kept.get_value().shape == (size, 8)
    assert optimizer.metrics()["skipped_steps"] == 1
    kept = bits(model.kept.get_value())
    run[mode](model, optimizer, -X[:11], Y[:11], BLOW_UP)
    assert bits(model.kept.get_value()) == kept, "of one type there is a choice"


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
@pytest.mark.parametrize("mode", run)
def test_what_is_sown_grows_until_it_is_popped(mode):
    model = Sower(None)
    optimizer = duotone.nnx.Optimizer(model, TX)
    for steps in (1, 2, 3):
        run[mode](model, optimizer, X, Y)
        assert len(vars(model)["sown"].get_value()) == steps
    assert int(optimizer.step[...]) == 3


def test_gradients_are_unscaled_close_to_float32_and_of_half_dots():
    model, optimizer = made()
    out = optimizer.compute_gradients(loss_fn, model, X, Y)
    reference = Net(nnx.Rngs(0))
    value, true = nnx.jit(nnx.value_and_grad(loss_fn))(reference, X, Y)
    assert float(out.value) == pytest.approx(float(value), rel=2e-3)
    assert relative_error(out.grads, true) < 5e-3
    assert isinstance(out.grads, nnx.State)
    assert bool(out.finite)
    assert relative_error(nnx.state(model, nnx.BatchStat), nnx.state(reference, nnx.BatchStat)) < (
        2e-3
    )
    assert half_dots(run["jit"].lower(*made(), X, Y).as_text()) == 5
    full = made(optax.adam(1e-2), dtype="float16", policy=duotone.Policy(keep_full=["*"]))
    assert half_dots(run["jit"].lower(*full, X, Y).as_text()) == 0


def test_small_gradients_survive():
    """1e-7 times a float16 activation is 0 in float16, without a loss scale."""

    def tiny(model: nnx.Linear, x: Any) -> Any:
        return jnp.mean(model(x)) * 1e-7

    grads = {}
    for loss_scale in ("dynamic", None):
        model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        optimizer = duotone.nnx.Optimizer(
            model, optax.sgd(1.0), loss_scale=loss_scale, dtype="float16"
        )
        grads[loss_scale] = optimizer.compute_gradients(tiny, model, X).grads["kernel"][...]
    true = nnx.grad(tiny)(model, X)["kernel"][...]
    assert relative_error(grads["dynamic"], true) < 5e-3
    assert relative_error(grads[None], true) > 0.02


def test_digits_are_learned_in_float16_with_an_overflow_on_the_way():
    images, labels = digits()

    def loss(model: Net, images: Any, labels: Any, blow_up: Any) -> Any:
        logits = model(images)
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return entropy.mean() * blow_up, logits

    model = Net(nnx.Rngs(0), (64, 32, 10))
    optimizer = duotone.nnx.Optimizer(model, optax.adam(1e-2), dtype="float16")

    @nnx.jit
    def step(model: Any, optimizer: Any, blow_up: Any) -> Any:
        return optimizer.minimize(loss, model, images, labels, blow_up, has_aux=True)

    losses, accuracy = [], 0.0
    for i in range(40):
        value, logits = step(model, optimizer, jnp.float32(BLOW_UP if i == 7 else 1.0))
        losses.append(float(value))
        accuracy = float(np.mean(np.argmax(logits, -1) == labels))
    assert losses[-1] < losses[0] / 10
    assert accuracy > 0.98
    assert int(optimizer.step[...]) == 39
    assert optimizer.metrics()["skipped_steps"] == 1


def test_gradients_of_nnx_grad_are_taken_as_unscaled():
    model, optimizer = made(optax.sgd(1.0), dtype="float16")
    grads = nnx.grad(loss_fn)(Net(nnx.Rngs(0)), X, Y)
    before = np.asarray(model.last.kernel[...])
    optimizer.update(model, grads)
    moved = before - np.asarray(model.last.kernel[...])
    np.testing.assert_allclose(moved, grads["last"]["kernel"][...], rtol=1e-4, atol=1e-6)
    assert int(optimizer.step[...]) == 1


def test_updates_are_returned_and_are_nothing_in_a_skipped_step():
    model, optimizer = made(optax.sgd(0.5), dtype="float16")
    out = optimizer.compute_gradients(loss_fn, model, X, Y)
    updates = optimizer.update(model, out)
    np.testing.assert_allclose(
        updates["last"]["bias"], -0.5 * out.grads["last"]["bias"][...], rtol=1e-6
    )
    model.last.bias[...] = jnp.full((1,), -0.0)
    out = optimizer.compute_gradients(loss_fn, model, X, Y, blow_up=BLOW_UP)
    updates = optimizer.update(model, out)
    assert not np.any(updates["last"]["bias"])
    assert np.signbit(model.last.bias[...]).all(), "-0.0 became 0.0"


def test_what_is_trained_may_be_chosen():
    def is_last(path: Any, value: Any) -> bool:
        return "last" in path and isinstance(value, nnx.Param)

    model, optimizer = made(wrt=is_last)
    first, last = model.first.kernel[...], model.last.kernel[...]
    minimize(model, optimizer, X, Y)
    np.testing.assert_array_equal(model.first.kernel[...], first)
    assert np.any(model.last.kernel[...] != last)


def test_a_model_shared_with_the_arguments_and_an_object_as_aux():
    def loss(model: Net, pair: list[Any], x: Any, y: Any) -> Any:
        assert pair[0] is model
        return loss_fn(model, x, y), {"norm": model.norm, "new": nnx.Variable(jnp.ones(2))}

    model, optimizer = made()
    value, aux = optimizer.minimize(loss, model, [model], X, Y, has_aux=True)
    assert aux["norm"] is model.norm
    assert aux["new"][...].shape == (*value.shape, 2)


def test_a_loss_is_compiled_once_outside_jit():
    traces = []

    def counted(model: Net, x: Any, y: Any) -> Any:
        traces.append(1)
        return loss_fn(model, x, y)

    model, optimizer = made()
    for _ in range(3):
        optimizer.minimize(counted, model, X, Y)
    assert len(traces) == 1


class Helper:
    """A loss that is a method; Python makes another bound method each time it is read."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self) -> None:
        self.traces = 0

    def __eq__(self, other: object) -> bool:
        raise AssertionError("told apart by what they are, not by what they equal")

    def loss(self, model: Net, x: Any, y: Any) -> Any:
        self.traces += 1
        return loss_fn(model, x, y)

    def other(self, model: Net, x: Any, y: Any) -> Any:
        return -loss_fn(model, x, y)


def kept_under(address: int) -> int:
    return sum(address == key[0] for key in nnx_optimizer._PURE_LOSSES)


def test_a_method_is_compiled_once_and_forgotten_with_its_owner():
    model, optimizer = made()
    helper, second = Helper(), Helper()
    for _ in range(3):
        optimizer.compute_gradients(helper.loss, model, X, Y)
    assert helper.traces == 1
    optimizer.compute_gradients(second.loss, model, X, Y)
    assert (helper.traces, second.traces) == (1, 1)
    assert float(optimizer.compute_gradients(helper.other, model, X, Y).value) < 0
    gone, address = weakref.ref(helper), id(helper)
    assert kept_under(address) == 2
    del helper
    gc.collect()
    assert gone() is None
    assert kept_under(address) == 0


def test_a_loss_without_weak_references():
    class Slotted:
        __slots__ = ()

        def __call__(self, model: Net, x: Any, y: Any) -> Any:
            return loss_fn(model, x, y)

    model, optimizer = made()
    loss = Slotted()
    for _ in range(2):
        optimizer.minimize(loss, model, X, Y)
    assert kept_under(id(loss)) == 1


class Trainer(nnx.Module):
    """A method of an NNX object reads and changes its variables."""

    def __init__(self) -> None:
        self.weight = nnx.Variable(jnp.float32(1.0))
        self.calls = nnx.Variable(jnp.int32(0))

    def __call__(self, model: Net, x: Any, y: Any) -> Any:
        self.calls[...] += 1
        return loss_fn(model, x, y) * self.weight[...]

    def loss(self, model: Net, x: Any, y: Any) -> Any:
        return self(model, x, y)


@pytest.mark.parametrize("of", [lambda trainer: trainer.loss, lambda trainer: trainer])
def test_a_method_of_an_nnx_object_sees_it_as_it_is_now(of):
    """Catches variables that a compiled loss holds as constants of its first step."""
    model, optimizer = made(optax.sgd(0.0), dtype="float16")
    trainer = Trainer()
    first = float(optimizer.minimize(of(trainer), model, X, Y))
    trainer.weight[...] = jnp.float32(0.0)
    assert first > 0
    assert float(optimizer.minimize(of(trainer), model, X, Y)) == 0
    trainer.weight[...] = BLOW_UP
    optimizer.minimize(of(trainer), model, X, Y)
    assert int(trainer.calls[...]) == 2, "a skipped step changed it"


def test_an_optimizer_survives_split_merge_and_clone():
    model, optimizer = made()
    minimize(model, optimizer, X, Y)
    copy = nnx.clone(optimizer)
    assert type(copy) is duotone.nnx.Optimizer
    assert copy.metrics() == optimizer.metrics()
    definition, state = nnx.split((model, optimizer))
    model, optimizer = nnx.merge(definition, jax.tree.map(jnp.array, state))
    minimize(model, optimizer, X, Y)
    assert int(optimizer.step[...]) == 2
    assert float(optimizer.loss_scale.value) == 2.0**15


def test_restored_from_orbax(tmp_path):
    import orbax.checkpoint as ocp

    model, optimizer = made()
    for blow_up in (1.0, BLOW_UP, 1.0):
        run["jit"](model, optimizer, X, Y, np.float32(blow_up))
    state = nnx.as_pure(nnx.state((model, optimizer), nnx.Not(nnx.RngState)))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", state)
        checkpointer.wait_until_finished()
        target = made()
        restored = checkpointer.restore(
            tmp_path / "c", nnx.as_pure(nnx.state(target, nnx.Not(nnx.RngState)))
        )
    nnx.update(target, restored)
    assert kept(*target) == kept(model, optimizer)
    assert target[1].metrics() == optimizer.metrics()


# Settings


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"dtype": "float16"}, 2.0**15),
        ({"dtype": "bfloat16"}, 1.0),
        ({"dtype": "float16", "loss_scale": 128}, 128.0),
        ({"dtype": "float16", "loss_scale": None}, 1.0),
        ({"dtype": "bfloat16", "loss_scale": duotone.DynamicLossScale(64)}, 64.0),
    ],
)
def test_loss_scales(settings, scale):
    _, optimizer = made(optax.sgd(0.1), **settings)
    assert optimizer.metrics()["loss_scale"] == scale


def test_a_wrapped_optimizer_is_taken_as_it_is_and_settings_only_once():
    tx = wrap(optax.sgd(0.1), 256, dtype="float16")
    _, optimizer = made(tx, wrt=nnx.Param)
    assert optimizer.tx is tx
    for setting in ({"loss_scale": 2.0}, {"dtype": "float16"}, {"policy": duotone.Policy()}):
        with pytest.raises(ArgumentError, match=rf"has its own {next(iter(setting))}.*bare"):
            made(tx, **setting)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (lambda model: model(X), "scalar"),
        (lambda model: (jnp.sum(model(X)), 1), "has_aux=True"),
        (lambda model: 3, "floating loss"),
    ],
)
def test_bad_losses_are_the_errors_of_value_and_grad(bad, match):
    model, optimizer = made()
    with pytest.raises((ArgumentError, ArgumentTypeError), match=match):
        optimizer.minimize(bad, model)
    assert int(model.dropout.rngs.count[...]) == 0


def test_more_bad_arguments():
    model, optimizer = made()
    with pytest.raises(ArgumentTypeError, match=r"pair \(loss, aux\) because has_aux"):
        optimizer.minimize(loss_fn, model, X, Y, has_aux=True)
    with pytest.raises(ArgumentTypeError, match="must be a function"):
        optimizer.minimize(3, model)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="must have init and update"):
        made(3, dtype="float16")
    for wrong in (3, {"w": X}):
        with pytest.raises(ArgumentTypeError, match="pass an NNX module"):
            duotone.nnx.Optimizer(wrong, TX)
    with pytest.raises(ArgumentError, match="which the parameters do not have"):
        optimizer.update(model, nnx.state(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.Param))


def test_the_monitor_takes_the_optimizer(caplog):
    model, optimizer = made(optax.sgd(0.1), dtype="float16")
    monitor = duotone.LossScaleMonitor(optimizer, every=1, warn_after=3)
    assert optimizer.alarm.warn_after == 3
    with caplog.at_level(logging.INFO, "duotone"):
        monitor(optimizer, 0)
        optimizer.minimize(loss_fn, model, X, Y, BLOW_UP)
        monitor(optimizer, 1)
    assert [r.getMessage() for r in caplog.records if "loss scale" in r.getMessage()] == [
        "step 0: loss scale 32768, 0 steps skipped since the last line, 0 in all",
        "step 1: loss scale 1, 1 step skipped since the last line, 1 in all",
    ]


@pytest.mark.parametrize(("blow_up", "skipped"), [(1.0, 0), (1e4, 2)])
def test_a_large_first_loss_brings_the_scale_down_in_two_steps(blow_up, skipped):
    """One step for each halving would be seven here."""
    model, optimizer = made(optax.adam(1e-3), dtype="float16")
    for _ in range(8):
        optimizer.minimize(loss_fn, model, X, Y, jnp.float32(blow_up))
    metrics = optimizer.metrics()
    assert metrics["skipped_steps"] == skipped
    assert (metrics["loss_scale"] == 2.0**15) == (skipped == 0)


def test_the_one_line_names_this_optimizer_for_a_model():
    """Catches: an error at the first step, which names Equinox."""
    opt = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3), dtype="float16")
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    with pytest.raises(
        ArgumentTypeError, match=r"init: .*\(Linear\).*duotone.nnx.Optimizer\(model"
    ):
        opt.init(model)
    assert opt.metrics(opt.init(nnx.state(model, nnx.Param)))["skipped_steps"] == 0
