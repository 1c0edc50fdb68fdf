"""Cut: the cheapest choice between two labels for many variables, exactly.

::

    minimise   sum of full(v) or half(v)                      by the label of v
             + sum of cost(a, b) where a is full and b is half

If no pair has a negative cost, this is a minimum cut between two terminals: the side of the first
terminal is half, that of the second is full. The solution has two steps:

1. A variable gets its label at once if no labels of its neighbours can make the other label
   cheaper, and its neighbours then use that label. In most programs this step labels everything.
2. A maximum flow labels the rest (:mod:`duotone.graph.flow`).

If several choices are cheapest, :meth:`Labelling.solve` takes the one with the fewest half labels:
the variables that the first terminal still reaches at maximum flow. This set is the same for every
maximum flow, so the result is deterministic.

References:
    Kolmogorov and Zabih, "What Energy Functions Can Be Minimized via Graph Cuts?" (2004).
    Picard and Queyranne, "On the structure of all minimum cuts in a network" (1980), for the choice
    among them.
"""

from __future__ import annotations

from collections.abc import Sequence

from duotone.graph.flow import reached
from duotone.graph.graph import Paint

HALF, FULL = 0, 1
"""Variables whose labels :func:`pay_for_casts` takes as given."""

_Pairs = list[dict[int, int]]


class Labelling:
    """The costs of labels and of pairs of labels, as integers; :meth:`solve` minimises their sum.

    Example:
        >>> choice = Labelling(2)
        >>> choice.prefer(0, full=0, half=3)
        >>> choice.prefer(1, full=5, half=0)
        >>> choice.join(full=0, half=1, cost=2)
        >>> [str(paint) for paint in choice.solve()]
        ['full', 'half']
    """

    def __init__(self, count: int = 0) -> None:
        self._gain = [0] * count  # what half costs more than full
        self._fulls: _Pairs = [{} for _ in range(count)]  # by half variable: costs of full ones
        self._halves: _Pairs = [{} for _ in range(count)]  # the same pairs by full variable

    def __len__(self) -> int:
        return len(self._gain)

    def add(self) -> int:
        """Adds one variable and returns its index."""
        self._gain.append(0)
        self._fulls.append({})
        self._halves.append({})
        return len(self._gain) - 1

    def prefer(self, variable: int, *, full: int = 0, half: int = 0) -> None:
        """Adds the cost of each label of one variable."""
        self._gain[variable] += half - full

    def join(self, *, full: int, half: int, cost: int) -> None:
        """Adds the cost of one variable being full while another one is half.

        Raises:
            ValueError: the cost is negative, so that a cut could not find the cheapest labels.
        """
        if cost < 0:
            raise ValueError(f"the cost of a pair is {cost}, and must not be negative")
        if cost and full != half:
            self._fulls[half][full] = self._fulls[half].get(full, 0) + cost
            self._halves[full][half] = self._halves[full].get(half, 0) + cost

    def solve(self) -> list[Paint]:
        """Returns the cheapest labels; among equals, those with the fewest half labels."""
        found = self._label_certain()
        left = [v for v, paint in enumerate(found) if paint is None]
        if left:
            positions = {variable: position for position, variable in enumerate(left)}
            edges = [
                (positions[half], positions[full], cost)
                for half in left
                for full, cost in self._fulls[half].items()
                if full in positions
            ]
            sides = _half_side([self._gain[v] for v in left], edges)
            for variable, half in zip(left, sides, strict=True):
                found[variable] = Paint.HALF if half else Paint.FULL
        return [Paint.FULL if paint is None else paint for paint in found]

    def _label_certain(self) -> list[Paint | None]:
        """Finds the labels that are certain; their pairs become costs of single variables."""
        gain = self._gain = list(self._gain)
        # A variable can pay at most this as the half one of its pairs, and this as the full one.
        as_half = [sum(pairs.values()) for pairs in self._fulls]
        as_full = [sum(pairs.values()) for pairs in self._halves]
        found: list[Paint | None] = [None] * len(gain)
        stack = list(range(len(gain)))
        while stack:
            v = stack.pop()
            if found[v] is not None:
                continue
            if gain[v] >= as_full[v]:
                found[v] = Paint.FULL
                for half, cost in self._halves[v].items():
                    if found[half] is None:
                        gain[half] += cost
                        as_half[half] -= cost
                        stack.append(half)
                for full, cost in self._fulls[v].items():
                    as_full[full] -= cost
                    stack.append(full)
            elif gain[v] + as_half[v] < 0:
                found[v] = Paint.HALF
                for full, cost in self._fulls[v].items():
                    if found[full] is None:
                        gain[full] -= cost
                        as_full[full] -= cost
                        stack.append(full)
                for half, cost in self._halves[v].items():
                    as_half[half] -= cost
                    stack.append(half)
        return found


def pay_for_casts(labels: Labelling, producer: int, read: set[int], cost: int) -> None:
    """Adds the cost of one cast of a value in each direction in which a reader needs one.

    The two labels are swapped: "full" means half. :meth:`Labelling.solve` then prefers the choice
    with the most half variables among the cheapest.

    Args:
        labels: the costs so far, in which the variables 0 and 1 are :data:`HALF` and :data:`FULL`.
        producer: the variable of the node that makes the value.
        read: the variables of the nodes that read it.
        cost: the cost of one cast.
    """

    def pay(full: int, half: int) -> None:
        labels.join(full=half, half=full, cost=cost)

    down = read - {FULL}  # may be half: a cast if the producer is full
    up = read - {HALF}
    if HALF in down:
        down = {HALF}
    if FULL in up:
        up = {FULL}
    if producer != HALF and down:
        target = down.pop() if len(down) == 1 else labels.add()
        for reader in down:
            pay(full=target, half=reader)
        pay(full=producer, half=target)
    if producer != FULL and up:
        target = up.pop() if len(up) == 1 else labels.add()
        for reader in up:
            pay(full=reader, half=target)
        pay(full=target, half=producer)


def _half_side(gain: Sequence[int], edges: Sequence[tuple[int, int, int]]) -> list[bool]:
    """Returns which variables the half terminal reaches at maximum flow.

    Args:
        gain: by how much half costs more than full, for each variable.
        edges: (half, full, cost) of each pair.
    """
    source, sink = len(gain), len(gain) + 1
    arcs = [(source, v, -cost) for v, cost in enumerate(gain) if cost < 0]
    arcs += [(v, sink, cost) for v, cost in enumerate(gain) if cost > 0]
    return reached(sink + 1, [*arcs, *edges], source, sink)[: len(gain)]
