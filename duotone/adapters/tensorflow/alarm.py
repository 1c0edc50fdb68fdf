"""The warnings about a loss scale on TensorFlow, which point to ``compare_step``."""

from __future__ import annotations

import logging

from duotone.text.scale_log import StuckAlarm

logger = logging.getLogger("duotone")


class TensorFlowAlarm(StuckAlarm):
    """Warns as on JAX, and names the remedy on TensorFlow."""

    _REMEDIES = (
        "Look for NaN in the inputs and weights; train without duotone; read "
        "duotone.tensorflow.explain_last(), which shows what is half and why; let "
        "duotone.tensorflow.compare_step(tf.function(model.train_step), (x, y)) name the first "
        "value that only half loses, and keep it in float32 with Policy(keep_full=...)."
    )
    _OF_SUCH_A_STEP = (
        "Look for NaN and infinity in the inputs of such a step; duotone.tensorflow.compare_step "
        "names the first value that only half loses."
    )

    def lost(self, batches: int) -> None:
        """Warns of losses that are not finite, unless it warned of skipped steps before.

        Args:
            batches: how many batches had such a loss. Keras' mean of an epoch stays NaN after one,
                so the number is not shown.
        """
        if not batches or self._warned_of_some:
            return
        self._warned_of_some = True
        logger.warning(
            "the loss of this epoch was not finite. The loss scale is not the reason, and float32 "
            "may not be finite there either: duotone.tensorflow.compare_step(tf.function("
            "model.train_step), (x, y)) compares both."
        )
