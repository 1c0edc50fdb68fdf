"""Journal: the units that each pass painted, in order.

A pass may paint a unit and a later pass undo it, and units that are not float32 are painted too. So
the final precisions do not show all events::

    PaintedUnit("deny", 7)                    pass 2 denied unit 7
    PaintedUnit("clear", 9)                   pass 5 allowed unit 9
    PaintedUnit("impossible", 9, deny=True)   pass 6 took that back

``walk`` has TensorFlow's order: depth first from each start, the last neighbour first. The order
does not change which units are reached, so it matters only for the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

Stage = Literal[
    "allow_list",
    "deny",
    "lists_after_deny",
    "between",
    "follow",
    "clear",
    "impossible",
    "lists_after_all",
    "loop",
    "cut",
]
"""The passes, in their order; ``"cut"`` is the minimum cut, which TensorFlow does not have."""


class PaintedUnit(NamedTuple):
    """One unit that a pass painted.

    Attributes:
        stage: the pass.
        unit: the unit.
        deny: whether it was denied or its allow was undone; False if it was allowed.
        cause: a NextIteration whose unit made this one, a Merge, change; or None.
    """

    stage: Stage
    unit: int
    deny: bool = False
    cause: int | None = None


Journal = list[PaintedUnit]


def walk(
    starts: Iterable[int],
    neighbours: Callable[[int], Iterable[int]],
    through: Callable[[int], bool],
) -> list[int]:
    """Returns the starts, and the units reached from them through accepted units.

    Args:
        starts: in order; a start that was reached before is skipped.
        neighbours: returns the neighbours of a unit, by number.
        through: whether a unit that is not a start is accepted.

    Returns:
        Units in the order of a depth-first walk.

    Example:
        >>> edges = [[1, 3], [2], [], [2]]
        >>> walk([0], edges.__getitem__, lambda unit: True)
        [0, 3, 2, 1]
    """
    found: dict[int, None] = {}
    for start in starts:
        stack = [] if start in found else [start]
        while stack:
            unit = stack.pop()
            if unit in found or not (unit == start or through(unit)):
                continue
            found[unit] = None
            stack.extend(neighbours(unit))
    return list(found)
