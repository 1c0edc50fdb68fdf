"""What follows from a value, searched from either end."""

from __future__ import annotations

import random

import pytest

from duotone.graph.graph import Graph
from duotone.graph.reach import follow, following
from tests.graph.tiny import Tiny


def program(seed: int) -> Graph:
    """Sums of values made earlier, with a loop that carries one of them."""
    draw, tiny = random.Random(seed), Tiny()
    outside = [tiny.input(4) for _ in range(3)]

    def add(values: list[int], count: int) -> None:
        for _ in range(count):
            values.append(tiny.op("add", *draw.choices(values, k=2)))

    add(outside, 6)
    with tiny.loop():
        carried, after = tiny.carry(draw.choice(outside))
        inside = [*outside, carried]
        add(inside, 8)
        tiny.close(carried, draw.choice(inside[-8:]))
    outside.append(after)
    add(outside, 4)
    tiny.returns(outside[-1])
    return tiny.graph()


@pytest.mark.parametrize("seed", range(8))
def test_both_ends_agree(seed: int) -> None:
    graph = program(seed)
    everything = range(len(graph.values))
    found = {(start, v) for start in everything for v in following(graph, values=[start])}
    assert found == {(s, v) for s in everything for v in everything if follow(graph, [v], [s])}
