"""Options: warns of settings with which TensorFlow calls no plug-in and runs in float32."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

_DISABLED, _PLUGINS = "disable_meta_optimizer", "use_plugin_optimizers"
_HOOK = "__duotone_options__"
_OFF = 2
"""``RewriterConfig.OFF``."""
logger = logging.getLogger("duotone")


def warn_of_options(tf: Any) -> None:
    """Warns if the options of ``tf.function`` and of Sessions without a config disable plug-ins."""
    if tf.config.optimizer.get_experimental_options().get(_DISABLED):
        _warn("the graphs of this process", f"tf.config.optimizer sets {_DISABLED}=True")


def watch_sessions(tf: Any, is_enabled: Callable[[], bool]) -> None:
    """Warns of each Session whose config disables plug-ins. Later calls do nothing."""
    for kind in (tf.compat.v1.Session, tf.compat.v1.InteractiveSession):
        if not hasattr(kind.__init__, _HOOK):
            kind.__init__ = _watched(kind.__init__, is_enabled)


def _watched(original: Callable[..., None], is_enabled: Callable[[], bool]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        original(self, target, graph, config)
        if config is not None and is_enabled() and (reason := _reason(config)):
            _warn("the graphs of a Session", f"its config sets {reason}")

    setattr(init, _HOOK, True)
    return init


def _reason(config: Any) -> str:
    """Returns the setting of a ``ConfigProto`` that keeps plug-ins from being called, or empty."""
    options = config.graph_options.rewrite_options
    if options.disable_meta_optimizer:
        return f"{_DISABLED}=True"
    return f"{_PLUGINS}=OFF" if options.use_plugin_optimizers == _OFF else ""


def _warn(graphs: str, reason: str) -> None:
    logger.warning(
        "%s are not rewritten and run in float32: %s. Remove this option, or ignore this line.",
        graphs,
        reason,
    )
