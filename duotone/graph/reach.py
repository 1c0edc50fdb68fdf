"""Reach: the nodes that a walk along edges visits. Painters by lists consist of such walks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence


def reach(
    starts: Iterable[int], edges: Sequence[Sequence[int]], through: Callable[[int], bool]
) -> set[int]:
    """Returns nodes reached from ``starts`` along ``edges`` through nodes that ``through`` accepts.

    The result contains a start only if the walk returns to it.

    Example:
        >>> reach([0], [[1], [2], [3], []], lambda node: node != 3)
        {1, 2}
    """
    found: set[int] = set()
    queue = deque(starts)
    while queue:
        for index in edges[queue.popleft()]:
            if index not in found and through(index):
                found.add(index)
                queue.append(index)
    return found
