"""The statistics of ``blame``: one row of numbers for each value and its float32 reference.

A program makes the rows of all its values at once::

    stack small values of one size and dtype, so that one kernel reads them all
    compute all columns with one integer reduction of several operands

The integer bits of float32 numbers are in the order of the numbers. Integer sums and extrema do not
depend on their order, so the compiler may vectorize them. It may not reorder floating-point sums.
Errors are floating-point sums, so a second run computes them. Rows of the same value in two
iterations of a loop are joined.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

BAD, TICK, ITERATION, LOW, HIGH, UNDERFLOW, ZERO, COUNT, FULL_TICK = range(9)
"""The columns of a look.

``BAD`` counts the elements that are not finite while the reference's are. ``TICK`` says when that
was first, in iterations of all loops, and ``ITERATION`` in those of the innermost loop. ``LOW`` and
``HIGH`` are the least and greatest element of the reference, both NaN if one element is.
``UNDERFLOW`` counts the elements that are below the normal numbers of half while their reference is
a normal float32. ``ZERO`` counts those among them that are 0, and ``COUNT`` counts all elements.
``FULL_TICK`` says when the reference was first not finite."""
WIDTH = 9
ERROR, SIZE = range(WIDTH, WIDTH + 2)
"""Columns of errors, after those of a look: sums of squares of the error and of the reference. They
are not finite if an element is not."""
NEUTRAL = np.array([0, np.inf, 0, np.inf, -np.inf, 0, 0, 0, np.inf], np.float32)
"""The row of an empty value."""
_ADDED = np.array([1, 0, 0, 0, 0, 1, 1, 1, 0], bool)
_SMALL = 4096
"""Values of up to this many elements are stacked, since a copy costs less than a kernel."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITE = np.int32(0x7F800000)
_NORMAL = np.int32(0x00800000)
_ZERO, _ONE = np.int32(0), np.int32(1)
_SUM, _MAX, _MIN = (lax.add, _ZERO), (lax.max, ~_INFINITE), (lax.min, _INFINITE)
"""Reductions: the operation and its neutral element (for extrema, the order of -inf and inf)."""


class Note(NamedTuple):
    """A value that gets a row.

    Attributes:
        plain: the program's value.
        full: its reference; the same object if the value is its own reference.
        tick: iterations of all loops so far.
    """

    plain: Any
    full: Any
    tick: Any


@dataclasses.dataclass(frozen=True, slots=True)
class RowKind:
    """One kind of rows.

    Attributes:
        rows: takes one note or more and the iteration of the innermost loop; returns the rows,
            ``float32[values, width]``.
        joined: joins rows of the same values at two times.
        start: the row of an empty value.
    """

    rows: Callable[[Sequence[Note], Any], Any]
    joined: Callable[[Any, Any], Any]
    start: np.ndarray

    def neutral(self, count: int) -> Any:
        """Returns rows of values that the program has not made yet."""
        return jnp.tile(jnp.asarray(self.start), (count, 1))


def _grouped(notes: Sequence[Note]) -> list[list[int]]:
    """Groups the indices of notes so that one kernel reads each group."""
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for k, note in enumerate(notes):
        size, alike = note.plain.size, note.plain is note.full
        groups[(size, note.plain.dtype, alike) if size <= _SMALL else k].append(k)
    return list(groups.values())


def _rows_of_look(notes: Sequence[Note], iteration: Any) -> Any:
    """Makes rows of overflows and underflows, ``float32[values, WIDTH]``."""
    groups = _grouped(notes)
    found = [_columns(*_stacked_notes([notes[k] for k in group])) for group in groups]
    columns = {c: jnp.concatenate([one[c] for one in found]) for c in found[0]}
    order = [k for group in groups for k in group]
    bad = columns[BAD].astype(jnp.float32)
    low, high = _number(columns[LOW]), _number(columns[HIGH])
    none = jnp.where(jnp.isnan(low) | jnp.isnan(high), np.float32(np.nan), _ZERO)
    ticks = _ticks([notes[k].tick for k in order])
    done = {
        **{c: column.astype(jnp.float32) for c, column in columns.items()},
        TICK: jnp.where(bad > 0, ticks, np.float32(np.inf)),
        ITERATION: jnp.full(len(notes), iteration, jnp.float32),
        LOW: low + none,
        HIGH: high + none,
        COUNT: np.array([notes[k].plain.size for k in order], np.float32),
        FULL_TICK: jnp.where(jnp.isfinite(low) & jnp.isfinite(high), np.float32(np.inf), ticks),
    }
    return jnp.stack([done[c] for c in range(WIDTH)], 1)[np.argsort(order)]


def _stacked_notes(notes: Sequence[Note]) -> tuple[Any, Any]:
    """Stacks the values of notes of one size, and their references, to ``[notes, ...]``."""
    plains, fulls = [note.plain for note in notes], [note.full for note in notes]
    alike = plains[0] is fulls[0]
    if len(notes) == 1:
        plain = plains[0][None]
        return plain, plain if alike else fulls[0][None]
    plain = _stacked(plains)
    return plain, plain if alike else _stacked(fulls)


