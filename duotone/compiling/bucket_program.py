"""The program of one bucket: compiled once, and how the shapes of its results follow the length.

Who calls this: :mod:`duotone.compiling.bucketed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from duotone.jaxpr.reading.signature import Signature, flatten_call


class BucketProgram:
    """The compiled program of one bucket, and what shapes its results have at each length."""

    def __init__(self, fn: Callable[..., Any], size: int) -> None:
        self._size, self._lock = size, threading.Lock()
        self._fn = fn
        self._jitted: dict[Any, Callable[..., Any]] = {}
        self._slopes: list[tuple[tuple[int, ...], tuple[int, ...]]] | None = None
        self._prepared = False

    def prepare(self, shapes: Callable[[int], list[tuple[int, ...]]]) -> None:
        """Finds out how shapes follow the length: so much an index, if they do so evenly."""
        with self._lock:
            if self._prepared:
                return
            size = self._size
            lengths = sorted({size, max(size - 1, 1), max(size // 2 + 1, 1), max(size // 3, 1)})
            at = {length: shapes(length) for length in lengths}
            full, less = at[size], at[max(size - 1, 1)]
            slopes = [
                (new, tuple(a - b for a, b in zip(new, old, strict=True)))
                for new, old in zip(full, less, strict=True)
            ]
            even = all(_at(slopes, size - length) == found for length, found in at.items())
            self._slopes = slopes if even else None
            self._prepared = True

    def shapes_at(
        self, length: int, shapes: Callable[[int], list[tuple[int, ...]]]
    ) -> list[tuple[int, ...]]:
        """The shapes of the results at a length."""
        if self._slopes is None:
            return shapes(length)
        return _at(self._slopes, self._size - length)

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """The results for padded arguments."""
        arrays, signature = flatten_call("bucketed", args, kwargs)
        with self._lock:  # threads that need one program wait for one compilation
            jitted = self._jitted.get(signature)
            if jitted is None:
                program = jax.jit(of_arrays(self._fn, signature))
                jitted = self._jitted[signature] = program.lower(arrays).compile()
        return jitted(arrays)


def of_arrays(fn: Callable[..., Any], signature: Signature) -> Callable[[Sequence[Any]], Any]:
    """The function of the arrays of a call alone; they are its arguments, not constants in it."""

    def program(arrays: Sequence[Any]) -> Any:
        args, kwargs = signature.restore(arrays)
        return fn(*args, **kwargs)

    return program


def _at(slopes: Sequence[tuple[Any, Any]], less: int) -> list[tuple[int, ...]]:
    return [tuple(d - less * s for d, s in zip(full, slope, strict=True)) for full, slope in slopes]
