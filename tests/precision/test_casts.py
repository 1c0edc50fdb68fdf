"""The cast plan: one cast for each value, precision and place; hoisted out of loops."""

from __future__ import annotations

import dataclasses

import pytest

from duotone.graph.graph import Boundary, Paint
from duotone.ops.entries import Pointwise
from duotone.precision.casts.cast_plan import MATERIALIZE_PARTS, MATERIALIZE_WIDENED, plan_casts
from tests.graph.tiny import SUMS, Painted, Tiny


def _casts_of(painted: Painted, value: int) -> list[tuple[str, int, int]]:
    """To, body and number of readers of each cast of a value."""
    return [(to, body, readers) for v, to, body, readers in painted.casts() if v == value]


def test_all_readers_share_one_cast() -> None:
    t = Tiny()
    x = t.input(64)
    t.goes_on(t.dot(x, t.input(64)), t.dot(x, t.input(64)), t.dot(x, x))
    assert _casts_of(t.paint(), x) == [("half", 0, 4)]


def test_a_value_read_in_both_precisions_is_cast_to_the_other_only() -> None:
    t = Tiny()
    h = t.dot()
    t.returns(t.op("exp", h), t.op("exp", h), t.dot(h, h))
    assert _casts_of(t.paint(), h) == [("full", 0, 2)]


def test_what_is_stored_as_it_is_read_is_not_cast() -> None:
    t = Tiny()
    h = t.op("tanh", t.dot())
    t.goes_on(h)
    assert _casts_of(t.paint(), h) == []


def test_an_output_is_a_reader() -> None:
    t = Tiny()
    h = t.op("conv", t.input(64), t.input(64))
    t.returns(h, h)
    painted = t.paint()
    (cast,) = [c for c in painted.plan.casts if c.value == h]
    assert (cast.to, cast.readers) == (Paint.FULL, (-1, -1))


def test_an_output_that_may_leave_as_it_is_stored_is_not_cast() -> None:
    for boundary, expected in ((Boundary.ANY, []), (Boundary.HALF, [])):
        t = Tiny()
        h = t.op("conv", t.input(64), t.input(64))
        t.returns(h, boundary=boundary)
        assert _casts_of(t.paint(), h) == expected


def test_integers_are_never_cast() -> None:
    t = Tiny()
    where = t.input(64, dtype="bool")
    picked = t.op("select", where, t.dot(), t.dot())
    t.goes_on(picked)
    assert _casts_of(t.paint(), where) == []


def test_a_constant_is_cast_for_nothing() -> None:
    t = Tiny()
    two = t.constant(2.0)
    t.goes_on(t.op("mul", t.dot(), two))
    painted = t.paint()
    (cast,) = [c for c in painted.plan.casts if c.value == two]
    assert cast.free


def test_a_weight_of_a_loop_is_cast_once_before_it() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.loop() as body:
        h, after = t.carry(start)
        t.close(h, t.op("tanh", t.dot(h, w)))
    t.goes_on(after)
    painted = t.paint()
    assert _casts_of(painted, w) == [("half", 0, 1)]
    assert (w, Paint.HALF) in painted.plan.hoisted[body]


def test_a_weight_of_nested_loops_is_cast_before_the_outermost() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.loop() as outer:
        h, after = t.carry(start)
        with t.loop():
            g, result = t.carry(h)
            t.close(g, t.op("tanh", t.dot(g, w)))
        t.close(h, result)
    t.goes_on(after)
    painted = t.paint()
    assert _casts_of(painted, w) == [("half", 0, 1)]
    assert (w, Paint.HALF) in painted.plan.hoisted[outer]


def test_what_a_loop_makes_anew_is_cast_inside() -> None:
    t = Tiny()
    xs, w = t.input(640), t.input(64)
    with t.loop() as body:
        x = t.slice(xs)
        t.returns(t.stack(t.op("exp", t.dot(x, w))))
    painted = t.paint()
    assert _casts_of(painted, x) == [("half", body, 1)]


def test_what_the_outer_loop_makes_is_cast_before_the_inner_one() -> None:
    t = Tiny()
    xs, w = t.input(640), t.input(64)
    with t.loop() as outer:
        x = t.slice(xs)
        with t.loop() as inner:
            g, result = t.carry(t.op("exp", x))
            t.close(g, t.op("tanh", t.dot(g, x)))
        t.returns(t.stack(t.op("exp", t.dot(result, w))))
    painted = t.paint()
    assert _casts_of(painted, x) == [("half", outer, 1)]
    assert (x, Paint.HALF) in painted.plan.hoisted[inner]
    assert (x, Paint.HALF) not in painted.plan.hoisted[outer]


def test_a_branch_casts_inside() -> None:
    t = Tiny()
    x = t.input(64)
    with t.barrier() as one:
        a = t.dot(x, x)
    with t.barrier() as other:
        b = t.dot(x, x)
    t.goes_on(t.join(a, b))
    painted = t.paint()
    assert _casts_of(painted, x) == [("half", one, 2), ("half", other, 2)]
    assert painted.plan.hoisted == {}


def test_a_branch_inside_a_loop_casts_inside_itself() -> None:
    t = Tiny()
    w, xs = t.input(64), t.input(640)
    with t.loop() as loop:
        x = t.slice(xs)
        with t.barrier() as branch:
            h = t.dot(x, w)
        t.returns(t.stack(t.op("exp", t.join(h))))
    painted = t.paint()
    assert _casts_of(painted, w) == [("half", branch, 1)]
    assert (w, Paint.HALF) not in painted.plan.hoisted.get(loop, ())


