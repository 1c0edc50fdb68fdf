"""Residuals on tiny graphs: what is recomputed, from what, for whom, and what is not.

Most graphs here are one network: a dot, something pointwise, a dot, and far readers after it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from duotone.graph.graph import Paint
from duotone.ops.entries import Entry, Kind, Pointwise
from duotone.ops.traits import Trait
from duotone.precision import levels
from duotone.precision.optimize import residuals
from duotone.precision.optimize.painted_view import View
from duotone.precision.optimize.residuals import NOTHING, Recompute, plan_residuals
from tests.graph.tiny import ENTRIES, Painted, Tiny

_KINDS = {
    **dict.fromkeys(("tanh", "exp"), Pointwise.EXPENSIVE),
    "log": Pointwise.VERY_EXPENSIVE,
    **dict.fromkeys(
        ("add", "mul", "relu", "select", "reshape", "broadcast", "name"), Pointwise.CHEAP
    ),
}
_ENTRIES = tuple(
    dataclasses.replace(entry, pointwise=_KINDS.get(entry.op, Pointwise.NO)) for entry in ENTRIES
)


def residuals_of(painted: Painted, name: str = "recompute") -> Recompute:
    view = View(painted.graph, painted.classes, painted.painting)
    return plan_residuals(view, frozenset({name, "normalized_softmax"}))


def planned(
    t: Tiny, painter: str = "duotone", name: str = "recompute"
) -> tuple[Painted, Recompute]:
    painted = t.paint(painter, entries=_ENTRIES)
    return painted, residuals_of(painted, name)


def roots(plan: Recompute) -> set[int]:
    return set().union(*(site.roots for site in plan.sites))


def downstream(t: Tiny, *values: int) -> list[int]:
    """Far readers: the last of four dots, multiplied with each value."""
    y = t.dot(t.dot(t.dot(t.dot(), t.input()), t.input()), t.input())
    found = [t.op("mul", y, value) for value in values]
    t.goes_on(*found)
    return found


def test_a_transcendental_of_a_dot_is_recomputed_from_the_dot() -> None:
    t = Tiny()
    h = t.dot()
    s = t.op("mul", h, t.constant(0.5))
    a = t.op("tanh", s)
    (far,) = downstream(t, t.dot(t.op("relu", a), t.input(64)))
    y = t.dot(t.op("mul", a, h), t.input(64))
    reader = t.op("mul", y, a)
    t.goes_on(reader, far)
    painted, plan = planned(t)
    node = painted.graph.values[reader].producer
    site = plan.sites[plan.reads[node, a]]
    assert site.recomputed == {s, a}
    assert site.roots == {h}
    assert {painted.graph.values[v].producer for v in (h, s, a, reader)} <= plan.nodes(
        painted.graph
    )


def test_readers_near_by_take_the_first_calculation() -> None:
    t = Tiny()
    a = t.op("tanh", t.dot())
    near = t.op("mul", a, a)
    downstream(t, a)
    t.goes_on(near)
    painted, plan = planned(t)
    assert (painted.graph.values[near].producer, a) not in plan.reads
    assert plan.recomputed == {a}


def test_readers_at_one_level_share_a_calculation() -> None:
    t = Tiny()
    h = t.dot()
    a = t.op("tanh", h)
    first, second = downstream(t, a, a)
    third = t.op("add", t.dot(first, t.input(64)), a)
    t.goes_on(third)
    painted, plan = planned(t)
    sites = [plan.reads[painted.graph.values[v].producer, a] for v in (first, second, third)]
    assert sites[0] == sites[1] != sites[2]
    assert all(plan.sites[site].recomputed == {a} for site in sites)


def test_what_the_user_named_is_kept_and_others_follow_from_it() -> None:
    t = Tiny()
    a = t.op("tanh", t.dot())
    named = t.op("name", a)
    b = t.op("exp", named)
    downstream(t, named, b)
    _, plan = planned(t)
    assert (plan.recomputed, roots(plan)) == ({b}, {named})


def test_what_is_cheap_is_left_to_the_compiler() -> None:
    t = Tiny()
    downstream(t, t.op("mul", t.op("relu", t.dot()), t.constant(2.0)))
    assert planned(t)[1] == NOTHING


def test_what_the_compiler_does_not_keep_is_left_to_it() -> None:
    def plan(op: str) -> frozenset[int]:
        t = Tiny()
        a = t.op(op, t.dot())
        downstream(t, a)
        return planned(t, name="recompute_very_expensive")[1].recomputed

    assert not plan("tanh")
    assert len(plan("log")) == 1


def test_what_is_cheap_is_shared_where_it_is_recomputed_anyway() -> None:
    t = Tiny()
    h = t.dot()
    s = t.op("mul", h, t.constant(0.5))
    a = t.op("tanh", s)
    far_s, far_a = downstream(t, s, a)
    painted, plan = planned(t)
    reads = {painted.graph.nodes[node].outputs[0]: place for (node, _), place in plan.reads.items()}
    assert reads[far_s] == reads[far_a]


def test_a_value_with_a_dot_reader_is_kept() -> None:
    t = Tiny()
    a = t.op("tanh", t.dot())
    t.returns(t.dot(a, t.input(64)))
    downstream(t, a)
    assert planned(t)[1] == NOTHING


def test_a_value_that_a_dot_reads_is_a_root_of_others() -> None:
    t = Tiny()
    a = t.op("tanh", t.dot())
    t.returns(t.dot(a, t.input(64)))
    b = t.op("tanh", a)
    downstream(t, b)
    _, plan = planned(t)
    assert (plan.recomputed, roots(plan)) == ({b}, {a})


def test_a_result_of_the_program_is_kept() -> None:
    t = Tiny()
    a = t.op("tanh", t.dot())
    t.returns(a)
    downstream(t, a)
    assert planned(t)[1] == NOTHING


def test_roots_must_not_be_larger_than_what_they_save() -> None:
    t = Tiny()
    a = t.op("tanh", t.op("add", t.dot(), t.op("mul", t.dot(), t.dot())))
    downstream(t, a)
    assert planned(t)[1] == NOTHING


def test_a_root_that_is_kept_anyway_costs_nothing() -> None:
    t = Tiny()
    p, q, r = t.dot(), t.dot(), t.dot()
    t.goes_on(*[t.dot(value, t.input(64)) for value in (p, q, r)])
    a = t.op("tanh", t.op("add", p, t.op("mul", q, r)))
    downstream(t, a, p, q, r)
    _, plan = planned(t)
    assert a in plan.recomputed
    assert roots(plan) == {p, q, r}


def test_bytes_count_as_they_are_painted() -> None:
    """Two roots in half weigh no more than one value in float32."""
    for paint, wanted in ((Paint.HALF, True), (Paint.FULL, False)):
        t = Tiny()
        p, q = t.input(64, given=paint), t.input(64, given=paint)
        a = t.op("exp", t.op("add", t.op("relu", p), q))  # denied: stored in float32
        y = t.dot()
        t.goes_on(t.op("mul", t.dot(t.op("mul", y, a), t.input(64)), y))
        assert bool(planned(t)[1].recomputed) is wanted


def test_small_values_on_the_way_are_kept() -> None:
    t = Tiny()
    h = t.dot()
    mean = t.op("sum", h, size=8)
    scale = t.op("exp", mean)
    a = t.op("tanh", t.op("mul", h, scale, size=64))
    downstream(t, a)
    _, plan = planned(t)
    assert a in plan.recomputed
    assert roots(plan) == {h}
    assert not {mean, scale} & plan.recomputed


def test_a_large_statistic_is_a_root() -> None:
    t = Tiny()
    h = t.dot()
    total = t.op("sum", h, size=16)
    a = t.op("exp", t.op("mul", h, total, size=64))  # in float32: weighs as much as both
    downstream(t, a)
    assert roots(planned(t)[1]) == {h, total}


def test_constants_are_neither_roots_nor_hidden() -> None:
    t = Tiny()
    h = t.dot()
    a = t.op("tanh", t.op("mul", h, t.constant(0.5, size=64)))
    downstream(t, a)
    assert roots(planned(t)[1]) == {h}


def test_what_follows_from_constants_alone_is_left_alone() -> None:
    t = Tiny()
    a = t.op("tanh", t.constant(0.5, size=64))
    downstream(t, a)
    assert planned(t)[1] == NOTHING


@pytest.mark.parametrize("dtype", ["key<fry>", "none", "float0"])
def test_a_root_that_holds_no_numbers_is_left_alone(dtype: str) -> None:
    t = Tiny()
    h, key = t.dot(), t.input(64, dtype)
    a = t.op("tanh", t.op("select", h, key))
    downstream(t, a)
    assert planned(t)[1] == NOTHING


@pytest.mark.parametrize("op", ["sum", "gather", "mystery", "dot"])
def test_nothing_but_pointwise_operations_is_recomputed(op: str) -> None:
    """What is random, has effects or reads many elements is on no such list: it is a root."""
    t = Tiny()
    drawn = t.op(op, t.dot())
    a = t.op("tanh", drawn)
    downstream(t, a)
    _, plan = planned(t)
    assert (plan.recomputed, roots(plan)) == ({a}, {drawn})


def test_an_operation_with_two_results_is_never_recomputed() -> None:
    t = Tiny()
    first, second = t.multi("tanh", [t.dot()], [(64, "float32", 0)] * 2)
    downstream(t, first, second)
    assert planned(t)[1] == NOTHING


def test_whether_values_are_equal_is_asked_of_the_first_ones() -> None:
    """A second computation may differ by a bit: ``x == max(x)`` would then be nowhere."""
    same = Entry("same", Kind.CLEAR, "compares", "tests", traits=frozenset({Trait.EQUALITY}))
    t = Tiny()
    a = t.op("tanh", t.dot())
    top = t.op("sum", a, size=1)
    mask = t.op("same", a, top, dtype="bool")
    far_a, far_mask = downstream(t, a, mask)
    again_later = t.op("same", t.dot(far_a, t.input()), t.op("relu", far_mask), dtype="bool")
    t.goes_on(t.op("select", again_later, far_a))
    entries = (*_ENTRIES, same)
    painted = t.paint(entries=entries)
    plan = residuals_of(painted)
    assert a in plan.recomputed
    assert mask not in plan.recomputed

    t = Tiny()
    a = t.op("tanh", t.dot())
    (far,) = downstream(t, a)
    t.goes_on(t.op("select", t.op("same", t.dot(far, t.input()), a, dtype="bool"), far))
    painted = t.paint(entries=entries)
    assert residuals_of(painted) == NOTHING


def test_a_long_way_is_not_gone_twice() -> None:
    t = Tiny()
    a = t.dot()
    for _ in range(residuals._LONGEST_CHAIN + 1):
        a = t.op("tanh", a)
    downstream(t, a)
    assert planned(t)[1] == NOTHING


def test_a_reader_in_a_body_keeps_a_value() -> None:
    for kind in ("loop", "barrier"):
        t = Tiny()
        a = t.op("tanh", t.dot())
        downstream(t, a)
        y = t.dot(t.dot(), t.input())
        with getattr(t, kind)():
            t.returns(t.op("call.result", t.op("mul", y, a)))
        assert planned(t)[1] == NOTHING


def test_inside_a_body_it_is_as_outside() -> None:
    for kind in ("loop", "barrier"):
        t = Tiny()
        x, w = t.input(64), t.input(64)
        with getattr(t, kind)() as body:
            h = t.dot(x, w)
            a = t.op("tanh", h)
            y = t.dot(t.op("relu", h), w)
            t.returns(t.op("call.result", t.dot(t.op("mul", y, a), w)))
        painted, plan = planned(t)
        assert (plan.recomputed, roots(plan)) == ({a}, {h})
        assert all(painted.graph.values[value].body == body for value in plan.recomputed)


def test_a_value_from_around_a_body_is_not_recomputed_inside() -> None:
    """It may be made from something that the body is not handed."""
    t = Tiny()
    x, w, secret = t.input(64), t.input(64), t.input(8)
    around = t.op("tanh", t.op("mul", x, secret, size=64))
    with t.barrier():
        a = t.op("tanh", x)
        y = t.dot(t.op("relu", t.dot(x, w)), w)
        reader = t.op("mul", t.op("mul", y, a), around)
        t.returns(t.op("call.result", t.dot(reader, w)))
    painted, plan = planned(t)
    assert a in plan.recomputed
    assert around not in plan.recomputed
    assert (painted.graph.values[reader].producer, around) not in plan.reads


def test_everything_that_is_read_at_a_place_is_there() -> None:
    """Whatever is recomputed follows from roots, values near by, or what is left as it is."""
    t = Tiny()
    x = t.input(64)
    values = []
    for position in range(12):
        h = t.dot(x, t.input(64))
        values.append(t.op("tanh", t.op("add", h, values[-1] if values else h)))
        x = t.op("mul", t.op("relu", values[-1]), values[position // 2])
    t.goes_on(x, *values)
    painted, plan = planned(t)
    assert plan.reads
    graph = painted.graph
    made = {v: graph.values[v].producer for v in range(len(graph.values))}
    for (reader, value), index in plan.reads.items():
        site = plan.sites[index]
        assert value in site.recomputed
        assert made[value] < reader
        for needed in site.recomputed:
            node = graph.nodes[made[needed]]
            entry = painted.classes.nodes[node.index].entry
            assert entry.pointwise is not Pointwise.NO
            assert site.roots


# Planted faults: each is seen by a test above

_pointwise = residuals._Planner._pointwise


def _all_dear(self: Any, value: int) -> Pointwise:
    known = _pointwise(self, value)
    return known if known is Pointwise.NO else Pointwise.EXPENSIVE


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ({"_LONGEST_CHAIN": 1}, test_a_transcendental_of_a_dot_is_recomputed_from_the_dot),
        ({"SMALL": 1000}, test_small_values_on_the_way_are_kept),
        ({"SMALL": 1}, test_a_large_statistic_is_a_root),
        ({"_is_anchor": lambda *_: False}, test_readers_at_one_level_share_a_calculation),
        ({"_bytes": lambda *_: 1}, test_bytes_count_as_they_are_painted),
        ({"_is_kept": lambda *_: True}, test_roots_must_not_be_larger_than_what_they_save),
        ({"_is_kept": lambda *_: False}, test_a_root_that_is_kept_anyway_costs_nothing),
        ({"_may_read_recomputed": lambda *_: True}, test_a_reader_in_a_body_keeps_a_value),
        ({"_costs_nothing": lambda *_: False}, test_constants_are_neither_roots_nor_hidden),
        (
            {"_share": lambda *_: None},
            test_what_is_cheap_is_shared_where_it_is_recomputed_anyway,
        ),
        ({"_pointwise": _all_dear}, test_what_is_cheap_is_left_to_the_compiler),
        (
            {"_far_readers": lambda self, v: [r for r, _ in self.readers[v]]},
            test_readers_near_by_take_the_first_calculation,
        ),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else case.__name__,
)
def test_a_planted_fault_is_caught(
    fault: dict[str, Any], test: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, replacement in fault.items():
        owners = (residuals, levels, residuals._Planner)
        owner = next(owner for owner in owners if hasattr(owner, name))
        monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        test()
