"""Flow: the vertices of a network that its source still reaches at maximum flow.

::

    few arcs    Dinic's algorithm: level the vertices by their distance from the source, fill all
                shortest paths, repeat until no path leads to the sink
    many arcs   SciPy's, whose import takes longer than a small network

SciPy takes capacities below 2**31, so several parallel arcs share a larger capacity. Costs are
integers, and nothing is rounded. The exception is a cost that would take more than ``MOST_SPLITS``
arcs (a tensor of 2**50 elements, which no machine holds). Then all costs are counted in a larger
unit, each rounded up. The total exceeds the minimum by at most one unit for each cost, and a unit
is less than 2**-45 of the sum of all costs.

References:
    Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation"
    (1970).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MANY_ARCS = 10_000
"""The number of arcs from which SciPy is faster, its import included."""

LARGEST_CAPACITY = 2**30 - 1
"""The largest capacity of an arc. It is half of what SciPy's integers hold, because a flow in the
other direction can double the residual capacity of an arc."""

MOST_SPLITS = 2**16
"""The largest number of arcs that may be added in total to divide large costs."""

Arc = tuple[int, int, int]
"""A start, an end, and a capacity."""


def reached(count: int, arcs: Sequence[Arc], source: int, sink: int) -> list[bool]:
    """Returns which vertices the source reaches by arcs with capacity left, at maximum flow.

    Args:
        count: the number of vertices.
        arcs: the arcs; capacities are positive integers.
        source: the vertex at which the flow begins.
        sink: the vertex at which it ends.

    Example:
        >>> reached(3, [(0, 1, 2), (1, 2, 1)], 0, 2)
        [True, True, False]
    """
    if len(arcs) >= MANY_ARCS:
        return _reached_by_scipy(count, arcs, source, sink)
    network = _Network(count, arcs)
    while (levels := network.levels(source))[sink] >= 0:
        network.fill(levels, source, sink)
    return [level >= 0 for level in levels]


class _Network:
    """Arcs in pairs, each followed by the one that takes its flow back.

    Args:
        count: the number of vertices.
        arcs: the arcs.
    """

    def __init__(self, count: int, arcs: Sequence[Arc]) -> None:
        self._ends: list[int] = []
        self._left: list[int] = []
        self._out: list[list[int]] = [[] for _ in range(count)]
        for start, end, capacity in arcs:
            self._out[start].append(len(self._ends))
            self._out[end].append(len(self._ends) + 1)
            self._ends += (end, start)
            self._left += (capacity, 0)

    def levels(self, source: int) -> list[int]:
        """Returns the distance of each vertex from the source; -1 for one out of reach."""
        levels = [-1] * len(self._out)
        levels[source] = 0
        queue = [source]
        for vertex in queue:  # grows while it is walked
            for arc in self._out[vertex]:
                end = self._ends[arc]
                if self._left[arc] and levels[end] < 0:
                    levels[end] = levels[vertex] + 1
                    queue.append(end)
        return levels

    def fill(self, levels: Sequence[int], source: int, sink: int) -> None:
        """Sends flow until each path whose arcs go up one level has a full arc."""
        ends, left = self._ends, self._left
        untried = [arcs.copy() for arcs in self._out]
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                vertex = self._send(path)
            arcs, above = untried[vertex], levels[vertex] + 1
            while arcs and not (left[arcs[-1]] and levels[ends[arcs[-1]]] == above):
                arcs.pop()
            if arcs:
                path.append(arcs[-1])
                vertex = ends[arcs[-1]]
            elif path:
                vertex = ends[path.pop() ^ 1]
                untried[vertex].pop()
            else:
                return

    def _send(self, path: list[int]) -> int:
        """Fills a path and cuts it before its first full arc; returns the vertex where it ends."""
        most = min(self._left[arc] for arc in path)
        for arc in path:
            self._left[arc] -= most
            self._left[arc ^ 1] += most
        full = next(position for position, arc in enumerate(path) if not self._left[arc])
        vertex = self._ends[path[full] ^ 1]
        del path[full:]
        return vertex


def _reached_by_scipy(count: int, arcs: Sequence[Arc], source: int, sink: int) -> list[bool]:
    # This import is here because SciPy's graphs take a third of a second to load, and few programs
    # need them.
    import numpy as np
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    vertices, unit = count, _unit([capacity for *_, capacity in arcs])
    starts, ends, capacities = [], [], []
    for start, end, cost in arcs:
        rest = -(-cost // unit)
        while rest > LARGEST_CAPACITY:  # a parallel arc, through one more vertex
            starts += [start, vertices]
            ends += [vertices, end]
            capacities += [LARGEST_CAPACITY] * 2
            rest -= LARGEST_CAPACITY
            vertices += 1
        starts.append(start)
        ends.append(end)
        capacities.append(rest)
    network = csr_array(
        (np.asarray(capacities, np.int32), (np.asarray(starts), np.asarray(ends))),
        shape=(vertices, vertices),
    )
    left = network - maximum_flow(network, source, sink).flow
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    sides = np.zeros(vertices, bool)
    sides[reached] = True
    return [bool(side) for side in sides[:count]]


def _unit(costs: Sequence[int]) -> int:
    """Returns the unit of costs: their common divisor, or more if they are too large."""
    unit = math.gcd(*costs)
    while sum(cost // (unit * LARGEST_CAPACITY) for cost in costs) > MOST_SPLITS:
        unit *= 2
    return unit