def test_a_loop_inside_a_branch_casts_before_the_loop_inside_the_branch() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.barrier() as branch:
        with t.loop() as loop:
            h, after = t.carry(start)
            t.close(h, t.op("tanh", t.dot(h, w)))
        result = t.op("tanh", after)
    t.goes_on(t.join(result))
    painted = t.paint()
    assert _casts_of(painted, w) == [("half", branch, 1)]
    assert (w, Paint.HALF) in painted.plan.hoisted[loop]


def test_a_value_read_inside_and_outside_a_loop_is_cast_once() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.loop():
        h, after = t.carry(start)
        t.close(h, t.op("tanh", t.dot(h, w)))
    t.goes_on(t.dot(after, w))
    assert _casts_of(t.paint(), w) == [("half", 0, 2)]


def test_nothing_to_paint_needs_no_cast() -> None:
    t = Tiny()
    t.returns(t.op("exp", t.input(64)))
    painted = t.paint()
    assert painted.plan.casts == ()
    assert not painted.painting.changed


def _held(read: str, readers: int, *, hold: str = MATERIALIZE_WIDENED) -> list[bool]:
    """Whether the casts of a value are held: of a dot, or of a relu or gather downstream of it."""
    t = Tiny()
    value = t.dot()
    if read != "dot":
        value = t.op(read, value)
    t.goes_on(value, *[t.op("exp", value) for _ in range(readers)])
    painted = t.paint()
    nodes = [
        dataclasses.replace(
            found, entry=dataclasses.replace(found.entry, pointwise=Pointwise.CHEAP)
        )
        if found.entry.op == "relu"
        else found
        for found in painted.classes.nodes
    ]
    classes = dataclasses.replace(painted.classes, nodes=tuple(nodes))
    plan = plan_casts(painted.graph, classes, painted.painting, frozenset({hold}))
    return [
        bool(cast.materialized)
        for cast in plan.casts
        if (cast.value, cast.to) == (value, Paint.FULL)
    ]


def test_a_half_value_that_several_read_in_full_is_materialized_where_the_device_gains() -> None:
    assert _held("dot", 2) == [True]
    assert _held("dot", 2, hold="") == [False]
    assert _held("dot", 2, hold=MATERIALIZE_PARTS) == [False]


def test_what_is_read_once_or_comes_from_a_pointwise_operation_is_not_materialized() -> None:
    assert _held("dot", 1) == [False]
    assert _held("relu", 2) == [False]


def test_a_gather_is_not_materialized_since_every_reader_picks_for_itself() -> None:
    assert _held("gather", 2) == [False]


def test_what_is_put_together_of_parts_is_not_materialized_for_those_who_widen_it() -> None:
    """Each of them reads the parts: a barrier would make a kernel that joins them (DenseNet)."""
    assert _held("concat", 2) == [False]
    assert _held("pad", 2) == [False]


@pytest.mark.parametrize(
    ("made", "read", "held"),
    [
        ("pads", "dot and sums", [True]),
        ("concat", "dot and sums", [True]),
        ("reshaped", "dot and sums", [True]),
        ("pads", "sums", [False]),
        ("pads", "dot, sums and exp", [False]),
        ("pad and tanh", "dot and sums", [False]),
        ("dot", "dot and sums", [False]),
    ],
)
def test_what_is_put_together_of_parts_is_materialized_for_its_sums(
    made: str, read: str, held: list[bool]
) -> None:
    """The gradient of slices, next to that of the bias that was added before slicing."""
    t = Tiny()
    halves = [t.dot(), t.dot()]
    value = {
        "pads": lambda: t.op("add", t.op("pad", halves[0]), t.op("pad", halves[1])),
        "concat": lambda: t.op("concat", *halves),
        "reshaped": lambda: t.op("reshape", t.op("concat", *halves)),
        "pad and tanh": lambda: t.op("add", t.op("pad", halves[0]), t.op("tanh", halves[1])),
        "dot": lambda: halves[0],
    }[made]()
    t.returns(t.op("sum", value, size=4), t.op("sum", value, size=8))
    if "dot" in read:
        t.returns(t.dot(value, t.input(64)))
    if "exp" in read:
        t.returns(t.op("exp", value))
    painted = t.paint(entries=SUMS)
    found = {
        hold: plan_casts(painted.graph, painted.classes, painted.painting, frozenset({hold})).casts
        for hold in (MATERIALIZE_PARTS, "")
    }
    casts = {
        hold: [
            bool(cast.materialized)
            for cast in casts
            if (cast.value, cast.to) == (value, Paint.FULL)
        ]
        for hold, casts in found.items()
    }
    assert casts[MATERIALIZE_PARTS] == held
    assert casts[""] == [False]


def test_parts_that_are_added_up_again_and_again_are_looked_at_once() -> None:
    """Every addition doubles the ways back to the parts."""
    t = Tiny()
    value = t.op("add", t.op("pad", t.dot()), t.op("pad", t.dot()))
    for _ in range(60):
        value = t.op("add", value, value)
    t.returns(t.dot(value, t.input(64)), t.op("sum", value, size=4))
    painted = t.paint(entries=SUMS)
    plan = plan_casts(
        painted.graph, painted.classes, painted.painting, frozenset({MATERIALIZE_PARTS})
    )
    assert [cast.materialized for cast in plan.casts if cast.value == value] == [MATERIALIZE_PARTS]
