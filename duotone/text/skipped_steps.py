"""The log line that steps were skipped, for every optimizer with a loss scale."""

from __future__ import annotations

import logging

from duotone.errors import plural

logger = logging.getLogger("duotone")

_OFTEN = 10
"""The factor by which the skipped steps have grown before they are logged again."""


class SkippedSteps:
    """Counts the skipped steps of one optimizer for its log line."""

    def __init__(self) -> None:
        self._counted = 0

    def count(self, skipped: int, loss_scale: float) -> None:
        """Logs the first skipped step, and again when there are ten times as many.

        Args:
            skipped: the total number of skipped steps.
            loss_scale: the scale in use now.
        """
        if not skipped or skipped < _OFTEN * self._counted:
            return
        self._counted = skipped
        logger.warning(
            "%s skipped, because gradients were not finite: weights stayed as they were, and the "
            "loss scale is now %g. A few are normal while a loss scale comes down to what fits; "
            "optimizer.metrics() counts them.",
            plural(skipped, "step"),
            loss_scale,
        )
