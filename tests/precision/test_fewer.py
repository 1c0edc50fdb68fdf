"""Choices by casts: the cheapest one, exactly; fewer casts and no new rounding; the painter."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from duotone.graph.graph import Graph, Paint, Value
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes, classify
from duotone.precision.classify.lists import OpLists
from duotone.precision.painters import PAINTERS, paint_tensorflow
from duotone.precision.painters.cheapest_choice import Choice
from duotone.precision.painters.fewer import fewer_casts
from duotone.precision.painters.mincut import paint_mincut
from duotone.precision.painters.painting import Painting, check_painting
from duotone.precision.rules import Rule
from tests.graph.tiny import ENTRIES, FLOAT16, Tiny
from tests.precision.tensorflow_cases import ENTRIES as OF_TENSORFLOW
from tests.precision.tensorflow_cases import read_cases

NO_STEPS = ("mixed", "operand", "wide")


def painted(t: Tiny) -> tuple[Graph, Classes, Painting, Painting]:
    """A graph, its painting in which a node has one precision, and that with fewer casts."""
    graph = t.graph()
    classes = classify(graph, OpLists.for_half(ENTRIES, "float16"), FLOAT16)
    before = PAINTERS["duotone"](graph, classes, NO_STEPS)
    before = dataclasses.replace(before, store=before.compute)
    after = fewer_casts(graph, classes, before)
    check_painting(after, graph)
    assert after.store == after.compute
    return graph, classes, before, after


def cost_of_casts(graph: Graph, paints: Sequence[Paint], cost: Callable[[Value], int]) -> int:
    return Choice(graph, [None] * len(graph.nodes), cost).cost_of_casts(paints)


def one(value: Value) -> int:
    """Each cast costs the same."""
    del value
    return 1


def casts(graph: Graph, painting: Painting) -> int:
    return cost_of_casts(graph, painting.compute, one)


def some_program(seed: int) -> Tiny:
    """A random program of moves, arithmetic, denied operations and dots."""
    r, t = random.Random(seed), Tiny()
    values = [t.input(64), t.input(64)]
    for _ in range(12):
        op = r.choice("dot add mul tanh exp log relu select reshape concat".split())
        count = 1 if op in ("tanh", "exp", "log", "relu", "reshape") else 2
        values.append(t.op(op, *r.choices(values[-6:], k=count), size=64))
    t.returns(values[-1], values[-4])
    return t


def test_four_slices_of_one_input_share_a_cast() -> None:
    t = Tiny()
    x = t.input(64)
    slices = [t.op("reshape", x, size=16) for _ in range(4)]
    t.returns(t.op("dot", t.op("concat", *slices, size=64), t.input(64), size=32))
    graph, _, before, after = painted(t)
    assert (casts(graph, before), casts(graph, after)) == (6, 3)
    assert all(after.compute[graph.values[v].producer] is Paint.HALF for v in slices)
    assert after.rules.count(Rule.CUT) == 4


def test_what_leads_to_a_result_is_cast_once() -> None:
    t = Tiny()
    parts = [t.op("tanh", t.dot(size=16), size=16) for _ in range(3)]
    t.returns(t.op("concat", *parts, size=48))
    graph, _, before, after = painted(t)
    assert casts(graph, before) - casts(graph, after) == 2


def test_one_cast_less_is_not_paid_by_many_roundings() -> None:
    t = Tiny()
    values = [t.dot(size=64), t.dot(size=64)]
    for _ in range(40):
        values = [t.op("tanh", value) for value in values]
    t.returns(t.op("add", *values))
    _, _, before, after = painted(t)
    assert after.compute == before.compute


def test_a_half_value_between_full_ones_is_full() -> None:
    t = Tiny()
    h = t.dot(size=64)
    t.returns(h)
    scale = t.op("exp", t.input(1))
    product = t.op("mul", h, scale)
    t.returns(t.op("sum", product, size=1), scale)
    graph, _, before, after = painted(t)
    assert (casts(graph, before), casts(graph, after)) == (5, 3)
    assert after.compute[graph.values[product].producer] is Paint.FULL


def test_no_rounding_reaches_a_denied_operation_for_the_sake_of_a_cast() -> None:
    t = Tiny()
    x = t.input(64)
    moved = [t.op("reshape", x), t.op("relu", x)]
    dots = [t.op("dot", value, t.input(64), size=64) for value in (x, *moved)]
    both = t.op("concat", *moved, size=128)
    t.returns(t.op("exp", both), *dots)
    graph, _, _, after = painted(t)
    assert after.compute[graph.values[both].producer] is Paint.FULL
    assert all(after.compute[graph.values[v].producer] is Paint.FULL for v in moved)


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_rounded_that_was_not(seed: int) -> None:
    """Full operations after a new half one are state, or the value was a number of half anyway."""
    graph, classes, before, after = painted(some_program(seed))
    assert casts(graph, after) <= casts(graph, before)
    exact: set[int] = {v.index for v in graph.values if before_is_half(graph, before, v)}
    for node in graph.nodes:
        found = classes.nodes[node.index]
        if (
            found.kind is Kind.CLEAR
            and Trait.COMMUTES in found.entry.traits
            and exact.issuperset(node.inputs)
        ):
            exact.update(node.outputs)
    for node in graph.nodes:
        index = node.index
        if classes.nodes[index].kind in (Kind.ALLOW, Kind.DENY):
            assert after.compute[index] is before.compute[index]
        if after.compute[index] is before.compute[index] or before.compute[index] is Paint.HALF:
            continue
        if before.rules[index] is Rule.STATE or exact.issuperset(node.outputs):
            continue
        readers = [r for v in node.outputs for r, _ in graph.consumers[v]]
        assert all(after.compute[reader] is Paint.HALF for reader in readers)


def before_is_half(graph: Graph, painting: Painting, value: Value) -> bool:
    return graph.stored(painting.store, value) is Paint.HALF


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_the_cheapest(seed: int) -> None:
    graph = some_program(seed).graph()
    r = random.Random(seed)
    costs = {value.index: r.randrange(1, 50) for value in graph.values}
    given = [r.choice([None, None, Paint.HALF, Paint.FULL]) for _ in graph.nodes]
    kept = {i: (r.choice(list(Paint)), r.randrange(9)) for i, p in enumerate(given) if p is None}

    def cost(value: Value) -> int:
        return costs[value.index]

    def price(paints: list[Paint]) -> int:
        return sum(c for i, (paint, c) in kept.items() if paints[i] is not paint)

    choice = Choice(graph, given, cost)
    for index, (paint, more) in kept.items():
        choice.prefer(index, paint, more)
    chosen = choice.solve()
    every = itertools.product(*([p] if p is not None else list(Paint) for p in given))
    least = min(cost_of_casts(graph, list(p), cost) + price(list(p)) for p in every)
    assert cost_of_casts(graph, chosen, cost) + price(chosen) == least


def test_a_pair_is_never_full_and_half() -> None:
    t = Tiny()
    x = t.input(64)
    a = t.op("relu", x)
    b = t.op("relu", a)
    t.returns(b)
    choice = Choice(t.graph(), [None, None], lambda _: 0)
    choice.prefer(0, Paint.HALF, 5)
    choice.prefer(1, Paint.FULL, 5)
    choice.never(full=1, half=0, cost=4)
    assert choice.solve() == [Paint.HALF, Paint.FULL]
    choice.never(full=1, half=0, cost=4)
    assert choice.solve()[0] is choice.solve()[1]


# ---------------------------------------------------------------- the minimum cut as a painter


def against_tensorflow(graph: Graph, classes: Classes) -> tuple[Painting, Painting]:
    before, after = paint_tensorflow(graph, classes), paint_mincut(graph, classes)
    check_painting(after, graph)
    for index, found in enumerate(classes.nodes):
        if found.kind in (Kind.ALLOW, Kind.DENY) or before.rules[index] is Rule.TAINT:
            assert after.compute[index] is before.compute[index]
    assert cost_of_casts(graph, after.compute, bytes_of) <= cost_of_casts(
        graph, before.compute, bytes_of
    )
    return before, after


def bytes_of(value: Value) -> int:
    return 6 * value.size


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: case.name)
def test_the_cut_costs_no_more_than_tensorflow_s_passes(case) -> None:
    lists = OpLists.for_half(OF_TENSORFLOW, "float16")
    against_tensorflow(case.graph, classify(case.graph, lists, FLOAT16))


def make_classes(of: Callable[[], Tiny]) -> tuple[Graph, Classes]:
    graph = of().graph()
    return graph, classify(graph, OpLists.for_half(ENTRIES, "float16"), FLOAT16)


def test_the_cut_is_cheaper_on_some_programs() -> None:
    cheaper = 0
    for seed in range(60):
        graph, classes = make_classes(lambda seed=seed: some_program(seed))
        before, after = against_tensorflow(graph, classes)
        cheaper += casts(graph, after) < casts(graph, before)
    assert cheaper > 5


def test_the_cut_weighs_bytes() -> None:
    """Large is what the reduction reads: cast after it, not before."""
    t = Tiny()
    h = t.op("rowmax", t.op("relu", t.dot(size=1000)), size=10)
    t.returns(t.op("exp", h))
    graph, classes = make_classes(lambda: t)
    assert paint_mincut(graph, classes).compute[graph.values[h].producer] is Paint.HALF
