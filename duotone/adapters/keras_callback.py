"""The callback that shows the loss scale while a Keras model trains, on JAX and TensorFlow."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from duotone._checks import check_whole, path_of
from duotone.adapters.keras_checks import optimizers_of
from duotone.errors import ArgumentError
from duotone.text.scale_log import WARN_AFTER, ScaleLog, StuckAlarm

logger = logging.getLogger("duotone")

FIRST_LINES: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""By model, the line that was logged when its training step was first rewritten."""


class LossScaleCallback(keras.callbacks.Callback):
    """Puts the loss scale and the number of skipped steps into the logs of each epoch.

    The logs have ``loss_scale`` and the total ``skipped_steps``. So ``History``, ``CSVLogger`` and,
    if TensorFlow is installed, ``keras.callbacks.TensorBoard`` show them if they come after this
    callback. The logger ``duotone`` gets a line (level INFO) when the numbers change, and one
    warning if many consecutive steps are skipped at the smallest scale: then the loss itself or a
    weight is not finite.

    After the first step it prints one line to standard error (unless the logger ``duotone`` already
    shows level INFO): the half type, the device, how many operations and FLOPs are half, and which
    operations do not gain here and why.

    With several wrapped optimizers in one model, each name starts with the name of its optimizer.

    Args:
        warn_after: the number of consecutive steps skipped at the smallest scale that triggers the
            warning. Falling from the first scale to 1 takes 15 more skipped steps.
        logdir: a folder for TensorBoard; needs ``tensorboard``, but not TensorFlow.
        writer: instead of `logdir`, an object with ``add_scalar(tag, value, step)`` or
            ``scalar(tag, value, step)``.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: `warn_after` is below 1, or both `logdir` and `writer` are given. In ``fit``:
            the model has no wrapped optimizer.
        MissingExtraError: in ``fit``: `logdir` without TensorBoard installed.

    Example:
        >>> from duotone.keras import LossScaleCallback
        >>> callback = LossScaleCallback(warn_after=10)
    """

    def __init__(
        self,
        warn_after: int = WARN_AFTER,
        *,
        logdir: str | Path | None = None,
        writer: Any = None,
    ) -> None:
        super().__init__()
        logdir = None if logdir is None else path_of(_NAME, "logdir", logdir)
        if logdir is None or writer is not None:
            ScaleLog(_NAME, logdir, writer)  # checks the arguments now
        self._warn_after = check_whole(_NAME, "warn_after", warn_after, 1)
        self._logdir, self._writer = logdir, writer
        self._logs: dict[str, ScaleLog] = {}
        self._shown = False
        self._not_finite: Any = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reads the loss scale before the first step."""
        model: Any = self.model
        optimizers = _wrapped_optimizers(model)
        if not optimizers:
            raise ArgumentError(
                f"LossScaleCallback: model {model.name!r} has no optimizer that duotone wrapped; "
                "compile it with duotone.enable_mixed_precision_graph_rewrite(optimizer), or leave "
                "the callback out"
            )
        for optimizer in optimizers:
            if optimizer.name not in self._logs:
                self._logs[optimizer.name] = self._log_of(optimizer, len(optimizers))
            optimizer.alarm.warn_after = self._warn_after
            self._show(optimizer)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Resets the count of losses that are not finite."""
        self._not_finite = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts losses that are not finite; after the first step, prints how the step runs."""
        loss = (logs or {}).get("loss")
        alarm = getattr(getattr(self.model, "optimizer", None), "alarm", None)
        if loss is not None and not (alarm and alarm.said):  # on the device, without waiting for it
            finite = keras.ops.isfinite(loss)
            self._not_finite = self._not_finite + keras.ops.sum(keras.ops.where(finite, 0, 1))
        if self._shown:
            return
        self._shown = True
        line = FIRST_LINES.get(self.model)
        if line and not logger.isEnabledFor(logging.INFO):
            sys.stderr.write(f"\nduotone: {line}\n")  # on a new line after the progress bar

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds to the logs, and logs changes."""
        optimizers = _wrapped_optimizers(self.model)
        if len(optimizers) == 1 and optimizers[0].half is not None:
            optimizers[0].alarm.lost(int(self._not_finite))
        for optimizer in optimizers:
            metrics = optimizer.metrics()
            prefix = f"{optimizer.name}_" if len(optimizers) > 1 else ""
            if logs is not None:
                logs[f"{prefix}loss_scale"] = metrics["loss_scale"]
                logs[f"{prefix}skipped_steps"] = metrics["skipped_steps"]
            self._show(optimizer)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Flushes the TensorBoard writers."""
        for log in self._logs.values():
            log.close()

    def _show(self, optimizer: Any) -> None:
        reading = optimizer.reading()
        self._logs[optimizer.name].show(reading, optimizer.steps)
        optimizer.alarm.check(reading)

    def _log_of(self, optimizer: Any, count: int) -> ScaleLog:
        logdir = self._logdir
        if logdir is not None and count > 1:
            logdir = logdir / optimizer.name  # one TensorBoard run for each
        return ScaleLog(_NAME, logdir, self._writer)


_NAME = "LossScaleCallback"


def counted(run: Callable[..., Any], look: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns a training function that logs skipped steps, since Keras shows ``loss: nan`` alone.

    Args:
        run: the function that Keras made.
        look: reads the count, given the result of calls 1, 2, 4, 8, …: reading waits for the
            device.
    """
    calls = itertools.count(1)

    @functools.wraps(run, updated=())
    def counting(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        number = next(calls)
        if number & (number - 1) == 0:
            look(result)
        return result

    return counting


def _wrapped_optimizers(model: Any) -> list[Any]:
    """Returns the optimizers of a model that duotone wrapped, each once."""
    found = {id(one): one for one in optimizers_of(model)}.values()
    return [one for one in found if isinstance(getattr(one, "alarm", None), StuckAlarm)]
