"""Postpones CPython's memory management while a program is traced and rewritten.

Two habits of CPython make tracing slow, and this module avoids both: garbage collection, and the
small chunks in which CPython keeps the frames of running functions.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

_FROZEN_BY_PYTHON = 1_000
"""The most objects that Python itself freezes. A user's ``gc.freeze()`` freezes all objects: many
times as many once JAX is loaded."""

_FRAME_WORDS = 2**15 + 1
"""Size of the frame of :func:`with_long_stack`, in words of 8 bytes. CPython doubles a chunk until
the frame fits. One word above a power of two therefore leaves the same size free for later frames:
256 KiB, or 32 words for each of the 1000 nested calls that Python allows."""


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


def with_long_stack(function: Callable[[], _T]) -> _T:
    """Calls ``function()`` with the frames of all nested calls in one chunk of memory.

    CPython keeps frames in chunks of 16 KiB (``DATA_STACK_CHUNK_SIZE`` in its ``pystate.c``, from
    3.11 on). It allocates a chunk when the last one is full and frees it as soon as it is empty.
    If a loop runs at the edge of a chunk, each of its calls asks the operating system for memory:
    tracing a GPT-2 step takes up to 1.6 times as long at one stack depth as at another
    (``benchmarks/NOTES.md``). The frame of this function is larger than a chunk, so CPython
    allocates a chunk that also has room for the frames that follow.
    """
    return function()


with_long_stack.__code__ = with_long_stack.__code__.replace(co_stacksize=_FRAME_WORDS)
