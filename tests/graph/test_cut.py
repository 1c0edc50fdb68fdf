"""The cut is exact: the cheapest labels, and of several those with the fewest half."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from duotone.graph import flow
from duotone.graph.cut import Labelling
from duotone.graph.graph import Paint


@pytest.fixture(params=["few", "many"], autouse=True)
def arcs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both algorithms: that for few arcs, and SciPy's."""
    monkeypatch.setattr(flow, "MANY_ARCS", 0 if request.param == "many" else 10**9)


def by_trying(
    single: list[tuple[int, int]], pairs: list[tuple[int, int, int]]
) -> tuple[tuple[int, int], list[Paint]]:
    """The cheapest labels, of several those with the fewest half, and cost and number of these."""
    best: tuple[tuple[int, int], list[Paint]] | None = None
    for labels in itertools.product(Paint, repeat=len(single)):
        cost = sum(costs[label] for costs, label in zip(single, labels, strict=True))
        cost += sum(w for full, half, w in pairs if labels[full] < labels[half])
        if best is None or (cost, sum(labels)) < best[0]:
            best = (cost, sum(labels)), list(labels)
    assert best is not None
    return best


def by_cut(single: list[tuple[int, int]], pairs: list[tuple[int, int, int]]) -> list[Paint]:
    labels = Labelling(len(single))
    for variable, (full, half) in enumerate(single):
        labels.prefer(variable, full=full, half=half)
    for full, half, cost in pairs:
        labels.join(full=full, half=half, cost=cost)
    return labels.solve()


def random_choice(draw: random.Random, unit: int) -> tuple[list[Any], list[Any]]:
    count = draw.randint(1, 10)
    single = [(draw.randint(0, 9) * unit, draw.randint(0, 9) * unit) for _ in range(count)]
    drawn = [
        (draw.randrange(count), draw.randrange(count), draw.randint(0, 6) * unit)
        for _ in range(2 * count)
    ]
    return single, [pair for pair in drawn if pair[0] != pair[1]]


@pytest.mark.parametrize("unit", [1, 7_000_000_000])
def test_labels_are_the_cheapest(unit: int) -> None:
    draw = random.Random(1)
    for _ in range(150):
        single, pairs = random_choice(draw, unit)
        assert by_cut(single, pairs) == by_trying(single, pairs)[1]


def test_capacities_above_what_one_edge_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of which the greatest common divisor is 1, and the largest is over many edges."""
    with monkeypatch.context() as patched:
        patched.setattr(flow, "LARGEST_CAPACITY", 5)
        draw = random.Random(2)
        for _ in range(150):
            single, pairs = random_choice(draw, 3)
            assert by_cut(single, pairs) == by_trying(single, pairs)[1]
    huge = 2**31
    assert by_cut([(huge + 1, 0), (0, huge)], [(1, 0, 3 * huge)]) == [Paint.HALF, Paint.HALF]


def test_costs_of_tensors_that_no_machine_holds() -> None:
    """Catches: an edge for each 2**30 of a cost, which filled the memory."""
    draw = random.Random(3)
    for _ in range(60):
        single, pairs = random_choice(draw, 2 ** draw.randint(50, 200))
        single = [(full + draw.randint(0, 9), half) for full, half in single]
        pairs = [(full, half, cost + draw.randint(0, 9)) for full, half, cost in pairs]
        labels = by_cut(single, pairs)
        cost = sum(costs[label] for costs, label in zip(single, labels, strict=True))
        cost += sum(w for full, half, w in pairs if labels[full] < labels[half])
        everything = sum(map(sum, single)) + sum(w for *_, w in pairs)
        assert (
            cost - by_trying(single, pairs)[0][0] <= (len(single) + len(pairs)) * everything >> 45
        )


def test_both_algorithms_agree_on_larger_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a path that is filled and not tried again, in networks that no enumeration fits."""
    draw = random.Random(4)
    for _ in range(5):
        single = [(draw.randrange(1000), draw.randrange(1000)) for _ in range(300)]
        near = [(v, max(0, v - draw.randint(1, 20))) for v in range(1, 300) for _ in range(4)]
        pairs = [(v, other, draw.randrange(500)) for v, other in near]
        pairs += [(half, full, draw.randrange(500)) for full, half, _ in pairs]
        found = by_cut(single, pairs)
        with monkeypatch.context() as patched:
            patched.setattr(flow, "MANY_ARCS", 10**9 - flow.MANY_ARCS)
            assert by_cut(single, pairs) == found


def test_ties_are_full() -> None:
    assert by_cut([(1, 1)], []) == [Paint.FULL]
    assert by_cut([(4, 0), (0, 4)], [(0, 1, 4), (1, 0, 4)]) == [Paint.FULL] * 2


def test_a_negative_cost_of_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Labelling(2).join(full=0, half=1, cost=-1)
