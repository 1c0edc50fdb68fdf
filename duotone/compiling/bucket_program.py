"""The programs of buckets, each compiled once, and their result shapes by length."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from duotone.compiling.background_compile import Pending
from duotone.jaxpr.reading.signature import Results, Signature, flatten_results
from duotone.jaxpr.running.own_jit import own_jit

Shapes = list[tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class BucketCounts:
    """How often a bucketed function was compiled.

    Attributes:
        calls: calls outside of traces.
        compiles: compiled programs; one from the background counts once calls use it.
        hits: calls that found their program.
        larger: calls that ran in a larger bucket, because their own was not compiled yet.
        evictions: programs dropped because there were too many.
        programs: programs in the cache now.
    """

    calls: int
    compiles: int
    hits: int
    larger: int
    evictions: int
    programs: int


class BucketProgram:
    """The program of one bucket."""

    def __init__(self, size: int) -> None:
        self.size, self.ready = size, False
        self._lock = threading.Lock()
        self._run: Callable[..., Any] | None = None
        self._slopes: list[tuple[tuple[int, ...], tuple[int, ...]]] | None = None

    def compile(self, lowered: Callable[[], Any], shapes: Callable[[int], Shapes]) -> None:
        """Compiles it, unless it is compiled.

        Args:
            lowered: traces the function for the arrays of a padded call.
            shapes: the shapes of the results at a length.
        """
        with self._lock:  # threads that need one program wait for one compilation
            if not self.ready:
                self.prepare(shapes)
                self.finish(lowered().compile())

    def prepare(self, shapes: Callable[[int], Shapes]) -> None:
        """Finds how the result shapes depend on the length, if they do so linearly."""
        size = self.size
        lengths = sorted({size, max(size - 1, 1), max(size // 2 + 1, 1), max(size // 3, 1)})
        try:
            at = {length: shapes(length) for length in lengths}
        except Exception:
            return  # the function accepts only some lengths: each call traces for its own shapes
        full, less = at[size], at[max(size - 1, 1)]
        slopes = [
            (new, tuple(a - b for a, b in zip(new, old, strict=True)))
            for new, old in zip(full, less, strict=True)
        ]
        even = all(_at(slopes, size - length) == found for length, found in at.items())
        self._slopes = slopes if even else None

    def finish(self, compiled: Callable[..., Any]) -> None:
        """Sets the compiled program."""
        self._run, self.ready = compiled, True

    def shapes_at(self, length: int, shapes: Callable[[int], Shapes]) -> Shapes:
        """Returns the shapes of the results at a length."""
        if self._slopes is None or length == 0:  # `prepare` did not check length 0
            return shapes(length)
        return _at(self._slopes, self.size - length)

    def __call__(self, arrays: Sequence[Any]) -> tuple[list[Any], Results]:
        """Returns the arrays among the results of a padded call, and the rest."""
        assert self._run is not None
        return self._run(arrays)


class Programs:
    """The cached programs of a function, and the one that is compiled in the background."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[Any, BucketProgram] = collections.OrderedDict()
        # submitted to the background; the compilation may have failed
        self._asked: set[Any] = set()
        self._busy = threading.Semaphore()
        self._pending: Pending | None = None
        self._counts = dict.fromkeys(("calls", "compiles", "hits", "larger", "evictions"), 0)

    @property
    def counts(self) -> BucketCounts:
        """Compiles and hits until now."""
        with self._lock:
            return BucketCounts(**self._counts, programs=len(self._kept))

    def of(self, key: Any, size: int, *, larger: bool = False) -> BucketProgram:
        """Returns the program of a call; a new one if there is none."""
        with self._lock:
            self._counts["calls"] += 1
            program = self._kept.get(key)
            if program is None:
                program = self._keep(key, BucketProgram(size))
            else:
                self._counts["larger" if larger else "hits"] += 1
            self._kept.move_to_end(key)
        return program

    def _keep(self, key: Any, program: BucketProgram) -> BucketProgram:
        self._kept[key] = program
        self._counts["compiles"] += 1
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
            self._counts["evictions"] += 1
        return program

    def drop(self, key: Any) -> None:
        """Forgets the program of a call, which could not be compiled."""
        with self._lock:
            self._kept.pop(key, None)

    def is_ready(self, key: Any) -> bool:
        """Returns True if the program of a call is compiled."""
        with self._lock:
            return key in self._kept and self._kept[key].ready

    def larger(self, size: int) -> Iterator[int]:
        """Yields the sizes above ``size`` with a compiled program, in increasing order."""
        with self._lock:
            found = {program.size for program in self._kept.values() if program.ready}
        return iter(sorted(n for n in found if n > size))

    def begin(
        self, key: Any, size: int, compile: Callable[[], Callable[[], BucketProgram]]
    ) -> None:
        """Compiles a program in the background, unless this function is compiling one there.

        ``compile`` traces now, and returns the function to run there; both may raise.
        """
        if not self._busy.acquire(blocking=False):
            return
        try:
            if key in self._asked or self.is_ready(key):
                self._busy.release()
                return
            work = compile()
        except BaseException:
            self._busy.release()
            raise
        with self._lock:
            self._asked.add(key)
            name = f"the bucket of {size} of {self._name}"
            self._pending = Pending(name, lambda: (key, work()))

    def take_over(self) -> None:
        """Caches the program that was compiled in the background, if it is ready.

        Raises:
            Exception: the exception of the compilation, once.
        """
        pending = self._pending
        if pending is None:
            return
        try:
            taken = pending.taken()
        except BaseException:
            self._free()
            raise
        if taken is None:
            return
        key, program = taken
        with self._lock:
            self._asked.discard(key)
            if key not in self._kept:
                self._keep(key, program)
        self._free()

    def _free(self) -> None:
        self._pending = None
        self._busy.release()


class ArraysOnly:
    """A user's function as a function from the arrays of a call to the arrays of its results.

    The arrays are arguments, not constants; other arguments are part of the program.
    """

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self._fn, self._name = fn, name

    def lower(self, signature: Signature, arrays: Sequence[Any]) -> Any:
        """Returns the function for these arrays, traced and lowered."""
        return own_jit(self._of(signature)).lower(arrays)

    def shapes(self, signature: Signature, arrays: Sequence[Any]) -> Shapes:
        """Returns the shapes of the results."""
        made, _ = jax.eval_shape(self._of(signature), arrays)
        return [array.shape for array in made]

    def _of(self, signature: Signature) -> Callable[[Sequence[Any]], tuple[list[Any], Results]]:
        def program(arrays: Sequence[Any]) -> tuple[list[Any], Results]:
            args, kwargs = signature.restore(arrays)
            return flatten_results(self._name, self._fn(*args, **kwargs))

        return program


def _at(slopes: Sequence[tuple[Any, Any]], less: int) -> Shapes:
    return [tuple(d - less * s for d, s in zip(full, slope, strict=True)) for full, slope in slopes]
