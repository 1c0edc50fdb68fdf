"""Sources: where a loop reads a value that differs between copies.

If an earlier loop stacked the values, the loop reads that stack, also in reverse or in part. Other
values must be stacked first, which copies their bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from duotone.compiling.listing import LITERALS

StackKey = tuple[int, str, int]
"""A stack: the number of the step that makes it, its kind, and its index within that kind. Kinds
are ``out`` (a result of each copy), ``in`` (a carried value as each copy read it), ``early`` (a
result that was computed for all copies before the loop) and ``split`` (the operand of
``unstack``)."""

Places = dict[int, list[tuple[StackKey, int]]]
"""The stacks that contain each value, with its index there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive values in a stack, or one value.

    Attributes:
        stack: the stack, or ``None`` for one value.
        start: index of the first value in the stack; the number of the value if there is no stack.
        step: 1, or -1 for reverse order.
        length: the number of values.
    """

    stack: StackKey | None
    start: int
    step: int = 1
    length: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class IterationSource:
    """A value for each iteration.

    Attributes:
        values: their numbers, in the order of the stacked array.
        pieces: where they are read; empty if all are literals.
    """

    values: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def fresh(self) -> int:
        """The number of values that are in no stack yet."""
        return sum(piece.stack is None for piece in self.pieces)

    @property
    def reversed(self) -> int:
        """The number of values that must be reversed."""
        return sum(piece.length for piece in self.pieces if piece.step < 0)


def find_source(values: Sequence[int], places: Places) -> IterationSource:
    """Returns where to read one value for each iteration.

    Example:
        >>> stack = (0, "out", 1)
        >>> find_source([7, 8, 9], {7: [(stack, 3)], 8: [(stack, 2)], 9: [(stack, 1)]}).pieces
        (Piece(stack=(0, 'out', 1), start=3, step=-1, length=3),)
    """
    values = tuple(values)
    if all(value <= LITERALS for value in values):
        return IterationSource(values, ())
    pieces, at = [], 0
    while at < len(values):
        piece = _longest(values, at, places)
        pieces.append(piece)
        at += piece.length
    return IterationSource(values, tuple(pieces))


def _longest(values: Sequence[int], at: int, places: Places) -> Piece:
    best = Piece(None, values[at])
    for stack, index in places.get(values[at], ()):
        for step in (1, -1):
            length = 1
            while at + length < len(values) and (stack, index + step * length) in places.get(
                values[at + length], ()
            ):
                length += 1
            if best.stack is None or length > best.length:
                best = Piece(stack, index, step if length > 1 else 1, length)
    return best


def window(offsets: np.ndarray, sizes: Sequence[int]) -> tuple[int, int, int] | None:
    """Returns the axis, first index and step of slices of size 1 that move along one axis.

    Args:
        offsets: the start of each slice, int64[copies, axes].
        sizes: the shape of a slice.

    Returns:
        ``None`` if the slices do not move in this way.
    """
    steps = np.diff(offsets, axis=0)
    (axes,) = np.nonzero((steps != 0).any(axis=0))
    if len(axes) != 1 or (steps != steps[0]).any() or sizes[axes[0]] != 1:
        return None
    axis = int(axes[0])
    return axis, int(offsets[0, axis]), int(steps[0, axis])
