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

from collections.abc import Callable
from pathlib import Path
from typing import Any

from duotone._checks import check_whole
from duotone.errors import ArgumentTypeError, with_article
from duotone.scale.optimizer_state import MixedPrecisionState, check, find, read
from duotone.text.scale_log import ScaleLog, StuckAlarm

_NAME = "LossScaleMonitor"


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
        >>> opt = optax.sgd(0.1)
        >>> opt = duotone.enable_mixed_precision_graph_rewrite(opt, dtype=jnp.float16)
        >>> monitor = duotone.LossScaleMonitor(opt, every=10)
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
            module = type(optimizer).__module__.partition(".")[0].replace("builtins", "")
            kind = with_article(f"{module} {type(optimizer).__name__}".strip())
            raise ArgumentTypeError(
                "LossScaleMonitor: optimizer must be what enable_mixed_precision_graph_rewrite "
                "returned (of an Optax or a Keras optimizer), a duotone.nnx.Optimizer, or None; "
                f"got {kind}, which has no loss scale."
            )
        self._every = check_whole(_NAME, "every", every, 1)
        self._alarm: StuckAlarm = StuckAlarm() if optimizer is None else optimizer.alarm
        self._find: Callable[[Any], MixedPrecisionState] | None
        self._find = getattr(optimizer, "find_state", None)
        if warn_after is not None:
            self._alarm.warn_after = check_whole(_NAME, "warn_after", warn_after, 1)
        self._log = ScaleLog(_NAME, logdir, writer)
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
        step = check_whole(_NAME, "step", step, 0)
        if self._read_at is not None and 0 <= step - self._read_at < self._every:
            return
        self._read_at = step
        own_state = getattr(state, "mixed_precision_state", None)  # NNX and Keras optimizers
        found = find(own_state() if callable(own_state) else state, _NAME)
        reading = check(found, _NAME)
        if self._find is not None:
            reading = read(self._find(found), _NAME)
        self._log.show(reading, step)
        self._alarm.check(reading)

    def close(self) -> None:
        """Flushes the TensorBoard writer."""
        self._log.close()
