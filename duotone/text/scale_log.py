"""The log of a loss scale: its numbers, their lines and curves, and the warnings about them.

It needs no JAX and no TensorFlow, so all wrapped optimizers share it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from duotone._checks import path_of
from duotone._files import prepare_folder
from duotone.errors import ArgumentError, ArgumentTypeError, MissingExtraError, kind_of, plural

logger = logging.getLogger("duotone")


class Reading(NamedTuple):
    """The state of a loss scale as Python numbers.

    Attributes:
        loss_scale: the scale.
        good_steps: finite steps since it last changed or a step was skipped.
        skipped_steps: the total number of skipped steps.
        last_finite: whether the last step was taken.
        stuck: consecutive skipped steps after which the scale did not fall.
        smallest: whether a skipped step would not lower the scale.
    """

    loss_scale: float
    good_steps: int
    skipped_steps: int
    last_finite: bool
    stuck: int
    smallest: bool

    def metrics(self) -> dict[str, float | int | bool]:
        """Returns the numbers for logs, by name: all except the last two."""
        return {name: self._asdict()[name] for name in self._fields[:4]}


SKIPPED_IN_VAIN = 10
"""The number of skipped steps, not in a row, that triggers a warning if the scale cannot fall."""

_OFTEN = 10
"""The factor by which the skipped steps have grown before they are logged again."""

WARN_AFTER = 50
"""The number of consecutive steps skipped at the smallest scale that triggers the warning. A good
run skips none there: falling from 2**24 takes 24 skipped steps, and at the floor the scale can no
longer be the cause."""


class StuckAlarm:
    """The warnings of an optimizer: steps that are skipped, and losses that are not finite.

    It warns once if many consecutive steps are skipped at the smallest scale. It also warns once,
    earlier, of losses that are not finite, or of skipped steps with good steps between them.

    Args:
        ask: returns a sentence that names the operation to blame, or an empty string.
    """

    _REMEDIES = (
        "duotone.blame(step, ...) with the arguments of one step names the operation. Look for NaN "
        "in the inputs and parameters; run the step without duotone; read duotone.explain(step, "
        "...) with the arguments of one step, which shows what is half in it and why, also inside "
        "of what the optimizer rewrites; and keep suspicious parts in float32 with "
        "duotone.keep_full()."
    )
    _OF_SUCH_A_STEP = (
        "duotone.blame(step, ...) with the arguments of such a step names the operation."
    )

    def __init__(self, ask: Callable[[], str] = lambda: "") -> None:
        self.warn_after = WARN_AFTER
        self._ask = ask
        self._rung = self._warned_of_some = False
        self._counted = 0

    def count(self, skipped: int, loss_scale: float | None) -> None:
        """Logs the first skipped step, and again when there are ten times as many.

        Args:
            skipped: the total number of skipped steps.
            loss_scale: the scale in use now; None if nothing is scaled.
        """
        if not skipped or skipped < _OFTEN * self._counted:
            return
        self._counted = skipped
        now = (
            f"weights stayed as they were, and the loss scale is now {loss_scale:g}. A few are "
            "normal while a loss scale comes down to what fits"
            if loss_scale is not None
            else "weights stayed as they were. No loss scale is the reason, so look for NaN and "
            "infinity in the inputs of such a step"
        )
        logger.warning(
            "%s skipped, because gradients were not finite: %s; optimizer.metrics() counts them.",
            plural(skipped, "step"),
            now,
        )

    def check(self, reading: Reading) -> None:
        """Warns if the limit is reached and it has not warned before."""
        if self._rung or reading.stuck < self.warn_after:
            self._warn_of_some(reading)
            return
        self._rung = True
        logger.warning(
            "%s in a row %s skipped with the loss scale at its smallest, %g: the gradients "
            "are not finite for a reason that scaling cannot fix, and nothing is learnt. %s%s",
            plural(reading.stuck, "step"),
            "was" if reading.stuck == 1 else "were",
            reading.loss_scale,
            self._ask(),
            self._REMEDIES,
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
            "give gradients that are not finite for a reason that scaling cannot fix. %s%s",
            reading.skipped_steps,
            reading.loss_scale,
            self._ask(),
            self._OF_SUCH_A_STEP,
        )


class ScaleLog:
    """Logs a loss scale when it changes, and writes it to TensorBoard.

    Args:
        who: the name of the class that the user called, for errors.
        logdir: a folder for TensorBoard, created if it does not exist; needs ``tensorboard``.
        writer: instead of `logdir`, an object with ``add_scalar(tag, value, step)`` or
            ``scalar(tag, value, step)``.

    Raises:
        ArgumentTypeError: `writer` has neither method.
        ArgumentError: both `logdir` and `writer` are given.
        MissingExtraError: `logdir` without TensorBoard installed.
    """

    def __init__(self, who: str, logdir: str | Path | None = None, writer: Any = None) -> None:
        self._write, self._flush = _scalar_writer(who, logdir, writer)
        self._seen: Reading | None = None

    def show(self, reading: Reading, step: int) -> None:
        """Logs what changed since the last reading, and writes all numbers.

        Args:
            reading: the numbers now.
            step: the number of the step.
        """
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
        if self._write is not None:
            for name, number in reading.metrics().items():
                self._write(f"duotone/{name}", float(number), step)

    def close(self) -> None:
        """Flushes the TensorBoard writer."""
        if self._flush is not None:
            self._flush()


def _scalar_writer(
    who: str, logdir: Any, writer: Any
) -> tuple[Callable[[str, float, int], Any] | None, Callable[[], Any] | None]:
    """Returns the function that writes one scalar, and the one that flushes."""
    if logdir is not None and writer is not None:
        raise ArgumentError(f"{who}: give logdir or writer, not both.")
    if logdir is not None:
        return _tensorboard(who, path_of(who, "logdir", logdir))
    if writer is None:
        return None, None
    for method in ("add_scalar", "scalar"):
        if callable(getattr(writer, method, None)):
            return getattr(writer, method), getattr(writer, "flush", None)
    raise ArgumentTypeError(
        f"{who}: writer must have add_scalar(tag, value, step) or scalar(tag, value, "
        f"step), as TensorBoard's writers have; got {kind_of(writer)}."
    )


def _tensorboard(
    who: str, logdir: Path
) -> tuple[Callable[[str, float, int], Any], Callable[[], Any]]:
    """TensorBoard's own writer, which does not need TensorFlow."""
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise MissingExtraError(f"{who}(logdir=...)", "tensorboard", "tensorboard") from error
    scalars = Writer(str(prepare_folder(logdir)))
    return scalars.add_scalar, scalars.flush
