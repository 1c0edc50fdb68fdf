"""Pauses garbage collection while a program is read and rewritten."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_FROZEN_BY_PYTHON = 1_000
"""The most objects that Python itself freezes. A user's ``gc.freeze()`` freezes all objects: many
times as many once JAX is loaded."""


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses garbage collection.

    Tracing and rewriting make hundreds of thousands of small objects that stay alive. They trigger
    full collections of JAX's heap, which take a third of the rewriting time of a GPT-2 step
    (``benchmarks/rewrite_cost.py``). Afterwards this moves the objects to the oldest generation.
    The next two collections would do the same after visiting them all and freeing none.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_freeze_count() < _FROZEN_BY_PYTHON:  # keeps what a user froze
                gc.freeze()
                gc.unfreeze()
            gc.enable()
