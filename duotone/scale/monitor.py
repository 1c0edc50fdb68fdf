"""Monitors a training: the loss scale in logs and TensorBoard, and one warning if it is stuck.

::

    monitor = LossScaleMonitor(logdir="runs/1")
    for step, batch in enumerate(batches):
        params, opt_state = train_step(params, opt_state, batch)
        monitor(opt_state, step)

An NNX or Keras optimizer contains its state: ``monitor(optimizer, step)``. The monitor reads the
state once in `every` steps, because reading waits for the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from duotone.errors import (
    ArgumentError,
    ArgumentTypeError,
    MissingExtraError,
    kind_of,
    plural,
    with_article,
)
from duotone.scale.optimizer_state import MixedPrecisionState, Reading, check, find, read
from duotone.text.skipped_steps import SkippedSteps

logger = logging.getLogger("duotone")

SKIPPED_IN_VAIN = 10
"""The number of skipped steps, not in a row, that triggers a warning if the scale cannot fall."""

WARN_AFTER = 50
"""The number of consecutive steps skipped at the smallest scale that triggers the warning. A good
run skips none there: falling from 2**24 takes 24 skipped steps, and at the floor the scale can no
longer be the cause."""


class StuckAlarm(SkippedSteps):
    """The warnings of an optimizer: steps that are skipped, and losses that are not finite.

    It warns once if many consecutive steps are skipped at the smallest scale. It also warns once,
    earlier, of losses that are not finite, or of skipped steps with good steps between them.

    Args:
        warn_after: the number of consecutive skipped steps.
        ask: returns a sentence that names the operation to blame, or an empty string.
    """

    def __init__(self, warn_after: int = WARN_AFTER, ask: Callable[[], str] = lambda: "") -> None:
        super().__init__()
        self.warn_after = warn_after
        self._ask = ask
        self._rung = self._warned_of_some = False

    def check(self, reading: Reading) -> None:
        """Warns if the limit is reached and it has not warned before."""
        if self._rung or reading.stuck < self.warn_after:
            self._warn_of_some(reading)
            return
        self._rung = True
        logger.warning(
            "%s in a row %s skipped with the loss scale at its smallest, %g: the gradients "
            "are not finite for a reason that scaling cannot fix, and nothing is learnt. %s"
            "duotone.blame(step, ...) with the arguments of one step names the operation. "
            "Look for NaN in the inputs and parameters; run the step without duotone; read "
            "duotone.explain(step, ...) with the arguments of one step, which shows what is half "
            "in it and why, also inside of what the optimizer rewrites; and keep suspicious parts "
            "in float32 with duotone.keep_full().",
            plural(reading.stuck, "step"),
            "was" if reading.stuck == 1 else "were",
            reading.loss_scale,
            self._ask(),
        )

    @property
    def said(self) -> bool:
        """True if it has warned of skipped steps or losses, which it does only once."""
        return self._warned_of_some

    def lost(self, batches: int) -> None:
        """Warns of losses that are not finite, unless it warned of skipped steps before.

        Args:
            batches: how many batches had such a loss.
        """
        if not batches or self._warned_of_some:
            return
        self._warned_of_some = True
        logger.warning(
            "the loss of %s in this epoch was not finite. The loss scale is not the reason, and "
            "float32 may not be finite there either. %sduotone.keras.blame(model, x, y) with such "
            "a batch says whether it is.",
            f"{batches} batch{'' if batches == 1 else 'es'}",
            self._ask(),
        )

    def _warn_of_some(self, reading: Reading) -> None:
        if self._rung or self._warned_of_some or reading.skipped_steps < SKIPPED_IN_VAIN:
            return
        if not (reading.smallest and reading.last_finite):
            return
        self._warned_of_some = True
        logger.warning(
            "%d steps were skipped and the loss scale can fall no more, it is %g: some batches "
            "give gradients that are not finite for a reason that scaling cannot fix. %s"
            "duotone.blame(step, ...) with the arguments of such a step names the operation.",
            reading.skipped_steps,
            reading.loss_scale,
            self._ask(),
        )


class LossScaleMonitor:
    """Logs the loss scale when it changes, and writes it to TensorBoard.

    The logger ``"duotone"`` gets one line at level INFO with the scale and the number of steps
    skipped since the last line. If nothing changed, nothing is logged.

    Args:
        optimizer: the mixed-precision optimizer, of Optax, NNX or Keras. The monitor and
            ``opt.metrics`` then share one warning. With None, the monitor accepts any state and
            shows the loss scale in it, even if the optimizer does not use it.
        every: steps between two readings.
        logdir: a folder for TensorBoard, created if it does not exist; needs ``tensorboard``.
        writer: instead of `logdir`, an object with ``add_scalar(tag, value, step)`` (PyTorch's
            and TensorBoard's writers) or ``scalar(tag, value, step)`` (Flax's).
        warn_after: the number of consecutive steps skipped at the smallest scale that triggers the
            warning; 50 if omitted.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: `every` or `warn_after` below 1, or both `logdir` and `writer`.
        MissingExtraError: `logdir` without TensorBoard installed.

    Example:
        >>> import jax.numpy as jnp, optax, duotone
        >>> from duotone.adapters.optax import wrap
        >>> from duotone.scale.monitor import LossScaleMonitor
        >>> opt = wrap(optax.sgd(0.1), dtype=jnp.float16)
        >>> monitor = LossScaleMonitor(opt, every=10)
        >>> monitor(opt.init(jnp.ones(2)), step=0)
    """

    def __init__(
        self,
        optimizer: Any = None,
        every: int = 100,
        logdir: str | Path | None = None,
        writer: Any = None,
        warn_after: int | None = None,
    ) -> None:
        if optimizer is not None and not isinstance(getattr(optimizer, "alarm", None), StuckAlarm):
            module = type(optimizer).__module__.partition(".")[0]
            raise ArgumentTypeError(
                "LossScaleMonitor: optimizer must be what enable_mixed_precision_graph_rewrite "
                "returned (of an Optax or a Keras optimizer), a duotone.nnx.Optimizer, or None; "
                f"got {with_article(f'{module} {type(optimizer).__name__}')}, which has no loss "
                "scale."
            )
        self._every = _positive("every", every)
        self._alarm: StuckAlarm = StuckAlarm() if optimizer is None else optimizer.alarm
        self._find: Callable[[Any], MixedPrecisionState] | None
        self._find = getattr(optimizer, "find_state", None)
        if warn_after is not None:
            self._alarm.warn_after = _positive("warn_after", warn_after)
        self._write, self._flush = _scalar_writer(logdir, writer)
        self._seen: Reading | None = None
        self._read_at: int | None = None

    def __call__(self, state: Any, step: int) -> None:
        """Reads the state, unless it did so less than `every` steps ago.

        Args:
            state: the optimizer's state, a state that contains it, or an NNX or Keras optimizer;
                outside compiled functions.
            step: the number of the step, for logs and the horizontal axis of TensorBoard.

        Raises:
            ArgumentTypeError: `step` is not a whole number, or `state` contains no loss scale.
            ArgumentError: the loss scale of `state` is NaN, infinite or out of its bounds.
        """
        step = _whole("step", step)
        if self._read_at is not None and 0 <= step - self._read_at < self._every:
            return
        self._read_at = step
        own_state = getattr(state, "mixed_precision_state", None)  # NNX and Keras optimizers
        found = find(own_state() if callable(own_state) else state, "LossScaleMonitor")
        reading = check(found, "LossScaleMonitor")
        if self._find is not None:
            reading = read(self._find(found), "LossScaleMonitor")
        self._log(reading, step)
        if self._write is not None:
            for name, number in reading.metrics().items():
                self._write(f"duotone/{name}", float(number), step)
        self._alarm.check(reading)

    def close(self) -> None:
        """Flushes the TensorBoard writer."""
        if self._flush is not None:
            self._flush()

    def _log(self, reading: Reading, step: int) -> None:
        before, self._seen = self._seen, reading
        skipped = reading.skipped_steps - (0 if before is None else before.skipped_steps)
        changed = before is None or before.loss_scale != reading.loss_scale
        if changed or skipped:
            logger.info(
                "step %d: loss scale %g, %s skipped since the last line, %d in all",
                step,
                reading.loss_scale,
                plural(skipped, "step"),
                reading.skipped_steps,
            )


def _positive(name: str, number: Any) -> int:
    whole = _whole(name, number)
    if whole < 1:
        raise ArgumentError(f"LossScaleMonitor: {name} must be at least 1 step; got {number}.")
    return whole


def _whole(name: str, number: Any) -> int:
    try:
        if isinstance(number, bool):
            raise TypeError  # noqa: TRY301
        return int(number.__index__())
    except (AttributeError, TypeError) as error:
        raise ArgumentTypeError(
            f"LossScaleMonitor: {name} must be a whole number of steps; got {number!r} of type "
            f"{type(number).__name__}."
        ) from error


def _scalar_writer(
    logdir: Any, writer: Any
) -> tuple[Callable[[str, float, int], Any] | None, Callable[[], Any] | None]:
    """Returns the function that writes one scalar, and the one that flushes."""
    if logdir is not None and writer is not None:
        raise ArgumentError("LossScaleMonitor: give logdir or writer, not both.")
    if logdir is not None:
        return _tensorboard(Path(logdir))
    if writer is None:
        return None, None
    for method in ("add_scalar", "scalar"):
        if callable(getattr(writer, method, None)):
            return getattr(writer, method), getattr(writer, "flush", None)
    raise ArgumentTypeError(
        "LossScaleMonitor: writer must have add_scalar(tag, value, step) or scalar(tag, value, "
        f"step), as TensorBoard's writers have; got {kind_of(writer)}."
    )


def _tensorboard(
    logdir: Path,
) -> tuple[Callable[[str, float, int], Any], Callable[[], Any]]:
    """TensorBoard's own writer, which does not need TensorFlow."""
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise MissingExtraError(
            "LossScaleMonitor(logdir=...)", "tensorboard", "tensorboard"
        ) from error
    scalars = Writer(str(logdir))
    return scalars.add_scalar, scalars.flush
