"""Journal: what each pass painted, in the order in which it did.

A precision can be given and taken back, and units that are not float32 are painted as well, so the
final precisions do not tell what happened::

    Painted("deny", 7)                    pass 2 denied unit 7
    Painted("clear", 9)                   pass 5 allowed unit 9
    Painted("impossible", 9, deny=True)   pass 6 took that back

``walk`` is the order: TensorFlow's walks go depth first from each start, to the last neighbour
first. Which units they come to does not depend on it, so it matters for its log alone.
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


class Painted(NamedTuple):
    """One unit that a pass painted.

    Attributes:
        stage: the pass.
        unit: that was painted.
        deny: whether it was denied, or its allow taken back, and not allowed.
        cause: a NextIteration whose unit made this one, a Merge, change; or None.
    """

    stage: Stage
    unit: int
    deny: bool = False
    cause: int | None = None


Journal = list[Painted]


def walk(
    starts: Iterable[int],
    neighbours: Callable[[int], Iterable[int]],
    through: Callable[[int], bool],
) -> list[int]:
    """The starts, and what is reached from each of them through units that are accepted.

    Args:
        starts: in order; one that was reached from an earlier one is not walked from again.
        neighbours: of a unit, in the order of their numbers.
        through: whether a unit that is no start is accepted.

    Returns:
        Units in the order in which a walk depth first comes to them.

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
