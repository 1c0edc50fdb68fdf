"""Puts CPython's work on memory off while a program is traced and rewritten.

Two habits of the interpreter cost tracing dearly, and both are put off for its time: garbage
collection, and the pieces in which CPython keeps the frames of running functions.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

_FROZEN_BY_PYTHON = 1_000
"""Objects that Python itself freezes at most. Who calls ``gc.freeze`` freezes all there are, many
times as many once JAX is loaded."""

_FRAME_WORDS = 2**15 + 1
"""Size of the frame of :func:`with_long_stack`, in words of 8 bytes. CPython doubles a piece until
the frame fits, so that one word above a power of two leaves as much again for the frames after it:
256 KiB, 32 words for each of the 1000 calls that Python lets stand inside each other."""


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses garbage collection.

    Tracing and rewriting make hundreds of thousands of small objects that live on, so that full
    collections of all of JAX's heap fall into them: a third of the rewriting time of a GPT-2 step
    (``benchmarks/rewrite_cost.py``). Afterwards they are handed to the oldest generation, where
    the next two collections would bring them, having looked at them all and found nothing to free.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_freeze_count() < _FROZEN_BY_PYTHON:  # what a user froze stays so
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def with_long_stack(function: Callable[[], _T]) -> _T:
    """``function()``, with the frames of all that it calls in one piece of memory.

    CPython keeps frames in pieces of 16 KiB (``DATA_STACK_CHUNK_SIZE`` in its ``pystate.c``, from
    3.11 on). It takes a piece when the last one is full and gives it back as soon as it is empty.
    Calls in a loop that stands at the edge of a piece therefore ask the operating system for memory
    each time: tracing a GPT-2 step takes up to 1.6 times as long at one depth of the stack as at
    another (``benchmarks/NOTES.md``). The frame of this function is larger than a piece; the one
    that CPython takes for it has room for those that follow.
    """
    return function()


with_long_stack.__code__ = with_long_stack.__code__.replace(co_stacksize=_FRAME_WORDS)
