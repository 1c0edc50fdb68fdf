"""The monitor: what it logs and writes, how often, and the one warning of a stuck scale."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import duotone
from duotone.adapters.enable import enable_mixed_precision_graph_rewrite as enable
from duotone.adapters.optax import wrap
from duotone.errors import ArgumentError, ArgumentTypeError, MissingExtraError
from duotone.scale import DynamicLossScale, NoLossScale
from duotone.scale.monitor import LossScaleMonitor
from duotone.text.scale_log import WARN_AFTER

PARAMS = jnp.float32(1)
BAD, GOOD = jnp.float32(jnp.nan), jnp.float32(0)


def optimizer(**scale: Any) -> Any:
    return enable(optax.sgd(0.1), DynamicLossScale(**scale), dtype="float16")


def after(tx: Any, grads: Any, state: Any = None) -> Any:
    state = tx.init(PARAMS) if state is None else state
    for grad in grads:
        _, state = tx.update(grad, state, PARAMS)
    return state


def lines(caplog: Any, level: int = logging.INFO) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "duotone" and r.levelno == level]


def test_a_line_when_something_changed_and_no_other(caplog):
    tx = optimizer()
    monitor = LossScaleMonitor(tx, every=10)
    state = after(tx, [])
    with caplog.at_level(logging.INFO, "duotone"):
        for step in range(30):
            monitor(state, step)
        state = after(tx, [BAD, GOOD, BAD], state)
        monitor(state, 30)
        monitor(after(tx, [BAD], state), 31)  # too early
        monitor(state, 40)
    assert lines(caplog) == [
        "step 0: loss scale 32768, 0 steps skipped since the last line, 0 in all",
        "step 30: loss scale 8192, 2 steps skipped since the last line, 2 in all",
    ]


def test_an_optimizer_that_is_not_wrapped_is_refused_by_name():
    with pytest.raises(ArgumentTypeError, match=r"duotone\.nnx\.Optimizer.* has no loss scale"):
        LossScaleMonitor(optax.sgd(0.1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_metrics_name_the_dtype(dtype):
    tx = enable(optax.sgd(0.1), dtype=dtype)
    assert tx.metrics(tx.init(PARAMS))["dtype"] == dtype
    left_alone = wrap(optax.sgd(0.1), dtype=dtype, rewrite=False)
    assert left_alone.metrics(left_alone.init(PARAMS))["dtype"] == "float32"


def test_a_training_that_begins_again_is_read_at_once(caplog):
    tx = optimizer()
    monitor = LossScaleMonitor(tx, every=100)
    with caplog.at_level(logging.INFO, "duotone"):
        monitor(after(tx, []), 500)
        monitor(after(tx, [BAD]), 3)
    assert [line[:6] for line in lines(caplog)] == ["step 5", "step 3"]


class Scalars:
    def __init__(self) -> None:
        self.seen: list[tuple[str, float, int]] = []
        self.flushed = 0

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.seen.append((tag, value, step))

    def flush(self) -> None:
        self.flushed += 1


class FlaxLike:
    def __init__(self) -> None:
        self.seen: list[tuple[str, float, int]] = []

    def scalar(self, tag: str, value: float, step: int) -> None:
        self.seen.append((tag, value, step))


@pytest.mark.parametrize("make", [Scalars, FlaxLike])
def test_scalars_go_to_a_writer(make):
    tx, writer = optimizer(), make()
    monitor = LossScaleMonitor(tx, every=2, writer=writer)
    for step in range(3):
        monitor(after(tx, [BAD]), step)
    assert writer.seen[:4] == [
        ("duotone/loss_scale", 2.0**14, 0),
        ("duotone/good_steps", 0.0, 0),
        ("duotone/skipped_steps", 1.0, 0),
        ("duotone/last_finite", 0.0, 0),
    ]
    assert [step for *_, step in writer.seen] == [0] * 4 + [2] * 4
    monitor.close()
    assert getattr(writer, "flushed", 1) == 1


def test_tensorboard_reads_what_was_written(tmp_path: Path):
    pytest.importorskip("tensorboard")
    tx = optimizer()
    monitor = LossScaleMonitor(tx, every=1, logdir=tmp_path / "new" / "run")
    state = after(tx, [])
    for step in range(3):
        state = after(tx, [BAD], state)
        monitor(state, step)
    monitor.close()
    # In a process of its own: the reader is not free of warnings.
    code = (
        "import sys\n"
        "from tensorboard.backend.event_processing import event_accumulator as ea\n"
        "a = ea.EventAccumulator(sys.argv[1], size_guidance={'tensors': 0}); a.Reload()\n"
        "from tensorboard.util import tensor_util\n"
        "print([(e.step, float(tensor_util.make_ndarray(e.tensor_proto)))"
        " for e in a.Tensors('duotone/loss_scale')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "new" / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[(0, 16384.0), (1, 8192.0), (2, 4096.0)]", done.stderr


def test_without_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'duotone\[tensorboard\]'"):
        LossScaleMonitor(logdir=tmp_path)


def test_one_warning_when_the_scale_is_stuck(caplog):
    tx = optimizer(initial=2.0)
    monitor = LossScaleMonitor(tx, every=1, warn_after=3)
    state = after(tx, [BAD])  # the scale still had somewhere to go
    assert int(state.stuck) == 0
    with caplog.at_level(logging.WARNING, "duotone"):
        for step in range(6):
            state = after(tx, [BAD], state)
            monitor(state, step)
            found = [line for line in lines(caplog, logging.WARNING) if "in a row" in line]
            assert len(found) == (1 if step >= 2 else 0)
        tx.metrics(state)
    (warning,) = [line for line in lines(caplog, logging.WARNING) if "in a row" in line]
    for part in (
        "3 steps in a row",
        "smallest, 1:",
        "duotone.explain(step, ...)",
        "duotone.blame(step, ...)",
        "inputs",
    ):
        assert part in warning
    assert "coming" not in warning, "nothing is promised that does not exist"
    assert "keep_full" in warning


def test_what_the_warning_says_to_read_shows_the_step() -> None:
    """The advice must work for a step that was made through the one line."""
    tx = optimizer()
    weights = jnp.ones((8, 8))

    @jax.jit
    def step(weights: Any, state: Any) -> Any:
        done = tx.minimize(lambda w: jnp.sum((w @ w) ** 2), weights, state)
        return done.params, done.state

    weights, state = step(weights, tx.init(weights))
    seen = duotone.explain(step, weights, state)
    assert seen.summary.allow_half == seen.summary.allow_total == 3


def test_metrics_alone_warn_once_for_each_optimizer(caplog):
    with caplog.at_level(logging.WARNING, "duotone"):
        for _ in range(2):
            tx = optimizer(initial=1.0)
            state = after(tx, [])._replace(stuck=jnp.int32(WARN_AFTER - 1))
            tx.metrics(state)
            assert len(lines(caplog, logging.WARNING)) == _
            state = after(tx, [BAD], state)
            tx.metrics(state)
            tx.metrics(state)
    assert len(lines(caplog, logging.WARNING)) == 2


def test_a_good_step_frees_a_stuck_scale():
    tx = optimizer(initial=1.0)
    state = after(tx, [BAD, BAD])
    assert int(state.stuck) == 2
    assert int(after(tx, [GOOD], state).stuck) == 0


@pytest.mark.parametrize("loss_scale", [8, None])
def test_a_scale_that_never_moves_is_stuck_from_the_first_skip(loss_scale):
    tx = enable(optax.sgd(0.1), loss_scale, dtype="float16")
    assert int(after(tx, [BAD, BAD]).stuck) == 2
    assert tx.metrics(after(tx, [BAD]))["good_steps"] == 0


def test_without_an_optimizer_any_state_is_watched(caplog):
    tx = optax.chain(optax.clip(1.0), enable(optax.sgd(0.1), NoLossScale()))
    monitor = LossScaleMonitor(every=1, warn_after=1)
    state = tx.init(PARAMS)
    _, state = tx.update(BAD, state, PARAMS)
    with caplog.at_level(logging.INFO, "duotone"):
        monitor(state, 0)
    assert len(lines(caplog, logging.WARNING)) == 1


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"every": 0}, ArgumentError, "every is 0; pass at least 1"),
        ({"every": 1.5}, ArgumentTypeError, "every is 1.5; pass a whole number"),
        ({"every": True}, ArgumentTypeError, "every is True; pass a whole number"),
        ({"warn_after": 0}, ArgumentError, "warn_after is 0; pass at least 1"),
        ({"writer": print}, ArgumentTypeError, "writer must have add_scalar"),
        ({"writer": Scalars(), "logdir": "x"}, ArgumentError, "logdir or writer, not both"),
        ({"optimizer": optax.sgd(0.1)}, ArgumentTypeError, "optimizer must be what enable"),
        ({"optimizer": 3}, ArgumentTypeError, "got an int, which has no loss scale"),
    ],
)
def test_refusals(arguments, kind, says):
    with pytest.raises(kind, match=says):
        LossScaleMonitor(**arguments)


def test_refusals_of_a_call():
    tx = optimizer()
    with pytest.raises(ArgumentTypeError, match="step is '3'; pass a whole number"):
        LossScaleMonitor(tx)(after(tx, []), "3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="LossScaleMonitor: the state must be"):
        LossScaleMonitor(tx)(optax.sgd(0.1).init(PARAMS), 0)
    LossScaleMonitor(tx)(after(tx, []), jnp.int32(3))  # a step counter of the training state
