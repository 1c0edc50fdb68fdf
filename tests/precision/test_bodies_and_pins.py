"""duotone's painter: nested programs, and operations that no rule decides."""

from __future__ import annotations

from duotone.ops.entries import Entry, Kind, Taint
from duotone.precision.classify.classes import Pins
from tests.graph.tiny import ENTRIES, Tiny

# ----------------------------------------- loops


def test_a_carry_has_one_precision_inside_and_after() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.loop():
        h, after = t.carry(start)
        t.close(h, t.op("tanh", t.dot(h, w)))
    t.returns(t.op("exp", after))
    painted = t.paint()
    assert painted[h] == painted[after] == "half downstream"
    assert (start, "half", 0, 1) in painted.casts()


def test_a_carry_that_is_returned_is_state() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.loop():
        h, after = t.carry(start)
        t.close(h, t.op("tanh", t.dot(h, w)))
    t.returns(after)
    painted = t.paint()
    assert painted[after] == "full state"


def test_a_denied_carry_is_full_inside_and_after() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.loop():
        h, after = t.carry(start)
        t.close(h, t.op("exp", t.dot(h, w)))
    t.returns(t.dot(after, w))
    painted = t.paint()
    assert painted[h] == painted[after] == "full taint"


def test_an_accumulator_of_a_loop_is_full() -> None:
    t = Tiny()
    w, zeros = t.input(64), t.input(64)
    with t.loop():
        total, after = t.carry(zeros, op="loop.accumulator")
        t.close(total, t.op("add", total, t.dot(w, w)))
    t.returns(t.dot(after, w))
    painted = t.paint()
    assert painted[after] == "full deny"


def test_a_join_of_branches_is_half_if_they_are_and_full_if_one_is_denied() -> None:
    for op, expected in (("tanh", "half downstream"), ("exp", "full taint")):
        t = Tiny()
        h = t.dot()
        with t.barrier():
            one = t.op("tanh", h)
        with t.barrier():
            other = t.op(op, h)
        joined = t.join(one, other)
        t.goes_on(joined)
        assert t.paint()[joined] == expected


# ----------------------------------------- what no rule decides


def test_an_unlisted_operation_is_full_and_passes_nothing_on() -> None:
    t = Tiny()
    h = t.dot()
    odd = t.op("mystery", h)
    after = t.op("add", odd, h)
    t.returns(t.dot(after, t.input(64)))
    painted = t.paint()
    assert painted[odd] == "full unlisted"
    assert painted[after] == "full>half mixed"


def test_a_fixed_operation_is_full_and_says_why() -> None:
    t = Tiny()
    solved = t.op("dot", t.input(64), t.input(64), fixed="linear algebra has no half form")
    t.returns(solved)
    painted = t.paint()
    assert painted[solved] == "full fixed"
    assert painted.detail(solved) == "linear algebra has no half form"


def test_an_operation_without_float32_is_left_alone() -> None:
    t = Tiny()
    i = t.input(64, dtype="int32")
    j = t.op("add", i, i, dtype="int32")
    t.returns(j)
    assert t.paint()[j] == "full integer"


def test_taint_does_not_run_through_other_types() -> None:
    t = Tiny()
    where = t.op("round", t.op("exp", t.dot()), dtype="int32")
    h = t.dot()
    picked = t.op("select", where, h, h)
    t.returns(t.dot(picked, t.input(64)))
    assert t.paint()[picked] == "half downstream"


def test_pins_decide_whatever_the_rules_say() -> None:
    t = Tiny()
    with t.scope("loss"):
        h = t.dot()
    with t.scope(region="half"):
        e = t.op("exp", h)
        odd = t.op("mystery", e)
        huge = t.op("mul", odd, t.constant(1e6))
    after = t.op("tanh", huge)
    t.returns(t.dot(after, t.input(64)))
    painted = t.paint(pins=Pins(full=("loss/*",)))
    assert painted[h] == "full pinned"
    assert painted.detail(h) == "pattern 'loss/*'"
    assert [painted[v] for v in (e, odd, huge)] == ["half pinned"] * 3
    assert painted.detail(e) == "region keep_half()"
    assert painted[after] == "half downstream"


def test_a_pinned_value_taints_nothing() -> None:
    t = Tiny()
    with t.scope(region="full"):
        odd = t.op("tanh", t.dot())
    after = t.op("add", odd, t.dot())
    t.returns(t.dot(after, t.input(64)))
    painted = t.paint()
    assert painted[odd] == "full pinned"
    assert painted[after] == "full>half mixed"


def test_what_is_fixed_or_has_no_float32_cannot_be_pinned_half() -> None:
    t = Tiny()
    i = t.input(64, dtype="int32")
    with t.scope(region="half"):
        j = t.op("add", i, i, dtype="int32")
        solved = t.op("dot", t.input(64), fixed="linear algebra has no half form")
    t.returns(j, solved)
    painted = t.paint()
    assert painted[j] == "full integer"
    assert painted[solved] == "full fixed"


def test_everywhere_reaches_through_clear_operations_that_do_not_commute() -> None:
    everywhere = Entry("huge", Kind.DENY, "may overflow", "tests", taint=Taint.EVERYWHERE)
    t = Tiny()
    h = t.dot()
    large = t.op("round", t.op("huge", t.input(1)))
    shifted = t.op("add", h, large, size=64)
    t.returns(t.dot(shifted, t.input(64)))
    assert t.paint(entries=(*ENTRIES, everywhere))[shifted] == "full taint"
