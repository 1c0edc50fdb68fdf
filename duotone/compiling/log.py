"""Logs a line for each compilation: its time and the running total.

TensorFlow does this with ``TF_CPP_VMODULE=xla_compilation_cache=1``. Here the lines come from the
events of ``jax.monitoring``.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Any

from duotone._checks import check_switch

logger = logging.getLogger("duotone")

MODULE = "xla_compilation_cache"
_EVENT = "/jax/core/compile/backend_compile_duration"


class _Log:
    """Counts compilations; there is one, since JAX keeps its listeners."""

    def __init__(self) -> None:
        self.listening = self.enabled = False
        self.count, self.seconds = 0, 0.0
        self._lock = threading.Lock()

    def on_event(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        """Logs a line if a program was compiled (or taken from the persistent cache)."""
        if event != _EVENT or not self.enabled:
            return
        with self._lock:
            self.count += 1
            self.seconds += duration_secs
            count, total = self.count, self.seconds
        name = kwargs.get("fun_name", "a program")
        logger.info(
            "compiled %s in %.3f s; %d programs in %.3f s so far", name, duration_secs, count, total
        )


_LOG = _Log()


def log_compilations(enabled: bool = True) -> None:
    """Logs the time of each later compilation and the running total, on the logger ``duotone``.

    For a program from JAX's persistent cache, this is the time to load it. Further calls change
    nothing.

    Args:
        enabled: ``False`` stops logging; the running total is kept.

    Raises:
        ArgumentTypeError: ``enabled`` is neither True nor False.

    Example:
        >>> import duotone
        >>> duotone.log_compilations()
        >>> duotone.log_compilations(False)
    """
    import jax.monitoring

    check_switch("log_compilations", "enabled", enabled)
    _LOG.enabled = enabled
    if enabled and not _LOG.listening:
        _LOG.listening = True
        jax.monitoring.register_event_duration_secs_listener(_LOG.on_event)


def asks_for_log(vmodule: str) -> bool:
    """Returns True if a value of ``TF_CPP_VMODULE`` asks for these lines.

    Example:
        >>> asks_for_log("auto_mixed_precision=2,xla_compilation_cache=1")
        True
    """
    levels = re.findall(rf"(?:^|,)\s*{MODULE}\s*=\s*(\d+)", vmodule)
    return bool(levels) and int(levels[-1]) >= 1
