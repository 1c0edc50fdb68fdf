"""Observers of the line that is logged when a function is first rewritten.

The Keras adapter observes while a step is traced, so that its callback can show the line: few users
enable level INFO of the logger.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

observer: ContextVar[Callable[[str], None] | None] = ContextVar("observer", default=None)
"""The current observer, or ``None``."""


@contextlib.contextmanager
def heard_by(hear: Callable[[str], None]) -> Iterator[None]:
    """Passes the line about each function that is first rewritten in this context to a function.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> with heard_by(lambda line: print(line.partition(" on ")[0])):
        ...     y = duotone.autocast(jnp.dot, dtype="bfloat16")(jnp.ones(3), jnp.ones(3))
        dot: bfloat16
    """
    token = observer.set(hear)
    try:
        yield
    finally:
        observer.reset(token)
