"""Declining what does not gain on a device, and accumulators that are passed on."""

from __future__ import annotations

import dataclasses

import pytest

from duotone.graph.graph import HALF_TYPES
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Pins
from duotone.precision.classify.declining import decline
from duotone.precision.classify.profitability import EVERYTHING, Profitability
from duotone.precision.context import Background
from duotone.precision.painters import PAINTERS
from tests.graph.tiny import Tiny

CPU = Profitability(
    "this CPU", allow=frozenset({Trait.WIDE}), min_flops=1000, min_intensity=4, only_allow=True
)


def _dot(t: Tiny, flops: float, *inputs: int) -> int:
    return t.op("dot", *(inputs or (t.input(), t.input())), size=64, flops=flops)


@pytest.mark.parametrize("painter", sorted(PAINTERS))
def test_a_device_of_which_nothing_is_known_declines_nothing(painter: str) -> None:
    t = Tiny()
    h = t.op("tanh", _dot(t, 1.0))
    t.returns(_dot(t, 1.0, h, t.input()))
    plain, with_forms = t.paint(painter), t.paint(painter, profitability=EVERYTHING)
    assert plain.painting == with_forms.painting


@pytest.mark.parametrize("painter", sorted(set(PAINTERS) - {"tensorflow"}))
@pytest.mark.parametrize(
    ("flops", "expected", "reason"),
    [
        (999.0, "full small", "below 1e+03 FLOP"),
        (1000.0, "half>full wide", ""),
        (1e9, "half>full wide", ""),
    ],
)
def test_a_small_dot_stays_full(painter: str, flops: float, expected: str, reason: str) -> None:
    t = Tiny()
    value = _dot(t, flops)
    t.goes_on(value)
    painted = t.paint(painter, profitability=CPU)
    assert painted[value] == expected
    assert reason in painted.detail(value)


def test_a_dot_that_hardly_uses_what_it_reads_stays_full() -> None:
    t = Tiny()
    vector_matrix = t.op("dot", t.input(64), t.input(4096), size=64, flops=2 * 4096)
    t.goes_on(vector_matrix)
    painted = t.paint(profitability=CPU)
    assert painted[vector_matrix] == "full small"
    assert "4 FLOP per element" in painted.detail(vector_matrix)


SHARED = dataclasses.replace(CPU, min_intensity=8.0, shared_casts=(4.0, 16.0))


@pytest.mark.parametrize(
    ("trips", "flops", "expected"),
    [
        (1, 5e3, "full small"),
        (2, 5e3, "full small"),
        (10, 5e3, "half>full wide"),
        (100, 4e3, "full small"),
    ],
)
def test_a_small_dot_in_a_loop_shares_the_cast_of_its_weight(
    trips: int, flops: float, expected: str
) -> None:
    """The weight counts once for all iterations, but a dot of few rows is no faster in half."""
    t = Tiny()
    weight, start = t.input(1024), t.input(64)
    with t.loop(trips):
        inside, after = t.carry(start)
        value = t.op("dot", inside, weight, size=64, flops=flops)
        t.close(inside, t.op("tanh", value))
    t.returns(after)
    assert t.paint(profitability=SHARED)[value] == expected
    assert (
        t.paint(profitability=dataclasses.replace(SHARED, shared_casts=None))[value] == "full small"
    )


def test_a_weight_that_is_cast_before_any_call_costs_no_cast() -> None:
    t = Tiny()
    weight = t.input(1024)
    value = t.op("dot", t.input(64), t.op("reshape", weight, size=1024), size=64, flops=5e3)
    t.goes_on(value)
    graph, half = t.graph(), HALF_TYPES["bfloat16"]
    classes = t.paint(profitability=EVERYTHING).classes
    index = graph.values[value].producer
    for weights, kind in ((frozenset({weight}), Kind.ALLOW), (frozenset(), Kind.DENY)):
        background = Background(graph, half, profitability=SHARED, weights=weights)
        assert decline(classes, background).nodes[index].kind is kind


