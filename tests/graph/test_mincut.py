"""The painter by minimum cut: the cut is exact, and what the rules force stays as it is."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from duotone.graph import cut
from duotone.graph.classes import Classes, NodeClass, classify
from duotone.graph.cut import Labelling
from duotone.graph.graph import Boundary, Graph, Paint
from duotone.graph.lists import Entry, Kind, OpLists, Pointwise, Taint
from duotone.graph.painters import paint_mincut
from duotone.graph.painters.dominant import (
    keep_state_full,
    name_the_rest,
    paint_allow,
    spread_half,
    spread_taint,
)
from duotone.graph.painters.mincut import Problem, find_open
from duotone.graph.painting import Canvas, Painting, check_painting
from duotone.graph.rules import Rule
from duotone.graph.traffic import bytes_of_traffic, find_traffic
from tests.graph.tiny import ENTRIES as LISTED
from tests.graph.tiny import FLOAT16, Painted, Tiny

POINTWISE = frozenset("add mul tanh exp relu select round".split())
LIFTED = Entry("soft", Kind.DENY, "bounded", "tests", taint=Taint.NONE)
ENTRIES = tuple(
    dataclasses.replace(entry, pointwise=Pointwise.CHEAP) if entry.op in POINTWISE else entry
    for entry in (*LISTED, LIFTED)
)


def classes_of(graph: Graph) -> Classes:
    """Classes by :data:`ENTRIES`; ``soft`` is an operation that ranges lifted."""
    found = classify(graph, OpLists.for_half(ENTRIES, "float16"), FLOAT16)
    lifted = NodeClass(LIFTED, stores_half=True)
    nodes = (lifted if c.entry.op == "soft" else c for c in found.nodes)
    return dataclasses.replace(found, nodes=tuple(nodes))


def paint(tiny: Tiny) -> Painted:
    """As :meth:`Tiny.paint`, with operations of which the compiler makes one kernel."""
    return tiny.paint("mincut", entries=ENTRIES)


# ----------------------------------------- the cut itself


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
    monkeypatch.setattr(cut, "LARGEST_CAPACITY", 5)
    draw = random.Random(2)
    for _ in range(150):
        single, pairs = random_choice(draw, 3)
        assert by_cut(single, pairs) == by_trying(single, pairs)[1]
    monkeypatch.undo()
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


def test_ties_are_full() -> None:
    assert by_cut([(1, 1)], []) == [Paint.FULL]
    assert by_cut([(4, 0), (0, 4)], [(0, 1, 4), (1, 0, 4)]) == [Paint.FULL] * 2


def test_a_negative_cost_of_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Labelling(2).join(full=0, half=1, cost=-1)


# ----------------------------------------- exact on programs

OPERATIONS = "add mul tanh relu broadcast gather custom soft exp".split()


def random_program(draw: random.Random) -> Graph:
    """Dots, operations on every list, a loop now and then; some results are returned."""
    t = Tiny()
    values = [t.input(draw.choice([4, 64])), t.dot(), t.dot(size=32)]

    def step(pool: list[int]) -> None:
        op = draw.choice(OPERATIONS)
        operands = draw.sample(pool, 2 if op in ("add", "mul") else 1)
        pool.append(t.op(op, *operands, size=draw.choice([0, 0, 64])))
        if draw.random() < 0.2:
            pool.append(t.dot(draw.choice(pool), t.input(64), size=draw.choice([16, 64])))

    for _ in range(draw.randint(3, 7)):
        step(values)
    if draw.random() < 0.5:
        with t.loop(draw.choice([2, 10])):
            inside, after = t.carry(draw.choice(values))
            pool = [*values, inside]
            for _ in range(draw.randint(1, 4)):
                step(pool)
            t.close(inside, pool[-1])
            values += [after, t.stack(pool[-1])]
    for value in draw.sample(values, min(3, len(values))):
        t.returns(t.dot(value, t.input(64), size=8))
    t.returns(draw.choice(values), boundary=draw.choice(list(Boundary)))
    return t.graph()


@dataclasses.dataclass
class Choice:
    """What is left open in a program, and what colours cost."""

    graph: Graph
    classes: Classes

    def __post_init__(self) -> None:
        self.canvas = Canvas(self.graph, self.classes)
        paint_allow(self.canvas)
        tainted = spread_taint(self.canvas)
        spread_half(self.canvas, tainted)
        open_nodes = find_open(self.canvas, tainted, keep_state_full(self.canvas))
        self.traffic = find_traffic(self.graph, self.classes)
        self.problem = Problem(self.canvas, open_nodes, self.traffic)
        self.open = self.problem.nodes
        name_the_rest(self.canvas, tainted)

    def cost(self, colours: Iterable[Paint]) -> int:
        """Bytes with the open nodes coloured so."""
        for node, paint in zip(self.open, colours, strict=True):
            self.canvas.paint(node, paint, Rule.CUT)
        painting: Painting = self.canvas.finish()
        return bytes_of_traffic(self.traffic, self.graph, painting, self.problem.lifted)

    def cheapest(self) -> tuple[int, int]:
        """Bytes, and number of half nodes, of the best colours, by trying all."""
        tried = itertools.product(Paint, repeat=len(self.open))
        return min((self.cost(colours), sum(colours)) for colours in tried)

    def cut(self) -> tuple[int, int]:
        """The same of the colours that the cut found."""
        self.problem.solve()
        colours = [self.canvas.compute[node] for node in self.open]
        self.canvas.store = [None] * len(self.graph.nodes)
        return self.cost(colours), sum(colours)


def choices(count: int) -> list[Choice]:
    """Programs with 1 to 12 open nodes."""
    draw, found = random.Random(3), []
    while len(found) < count:
        graph = random_program(draw)
        choice = Choice(graph, classes_of(graph))
        if 1 <= len(choice.open) <= 10:
            found.append(choice)
    return found


def test_no_other_colours_move_fewer_bytes() -> None:
    for choice in choices(60):
        assert choice.cut() == choice.cheapest()


@pytest.mark.parametrize("kind", ["_copy", "_any", "_pay"])
def test_a_wrong_capacity_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(Problem, kind)

    def wrong(self: Problem, *args: Any) -> Any:
        return right(self, *args[:-1], args[-1] // 4)

    monkeypatch.setattr(Problem, kind, wrong)
    assert any(choice.cut() != choice.cheapest() for choice in choices(60))


# ----------------------------------------- what is forced, and what is left


def test_forced_colours_are_those_of_the_rules() -> None:
    draw = random.Random(4)
    for _ in range(30):
        graph = random_program(draw)
        choice = Choice(graph, classes_of(graph))
        before, free = choice.canvas.finish(), set(choice.open)
        painting = check_painting(paint_mincut(graph, choice.classes), graph)
        for node in graph.nodes:
            if node.index not in free and painting.rules[node.index] != "upstream":
                assert painting.compute[node.index] is before.compute[node.index]


def test_what_never_reaches_memory_is_full_and_what_does_is_half() -> None:
    t = Tiny()
    h = t.dot()
    inner = t.op("tanh", h)
    read_by_dot = t.op("mul", inner, inner)
    t.returns(t.dot(read_by_dot, t.input(64), size=32))
    painted = paint(t)
    assert painted[inner] == "full cut"
    assert painted[read_by_dot] == "full>half mixed"


def test_a_value_for_a_later_kernel_is_computed_half() -> None:
    """The reader widens it: a rounding alone would be dropped."""
    t = Tiny()
    h, other = t.dot(), t.dot()
    kept = t.op("tanh", t.op("mul", h, other))
    again = t.dot(kept, t.input(64))
    t.returns(t.op("exp", t.op("mul", again, kept)))
    assert paint(t)[kept] == "half cut"


def test_a_value_that_unknown_operations_take_full_is_full() -> None:
    t = Tiny()
    h = t.op("add", t.dot(), t.dot())
    for _ in range(2):
        t.returns(t.dot(t.op("custom", h), t.input(64), size=8))
    assert paint(t)[h] == "full cut"


def test_one_copy_serves_all_that_take_half() -> None:
    """Three dots and an unknown operation: written twice, once in each precision."""
    t = Tiny()
    h = t.op("add", t.dot(), t.dot())
    for _ in range(3):
        t.returns(t.dot(h, t.input(64), size=8))
    t.returns(t.dot(t.op("custom", h), t.input(64), size=8))
    painted = paint(t)
    assert [cast for cast in painted.casts() if cast[0] == h] in (
        [(h, "half", 0, 3)],
        [(h, "full", 0, 1)],
    )


def test_a_lifted_value_is_stored_half_for_those_that_take_half() -> None:
    t = Tiny()
    weights = t.op("soft", t.dot())
    t.returns(t.dot(weights, t.input(64), size=32))
    graph = t.graph()
    painting = paint_mincut(graph, classes_of(graph))
    node = graph.values[weights].producer
    assert painting.compute[node] is Paint.FULL
    assert painting.store[node] is Paint.HALF
    assert painting.rules[node] == "range"


def test_without_an_allow_operation_nothing_is_half() -> None:
    t = Tiny()
    x = t.input(64)
    t.returns(t.op("sum", t.op("gather", t.op("tanh", x)), size=1))
    graph = t.graph()
    assert not paint_mincut(graph, classes_of(graph)).changed


def test_a_calculation_apart_from_every_dot_stays_full() -> None:
    t = Tiny()
    apart = t.op("gather", t.op("tanh", t.input(64)))
    t.returns(t.dot(), t.op("sum", apart, size=1))
    assert paint(t)[apart] == "full outside"


def test_state_stays_full() -> None:
    t = Tiny()
    weights = t.input(64)
    new = t.op("add", weights, t.op("mul", t.input(1), t.dot()))
    t.returns(new)
    assert paint(t)[new] == "full state"


def test_painting_again_gives_the_same() -> None:
    draw = random.Random(5)
    for _ in range(20):
        graph = random_program(draw)
        classes = classes_of(graph)
        assert paint_mincut(graph, classes) == paint_mincut(graph, classes)
