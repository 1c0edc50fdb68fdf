"""The notes of ``blame`` on values: a row of numbers for each and its float32 reference.

Rows are made for all values of a program at once::

    small values of one size and dtype are laid side by side, so that one kernel reads them all
    one reduction, of several operands, gives all columns; all of them are whole numbers

The bits of a float32, read as a whole number, are in the order of the numbers, and neither sums nor
extrema of whole numbers depend on their order: a compiler makes them many at a time, which it may
not do with sums of floating numbers. Errors are such sums, so they are noted by themselves, in a
run of their own. Rows of the same value in two iterations of a loop are joined to one.
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
"""Columns of a look: elements that are not finite while the reference's are; when that was first,
counted in iterations of all loops, and the iteration of the innermost one; least and greatest
element of the reference, both NaN if one is; elements below the normal numbers of half whose
reference is a normal float32, and those of them that are 0; elements; when the reference was first
not finite."""
WIDTH = 9
ERROR, SIZE = range(WIDTH, WIDTH + 2)
"""Columns of errors, behind those of a look: sums of squares of the error and of the reference, not
finite where one of them is not."""
NEUTRAL = np.array([0, np.inf, 0, np.inf, -np.inf, 0, 0, 0, np.inf], np.float32)
"""The row of no element."""
_ADDED = np.array([1, 0, 0, 0, 0, 1, 1, 1, 0], bool)
_SMALL = 4096
"""Elements up to which values are laid side by side: a copy of one takes less than a kernel."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITE = np.int32(0x7F800000)
_NORMAL = np.int32(0x00800000)
_ZERO, _ONE = np.int32(0), np.int32(1)
_SUM, _MAX, _MIN = (lax.add, _ZERO), (lax.max, ~_INFINITE), (lax.min, _INFINITE)
"""Reductions: what joins two numbers, and the number of no element (in order, -inf and inf)."""


class Note(NamedTuple):
    """A value of which a row is to be made.

    Attributes:
        plain: as the program has it.
        full: its reference; the same object if both are one value.
        tick: counts iterations.
    """

    plain: Any
    full: Any
    tick: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of rows.

    Attributes:
        rows: makes those of values, ``float32[values, width]``, of notes that are at least one and
            the iteration of the innermost loop.
        joined: joins rows of the same values at two times.
        start: the row of no element.
    """

    rows: Callable[[Sequence[Note], Any], Any]
    joined: Callable[[Any, Any], Any]
    start: np.ndarray

    def neutral(self, count: int) -> Any:
        """Rows of values that were not made yet."""
        return jnp.tile(jnp.asarray(self.start), (count, 1))


def _grouped(notes: Sequence[Note]) -> list[list[int]]:
    """Places of notes that are read by one kernel."""
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for k, note in enumerate(notes):
        size, alike = note.plain.size, note.plain is note.full
        groups[(size, note.plain.dtype, alike) if size <= _SMALL else k].append(k)
    return list(groups.values())


def _rows_of_look(notes: Sequence[Note], iteration: Any) -> Any:
    """Rows of what overflows and what is lost, ``float32[values, WIDTH]``.

    Args:
        notes: of the values.
        iteration: of the innermost loop.
    """
    groups = _grouped(notes)
    found = [_columns(*_side_by_side([notes[k] for k in group])) for group in groups]
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


def _side_by_side(notes: Sequence[Note]) -> tuple[Any, Any]:
    """The values of notes, all of one size, and their references, ``[notes, ...]`` each."""
    plains, fulls = [note.plain for note in notes], [note.full for note in notes]
    alike = plains[0] is fulls[0]
    if len(notes) == 1:
        plain = plains[0][None]
        return plain, plain if alike else fulls[0][None]
    plain = _stacked(plains)
    return plain, plain if alike else _stacked(fulls)


def _stacked(arrays: Sequence[Any]) -> Any:
    """Arrays of one size side by side; made once, not anew for each element that is read."""
    return lax.optimization_barrier(jnp.stack([jnp.ravel(array) for array in arrays]))


def _columns(plain: Any, full: Any) -> dict[int, Any]:
    """Reduces values to columns, ``int32[values]`` each.

    Args:
        plain: as the program has them, ``[values, ...]``.
        full: their references; the same object if they are their own.
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
    """Bits of float32 as whole numbers in the same order; its own inverse."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


def _number(order: Any) -> Any:
    return lax.bitcast_convert_type(_ordered(order), jnp.float32)


def _counted(found: Any) -> Any:
    return jnp.where(found, _ONE, _ZERO)


def _ticks(ticks: Sequence[Any]) -> Any:
    """Scalars as one array; few of them differ."""
    different = list({id(tick): tick for tick in ticks}.values())
    place = {id(tick): k for k, tick in enumerate(different)}
    found = jnp.stack([jnp.float32(tick) for tick in different])
    return found[np.array([place[id(tick)] for tick in ticks])]


def _joined_looks(one: Any, other: Any) -> Any:
    later = other[:, TICK] < one[:, TICK]
    moment = jnp.where(later[:, None], other, one)
    found = jnp.where(_ADDED, one + other, moment)
    found = found.at[:, LOW].set(jnp.minimum(one[:, LOW], other[:, LOW]))
    found = found.at[:, HIGH].set(jnp.maximum(one[:, HIGH], other[:, HIGH]))
    return found.at[:, FULL_TICK].set(jnp.minimum(one[:, FULL_TICK], other[:, FULL_TICK]))


def _rows_of_errors(notes: Sequence[Note], iteration: Any) -> Any:
    """Rows of errors, ``float32[values, 2]``; 0 for values that are their own references."""
    del iteration
    groups = _grouped(notes)
    found = [_sums(*_side_by_side([notes[k] for k in group])) for group in groups]
    order = [k for group in groups for k in group]
    return jnp.concatenate(found)[np.argsort(order)]


def _sums(plain: Any, full: Any) -> Any:
    """Sums of squares of errors and of references, ``float32[values, 2]``."""
    if plain is full:
        return np.zeros((len(full), 2), np.float32)
    reference = full.astype(jnp.float32)
    off = plain.astype(jnp.float32) - reference
    return jnp.stack([_sum(off * off), _sum(reference * reference)], 1)


def _sum(array: Any) -> Any:
    """Sums over all dimensions but the first, in two steps.

    Floating numbers are added up in order: the sums of many columns, but not one sum, are made many
    at a time.
    """
    length = math.prod(array.shape[1:])
    rows = next((n for n in (512, 256, 128, 64, 32, 16, 8) if length % n == 0), 1)
    columns = jnp.sum(jnp.reshape(array, (len(array), rows, -1)), 1)
    return jnp.sum(lax.optimization_barrier(columns), 1)


LOOK = Kind(_rows_of_look, _joined_looks, NEUTRAL)
"""Overflows and what is lost: the columns from ``BAD`` to ``FULL_TICK``."""
ERRORS = Kind(_rows_of_errors, lax.add, np.zeros(2, np.float32))
"""Errors against float32: the columns ``ERROR`` and ``SIZE``."""


def watched(dtype: Any) -> bool:
    """True if values of a dtype have rows: half and float32."""
    return dtype in (jnp.dtype("float16"), jnp.dtype("bfloat16"), jnp.dtype("float32"))