def test_what_is_not_fast_on_the_device_stays_full() -> None:
    t = Tiny()
    value = t.op("conv", t.input(), t.input(), flops=1e9)
    t.goes_on(value)
    painted = t.paint(profitability=CPU)
    assert painted[value] == "full device"
    assert "conv gains nothing" in painted.detail(value)
    assert t.paint()[value].startswith("half")


def test_between_dots_all_is_full_and_sums_are_not_rounded() -> None:
    t = Tiny()
    h = t.op("tanh", _dot(t, 1e9))
    moved = t.op("reshape", h)
    after = _dot(t, 1e9, moved, t.input())
    t.returns(after)
    painted = t.paint(profitability=CPU)
    assert (painted[h], painted[moved]) == ("full device", "full device")
    assert painted[after] == "half>full wide"
    assert {cast[1] for cast in painted.casts()} == {"half"}
    assert t.paint()[h] == "half downstream"


def test_a_declined_operation_taints_nothing() -> None:
    """Planted fault: a declined node that kept the taint of the deny list drags its readers."""
    forms = Profitability("this GPU", min_flops=1000)
    t = Tiny()
    small = _dot(t, 10.0)
    large = _dot(t, 1e9)
    both = t.op("add", large, small)
    t.goes_on(both)
    painted = t.paint(profitability=forms)
    assert painted[small] == "full small"
    assert not painted[both].endswith("taint")
    assert painted[large].startswith("half")


def test_what_the_user_decided_is_not_declined() -> None:
    t = Tiny()
    with t.scope("kept"):
        pinned = _dot(t, 1.0)
    moved = t.op("tanh", pinned)
    t.goes_on(moved)
    painted = t.paint(
        profitability=CPU,
        pins=Pins(half=("kept/*",)),
        edit=lambda lists: lists.edited({Kind.ALLOW: ["tanh"]}, {}),
    )
    assert painted[pinned] == "half pinned"
    assert painted[moved].startswith("half")


def test_an_operation_that_would_gain_with_compiler_options_is_marked() -> None:
    """Planted fault: without the check of the size, the small one is marked too."""
    lacks = dataclasses.replace(CPU, missing=" without options")
    t = Tiny()
    t.returns(*[t.op("conv", t.input(), size=64, flops=flops) for flops in (2000.0, 2000.0, 1.0)])
    graph, classes = t.graph(), t.paint().classes
    slides = ({"slides": 1.0}, {}, {"slides": 1.0})
    pairs = zip(graph.nodes, slides, strict=True)
    nodes = tuple(dataclasses.replace(node, attributes=has) for node, has in pairs)
    background = Background(
        dataclasses.replace(graph, nodes=nodes), HALF_TYPES["bfloat16"], profitability=lacks
    )
    found = decline(classes, background).nodes
    assert [known.lacks_options for known in found] == [True, False, False]
    assert found[0].entry.reason.endswith("gains nothing from half without options")
    assert not found[1].entry.reason.endswith("without options")


def test_declining_leaves_unlisted_and_fixed_operations_alone() -> None:
    t = Tiny()
    unknown = t.op("sorcery", t.input())
    fixed = t.op("dot", t.input(), t.input(), fixed="the user asked for it", flops=1.0)
    t.goes_on(unknown, fixed)
    painted = t.paint(profitability=CPU)
    assert painted[unknown] == "full unlisted"
    assert painted[fixed] == "full fixed"


def test_declining_makes_new_classes() -> None:
    t = Tiny()
    t.returns(_dot(t, 1.0))
    graph = t.graph()
    classes = t.paint().classes
    kept = dataclasses.replace(classes)
    declined = decline(classes, Background(graph, HALF_TYPES["float16"], profitability=CPU))
    assert classes == kept != declined
    assert declined.half is HALF_TYPES["float16"]


def test_people_see_the_list_on_which_a_declined_operation_stands() -> None:
    t = Tiny()
    t.returns(_dot(t, 1.0, t.op("tanh", t.input()), t.input()))
    background = Background(t.graph(), HALF_TYPES["float16"], profitability=CPU)
    declined = decline(t.paint(profitability=EVERYTHING).classes, background)
    assert [found.kind for found in declined.nodes] == [Kind.DENY, Kind.DENY]
    assert [found.listed for found in declined.nodes] == [Kind.INFER, Kind.ALLOW]
