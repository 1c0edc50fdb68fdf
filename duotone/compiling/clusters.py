"""``duotone clusters``: repeated parts of a function, what they can save, and memory."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from duotone import _jax
from duotone._checks import check_switch
from duotone.compiling.cluster_parts import Sizes
from duotone.compiling.cluster_program import clusters_of
from duotone.compiling.defaults import DEFAULTS
from duotone.compiling.listing import Listing, list_program
from duotone.compiling.loop_plan import Line
from duotone.compiling.rerolled_program import rolled
from duotone.errors import plural
from duotone.jaxpr.reading.signature import describe_callable, flatten_call
from duotone.jaxpr.reading.trace import trace
from duotone.policy.arguments import check_callable
from duotone.text.lines import Lines, Viewed
from duotone.text.numbers import amount
from duotone.text.source_lines import short_source


@dataclasses.dataclass(frozen=True, slots=True)
class CompileTimes:
    """The cost of compiling a program for this device.

    Attributes:
        seconds: processor time of the compiler, in all threads.
        temporary_bytes: memory in addition to arguments and results; ``None`` if unknown.
    """

    seconds: float
    temporary_bytes: int | None


@dataclasses.dataclass(frozen=True, repr=False)
class ClustersRecord(Viewed):
    """The repeated parts of a function. ``print`` shows it.

    Attributes:
        lines: one for each run of equal operations.
        operations: the number of operations of the traced program.
        operations_rolled: the number of operations of the rolled program.
        trace_seconds: the time to trace it.
        plan_seconds: the time to find repeated parts and to build the rolled program.
        live_bytes: the peak of live bytes in the order of the program, including arguments. A
            compiler may find a better order, and stores less if it fuses.
        live_at: the user's source line of the peak.
        in_clusters: the effect of :func:`duotone.cluster_jit`, in words.
        whole: the compile times of the traced program, with ``compile=True``.
        ours: the compile times of the rolled program, with ``compile=True``.
    """

    lines: tuple[Line, ...]
    operations: int
    operations_rolled: int
    trace_seconds: float
    plan_seconds: float
    live_bytes: int
    live_at: str
    in_clusters: str
    whole: CompileTimes | None = None
    ours: CompileTimes | None = None

    def __rich__(self) -> ClustersView:
        return ClustersView(self)


def clusters(
    fn: Callable[..., Any], *args: Any, compile: bool = False, **kwargs: Any
) -> ClustersRecord:
    """Returns the repeated parts of a function, and what :func:`duotone.reroll` saves there.

    Args:
        fn: the function.
        *args: its arguments: arrays or ``jax.ShapeDtypeStruct``.
        compile: also compiles it for this device, both unchanged and rolled. If the function has
            an argument of this name, pass ``functools.partial(fn, compile=...)``.
        **kwargs: its keyword arguments.

    Returns:
        A record; print it.

    Raises:
        ArgumentTypeError: ``fn`` is not callable, or ``compile`` is neither True nor False.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> def unrolled(x):
        ...     for _ in range(100):
        ...         x = x - 0.1 * jnp.sin(x)
        ...     return x
        >>> seen = duotone.clusters(unrolled, jnp.ones(3))
        >>> seen.operations, seen.operations_rolled, seen.lines[0].copies
        (300, 3, 100)
    """
    check_callable("clusters", fn)
    check_switch("clusters", "compile", compile)
    start = time.perf_counter()
    arrays, signature = flatten_call(describe_callable(fn, "clusters"), args, kwargs)
    traced = trace(fn, signature, arrays)
    listing = list_program(traced.jaxpr)
    seconds = time.perf_counter() - start
    lines: list[Line] = []
    start = time.perf_counter()
    ours = jax.make_jaxpr(rolled(traced.jaxpr, lines))(*arrays)
    planned = time.perf_counter() - start
    live, position = _largest_live_set(listing)
    where = _jax.source_line(listing.eqns[position]) if listing.eqns else ""
    record = ClustersRecord(
        tuple(lines),
        _count(traced.jaxpr),
        _count(ours),
        seconds,
        planned,
        live,
        where,
        _in_clusters(traced.jaxpr),
    )
    if compile:
        pair = (_compiled(traced.jaxpr, arrays), _compiled(ours, arrays))
        record = dataclasses.replace(record, whole=pair[0], ours=pair[1])
    return record


def _count(jaxpr: _jax.ClosedJaxpr) -> int:
    return int(sum(list_program(jaxpr).weights))


def _in_clusters(jaxpr: _jax.ClosedJaxpr) -> str:
    sizes = Sizes(DEFAULTS.min_cluster_size, DEFAULTS.max_cluster_size, frozenset())
    found = clusters_of(jaxpr, sizes)
    return f"one program, since {found.declined}" if found.declined else str(found)


def _compiled(jaxpr: _jax.ClosedJaxpr, arrays: Any) -> CompileTimes:
    lowered = jax.jit(_jax.jaxpr_as_fun(jaxpr)).lower(*arrays)
    start = time.process_time()
    compiled = lowered.compile()
    seconds = time.process_time() - start
    memory = compiled.memory_analysis()
    return CompileTimes(seconds, getattr(memory, "temp_size_in_bytes", None))


def _largest_live_set(listing: Listing) -> tuple[int, int]:
    """Returns the peak of live bytes, and the equation at the peak."""
    count = len(listing.eqns)
    change = np.zeros(count + 2, np.int64)
    makers = np.repeat(np.arange(count), np.diff(listing.first))
    for value, maker in enumerate(makers):
        size = listing.bytes_of(value)
        change[maker] += size
        change[max(int(listing.last_use[value]), int(maker)) + 1] -= size
    given = sum(listing.bytes_of(v) for v in listing.atoms if -(2**40) < v < 0)
    alive = np.cumsum(change)[:count]
    position = int(np.argmax(alive)) if count else 0
    return given + (int(alive[position]) if count else 0), position


class ClustersView(Lines):
    """A record as a rich renderable."""

    def __init__(self, record: ClustersRecord) -> None:
        self._record = record

    def _lines(self, width: int) -> Iterator[str]:
        del width  # text is wrapped
        r = self._record
        rolled = f"{r.operations_rolled:,} with duotone.reroll"
        yield f"{plural(r.operations, 'operation')}, {rolled}"
        for line in r.lines:
            what = f"{line.copies} copies of {line.period} operations at {short_source(line.where)}"
            if line.rolled:
                stacked = f", {amount(line.stacked, 'B')} stacked" if line.stacked else ""
                yield f"{'  ' * line.depth}- rolled {what}{stacked}"
            else:
                yield f"{'  ' * line.depth}- declined {what}: {line.reason}"
        if not r.lines:
            yield "no part is repeated; duotone.reroll does not change the program"
        yield f"duotone.cluster_jit: {r.in_clusters}"
        yield f"tracing took {r.trace_seconds:.3g} s, finding repeats {r.plan_seconds:.3g} s"
        if r.whole and r.ours:
            yield (
                f"compilation took {r.whole.seconds:.3g} s of processor time, with duotone.reroll "
                f"{r.ours.seconds:.3g} s"
            )
            if r.whole.temporary_bytes is not None and r.ours.temporary_bytes is not None:
                yield (
                    f"temporary memory {amount(r.whole.temporary_bytes, 'B')}, with "
                    f"duotone.reroll {amount(r.ours.temporary_bytes, 'B')}"
                )
        at = "" if r.live_at in ("", _jax.NO_SOURCE) else f", at {short_source(r.live_at)}"
        yield f"out of memory? at most {amount(r.live_bytes, 'B')} are live{at}"
        yield (
            "slow at every shape? duotone.bucketed; slow in every process? duotone.use_cache; slow "
            "although compiled? duotone advise"
        )
