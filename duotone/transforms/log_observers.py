"""Who hears the line that is said of a function when it is first rewritten, besides the log.

The Keras adapter listens while a step is traced, so that its callback can show the line: few turn
level INFO of the logger on. Called by :mod:`duotone.transforms.mixed_function`, which makes the
line. Nothing here raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_observer: ContextVar[Callable[[str], None] | None] = ContextVar("observer", default=None)


@contextlib.contextmanager
def heard_by(hear: Callable[[str], None]) -> Iterator[None]:
    """Hands the line about each function that is first rewritten inside to a function.

    Args:
        hear: takes the line.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> with heard_by(lambda line: print(line.partition(" on ")[0])):
        ...     y = duotone.autocast(jnp.dot, dtype="bfloat16")(jnp.ones(3), jnp.ones(3))
        dot: bfloat16
    """
    token = _observer.set(hear)
    try:
        yield
    finally:
        _observer.reset(token)


def observer() -> Callable[[str], None] | None:
    """Who listens now."""
    return _observer.get()
