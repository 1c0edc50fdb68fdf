"""Sources: from where the loop of a run takes a value that is another one in each copy.

What an earlier loop stacked is taken as the stack it is, also backwards or from one side to the
middle; what was no stack has to become one, which costs a copy of its bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from duotone.compiling.listing import LITERALS

StackKey = tuple[int, str, int]
"""A stack: the number of the step that makes it, its kind, which of that kind. Kinds are ``out``
(a result of each copy), ``in`` (what each copy read of a carried value), ``early`` (a result that
was made for all copies before the loop) and ``split`` (an array that ``unstack`` took apart)."""

Places = dict[int, list[tuple[StackKey, int]]]
"""The stacks in which a value stands, and its index there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Values that follow each other in a stack, or one value.

    Attributes:
        stack: the stack, or ``None`` for one value.
        start: index of the first one; the number of the value if there is no stack.
        step: 1, or -1 backwards.
        length: how many.
    """

    stack: StackKey | None
    start: int
    step: int = 1
    length: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A value for each iteration.

    Attributes:
        values: their numbers, in the order of the stacked array.
        pieces: from where they are taken; empty if all are literals.
    """

    values: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def fresh(self) -> int:
        """Values that stand in no stack yet."""
        return sum(piece.stack is None for piece in self.pieces)

    @property
    def reversed(self) -> int:
        """Values that have to be brought into another order."""
        return sum(piece.length for piece in self.pieces if piece.step < 0)


def find_source(values: Sequence[int], places: Places) -> Source:
    """From where values are taken that stand one in each iteration.

    Example:
        >>> stack = (0, "out", 1)
        >>> find_source([7, 8, 9], {7: [(stack, 3)], 8: [(stack, 2)], 9: [(stack, 1)]}).pieces
        (Piece(stack=(0, 'out', 1), start=3, step=-1, length=3),)
    """
    values = tuple(values)
    if all(value <= LITERALS for value in values):
        return Source(values, ())
    pieces, at = [], 0
    while at < len(values):
        piece = _longest(values, at, places)
        pieces.append(piece)
        at += piece.length
    return Source(values, tuple(pieces))


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
    """The axis, first index and step of slices that go along one axis, one index each.

    Args:
        offsets: where each slice begins, int64[copies, axes].
        sizes: of the slice.

    Returns:
        ``None`` if they do not.
    """
    steps = np.diff(offsets, axis=0)
    (axes,) = np.nonzero((steps != 0).any(axis=0))
    if len(axes) != 1 or (steps != steps[0]).any() or sizes[axes[0]] != 1:
        return None
    axis = int(axes[0])
    return axis, int(offsets[0, axis]), int(steps[0, axis])
