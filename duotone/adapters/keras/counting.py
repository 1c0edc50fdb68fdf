"""Makes ``fit`` log that steps were skipped.

Keras only shows ``loss: nan``. This module wraps the function that Keras makes of a training step.
It reads the count of skipped steps from the returned variables after calls 1, 2, 4, 8, …, because
reading waits for the device.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any


def counting(model: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a training function that counts skipped steps for the alarm of the optimizer.

    Args:
        model: the model.
        run: the function, ``(state, data) -> (logs, state)``; the third part of the state holds the
            optimizer's variables.
    """
    calls = itertools.count(1)

    @functools.wraps(run)
    def counted(*args: Any, **kwargs: Any) -> Any:
        logs, state = run(*args, **kwargs)
        number = next(calls)
        if number & (number - 1) == 0:
            _count(model.optimizer, state[2])
        return logs, state

    return counted


def _count(optimizer: Any, values: Any) -> None:
    alarm, skipped = getattr(optimizer, "alarm", None), getattr(optimizer, "skipped", None)
    if alarm is None or skipped is None or len(values) != len(optimizer.variables):
        return
    found = {id(v): value for v, value in zip(optimizer.variables, values, strict=True)}
    loss_scale, count = found[id(optimizer.dynamic_scale)], int(found[id(skipped)])
    if count:
        alarm.count(count, float(loss_scale))
