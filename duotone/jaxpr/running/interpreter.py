"""Avoids the small chunks in which CPython keeps the frames of running functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

_FRAME_WORDS = 2**15 + 1
"""Size of the frame of :func:`with_long_stack`, in words of 8 bytes. CPython doubles a chunk until
the frame fits. One word above a power of two therefore leaves the same size free for later frames:
256 KiB, or 32 words for each of the 1000 nested calls that Python allows."""


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