def _stacked(arrays: Sequence[Any]) -> Any:
    """Stacks arrays of one size; the barrier prevents recomputation for each element."""
    return lax.optimization_barrier(jnp.stack([jnp.ravel(array) for array in arrays]))


def _columns(plain: Any, full: Any) -> dict[int, Any]:
    """Reduces values to columns, ``int32[values]`` each.

    Args:
        plain: the program's values, ``[values, ...]``.
        full: their references; the same object if the values are their own references.
    """
    bits = _bits(full)
    order = _ordered(bits)
    reduced = {LOW: (order, _MIN), HIGH: (order, _MAX)}
    if plain is not full:
        kept, reference = _bits(plain) & _MAGNITUDE, bits & _MAGNITUDE
        fits, normal = reference < _INFINITE, reference >= _NORMAL
        reduced[BAD] = _counted(fits & (kept >= _INFINITE)), _SUM
        if plain.dtype != jnp.float32:
            least = np.float32(jnp.finfo(plain.dtype).smallest_normal).view(np.int32)
            reduced[UNDERFLOW] = _counted(normal & (kept < least)), _SUM
            reduced[ZERO] = _counted(normal & (kept == _ZERO)), _SUM
    found = lax.reduce(
        tuple(operand for operand, _ in reduced.values()),
        tuple(start for _, (_, start) in reduced.values()),
        lambda one, other: tuple(
            join(a, b) for (_, (join, _)), a, b in zip(reduced.values(), one, other, strict=True)
        ),
        tuple(range(1, full.ndim)),
    )
    none = np.zeros(len(full), np.int32)
    return dict.fromkeys((BAD, UNDERFLOW, ZERO), none) | dict(zip(reduced, found, strict=True))


def _bits(array: Any) -> Any:
    return lax.bitcast_convert_type(array.astype(jnp.float32), jnp.int32)


def _ordered(bits: Any) -> Any:
    """Maps bits of float32 to integers in the order of the numbers; its own inverse."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


def _number(order: Any) -> Any:
    return lax.bitcast_convert_type(_ordered(order), jnp.float32)


def _counted(found: Any) -> Any:
    return jnp.where(found, _ONE, _ZERO)


def _ticks(ticks: Sequence[Any]) -> Any:
    """Stacks each distinct scalar once, and gathers from the stack."""
    different = list({id(tick): tick for tick in ticks}.values())
    index = {id(tick): k for k, tick in enumerate(different)}
    found = jnp.stack([jnp.float32(tick) for tick in different])
    return found[np.array([index[id(tick)] for tick in ticks])]


def _joined_looks(one: Any, other: Any) -> Any:
    later = other[:, TICK] < one[:, TICK]
    moment = jnp.where(later[:, None], other, one)
    found = jnp.where(_ADDED, one + other, moment)
    found = found.at[:, LOW].set(jnp.minimum(one[:, LOW], other[:, LOW]))
    found = found.at[:, HIGH].set(jnp.maximum(one[:, HIGH], other[:, HIGH]))
    return found.at[:, FULL_TICK].set(jnp.minimum(one[:, FULL_TICK], other[:, FULL_TICK]))


def _rows_of_errors(notes: Sequence[Note], iteration: Any) -> Any:
    """Makes rows of errors, ``float32[values, 2]``; 0 for values that are their own references."""
    groups = _grouped(notes)
    found = [_sums(*_stacked_notes([notes[k] for k in group])) for group in groups]
    order = [k for group in groups for k in group]
    return jnp.concatenate(found)[np.argsort(order)]


def _sums(plain: Any, full: Any) -> Any:
    """Returns the sums of squares of errors and of references, ``float32[values, 2]``."""
    if plain is full:
        return np.zeros((len(full), 2), np.float32)
    reference = full.astype(jnp.float32)
    off = plain.astype(jnp.float32) - reference
    return jnp.stack([_sum(off * off), _sum(reference * reference)], 1)


def _sum(array: Any) -> Any:
    """Sums over all dimensions but the first, in two steps.

    The compiler adds floating-point numbers in order, so it vectorizes the sums of many columns
    but not a single sum.
    """
    length = math.prod(array.shape[1:])
    rows = next((n for n in (512, 256, 128, 64, 32, 16, 8) if length % n == 0), 1)
    columns = jnp.sum(jnp.reshape(array, (len(array), rows, -1)), 1)
    return jnp.sum(lax.optimization_barrier(columns), 1)


LOOK = RowKind(_rows_of_look, _joined_looks, NEUTRAL)
"""Overflows and underflows: the columns from ``BAD`` to ``FULL_TICK``."""
ERRORS = RowKind(_rows_of_errors, lax.add, np.zeros(2, np.float32))
"""Errors against float32: the columns ``ERROR`` and ``SIZE``."""


def watched(dtype: Any) -> bool:
    """Returns True if values of a dtype have rows: half and float32."""
    return dtype in (jnp.dtype("float16"), jnp.dtype("bfloat16"), jnp.dtype("float32"))
