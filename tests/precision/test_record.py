"""The record: what explain says of a tiny graph, number by number."""

from __future__ import annotations

import json

import pytest

from duotone.graph.graph import Paint, bytes_of
from duotone.precision.optimize.optimizations import Optimizations
from duotone.precision.optimize.residuals import Recompute, Site
from duotone.precision.record import Record, make_record
from duotone.precision.rules import Rule
from tests.graph.tiny import FLOAT16, Tiny


def _record(t: Tiny) -> Record:
    p = t.paint()
    return make_record(p.graph, p.classes, p.painting, p.plan, FLOAT16)


def _net() -> Tiny:
    t = Tiny()
    x, w = t.input(64), t.input(16)
    with t.scope("layer"):
        h = t.op("dot", x, w, size=32, flops=1000.0)
    e = t.op("exp", h, flops=32.0)
    t.returns(t.op("mystery", e))
    return t


def test_operations_say_what_where_and_why() -> None:
    dot, exp, mystery = _record(_net()).operations
    assert (dot.operation, dot.paint, dot.stored, dot.rule) == ("dot", "half", "half", "allow")
    assert (dot.scope, dot.source, dot.list) == ("layer", "line 0", "allow")
    assert (dot.shape, dot.dtype) == (("32",), "float32")
    assert exp.reason == f"{Rule.DENY.words}: exp is on the deny list"
    assert (mystery.rule, mystery.list) == ("unlisted", "unlisted")


def test_bytes_and_flops() -> None:
    dot, exp, _ = _record(_net()).operations
    assert dot.bytes_full == 4 * (64 + 16 + 32)
    assert dot.bytes == 2 * (64 + 16 + 32)
    assert exp.bytes == exp.bytes_full == 4 * (32 + 32)
    assert (dot.flops, exp.flops) == (1000.0, 32.0)


def test_casts_are_counted_for_their_first_reader() -> None:
    record = _record(_net())
    assert [o.casts for o in record.operations] == [2, 1, 0]
    assert [(c.maker, c.to, c.readers) for c in record.casts] == [
        ("input", "float16", ("dot",)),
        ("input", "float16", ("dot",)),
        ("dot", "float32", ("exp",)),
    ]


def test_the_summary_adds_up() -> None:
    record = _record(_net())
    s = record.summary
    assert (s.half_dtype, s.operations_half, s.operations_full) == ("float16", 1, 2)
    assert (s.allow_half, s.allow_total, s.casts_inserted) == (1, 1, 3)
    assert (s.flops_half, s.flops_full) == (1000.0, 32.0)
    assert s.flops_half_share == pytest.approx(1000 / 1032)
    assert s.bytes_half + s.bytes_full == sum(o.bytes for o in record.operations)
    assert s.bytes_original == sum(o.bytes_full for o in record.operations)
    assert s.unlisted == {"mystery": 1}


def test_a_loop_counts_once_for_each_iteration() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.loop(trips=7), t.loop(trips=3):
        h = t.op("dot", start, w, size=64, flops=10.0)
        t.returns(t.stack(t.op("exp", h)))
    record = _record(t)
    dot = record.operations[0]
    assert (dot.runs, dot.flops, dot.bytes) == (21, 210.0, 21 * 2 * 3 * 64)
    to_half = [c for c in record.casts if c.to == "float16"]
    assert [c.runs for c in to_half] == [1, 1]
    assert [c.runs for c in record.casts if c.to == "float32"] == [21]


def test_structural_nodes_are_not_operations() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.loop():
        h, after = t.carry(start)
        t.close(h, t.dot(h, w))
    t.goes_on(after)
    assert [o.operation for o in _record(t).operations] == ["dot", "tanh", "dot"]


def test_a_wide_result_is_written_full() -> None:
    t = Tiny()
    t.returns(t.op("dot", t.input(64), t.input(64), size=64))
    (dot,) = _record(t).operations
    assert (dot.paint, dot.stored, dot.rule) == ("half", "full", "wide")
    assert dot.bytes == 2 * 128 + 4 * 64


def test_an_empty_program() -> None:
    t = Tiny()
    t.returns(t.input(64))
    record = _record(t)
    assert record.operations == ()
    assert record.summary.flops_half_share == 0.0


def test_a_half_input_is_no_cast() -> None:
    t = Tiny()
    x = t.input(64, given=Paint.HALF)
    t.goes_on(t.dot(x, x))
    assert _record(t).operations[0].casts == 0


def test_what_is_recomputed_is_marked_and_counted() -> None:
    t = Tiny()
    h = t.dot()
    e = t.op("exp", h)
    t.returns(t.op("mystery", e))
    p = t.paint()
    plan = Recompute({(2, e): 0}, (Site(0, 1, frozenset({e}), frozenset({h})),))
    optimizations = Optimizations(frozenset({"recompute"}), recompute=plan)
    record = make_record(p.graph, p.classes, p.painting, p.plan, FLOAT16, optimizations)
    recomputed = (("recompute", "not kept: recomputed for later readers"),)
    assert [o.optimizations for o in record.operations] == [(), recomputed, ()]
    assert record.summary.optimizations == {"recompute": 1}
    assert Record.from_json(record.to_json()) == record
    data = json.loads(record.to_json())
    assert [bool(o["optimizations"]) for o in data["operations"]] == [False, True, False]
    assert not _record(_net()).summary.optimizations


def test_json_holds_everything() -> None:
    record = _record(_net())
    data = json.loads(record.to_json(indent=2))
    assert set(data) == {"summary", "operations", "casts"}
    assert data["summary"]["flops_half_share"] == record.summary.flops_half_share
    assert [o["operation"] for o in data["operations"]] == ["dot", "exp", "mystery"]
    assert data["casts"][2]["readers"] == ["exp"]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 4),
        ("bfloat16", 2),
        ("float16", 2),
        ("int8", 1),
        ("bool", 1),
        ("int4", 1),
        ("float64", 8),
        ("complex64", 8),
        ("complex128", 16),
        ("float8_e4m3fn", 1),
        ("float0", 0),
        ("none", 0),
        ("key<fry>", 0),
    ],
)
def test_bytes_of_a_dtype(dtype: str, size: int) -> None:
    assert bytes_of(dtype) == size
