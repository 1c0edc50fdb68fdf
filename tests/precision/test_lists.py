"""The lists: edits, levels, half types."""

from __future__ import annotations

import pytest

from duotone.ops.entries import Entry, Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.lists import OpLists
from tests.graph.tiny import ENTRIES, Tiny

LISTS = OpLists.for_half(ENTRIES, "float16")


def _kinds(lists: OpLists) -> dict[str, Kind]:
    return {
        op: entry.kind
        for op, entry in lists.entries.items()
        if Trait.STRUCTURAL not in entry.traits
    }


def test_an_entry_may_hold_for_one_half_type_only() -> None:
    entries = (
        Entry("square", Kind.DENY, "overflows", "tests", only=("float16",)),
        Entry("square", Kind.INFER, "has the range", "tests", only=("bfloat16",)),
    )
    assert OpLists.for_half(entries, "float16").get("square", "square").kind is Kind.DENY
    assert OpLists.for_half(entries, "bfloat16").get("square", "square").kind is Kind.INFER


def test_what_is_on_no_list_is_unlisted_and_taints_nothing() -> None:
    entry = LISTS.get("mystery", "mystery")
    assert (entry.kind, entry.taint) == (Kind.UNLISTED, Taint.NONE)


@pytest.mark.parametrize("kind", [Kind.ALLOW, Kind.INFER, Kind.DENY, Kind.CLEAR])
@pytest.mark.parametrize("op", ["exp", "dot", "mystery"])
def test_adding_moves_an_operation_from_whatever_list(kind: Kind, op: str) -> None:
    entry = LISTS.edited({kind: [op]}, {}).get(op, op)
    assert entry.kind is kind
    assert entry.op == op
    assert entry.source == "policy"
    assert kind.value in entry.reason
    assert entry.taint >= Taint.DOMINANT


def test_adding_keeps_what_an_operation_is() -> None:
    lists = LISTS.edited({Kind.DENY: ["add", "log", "concat", "dot"]}, {})
    assert Trait.ADDS in lists.get("add", "add").traits
    assert Trait.PARTS in lists.get("concat", "concat").traits
    assert Trait.WIDE in lists.get("dot", "dot").traits
    assert lists.get("log", "log").taint is Taint.ADDITIVE


def test_removing_takes_off_that_list_only() -> None:
    lists = LISTS.edited({}, {Kind.DENY: ["exp", "dot"]})
    assert lists.get("exp", "exp").kind is Kind.UNLISTED
    assert lists.get("dot", "dot").kind is Kind.ALLOW


def test_removing_from_one_list_and_adding_to_another() -> None:
    lists = LISTS.edited({Kind.INFER: ["exp"]}, {Kind.DENY: ["exp"]})
    assert lists.get("exp", "exp").kind is Kind.INFER


def test_edits_leave_the_lists_they_start_from_alone() -> None:
    before = _kinds(LISTS)
    LISTS.edited({Kind.ALLOW: ["exp"]}, {Kind.INFER: ["add"]})
    assert _kinds(LISTS) == before


def test_an_edit_of_an_operation_holds_for_all_its_meanings() -> None:
    """``square`` is a meaning of ``mul``: who moves ``mul`` means both."""
    square = Entry("square", Kind.DENY, "overflows", "tests")
    lists = OpLists.for_half((*ENTRIES, square), "float16")
    assert lists.get("mul", "square").kind is Kind.DENY
    assert lists.edited({Kind.ALLOW: ["mul"]}, {}).get("mul", "square").kind is Kind.ALLOW
    assert lists.edited({}, {Kind.INFER: ["mul"]}).get("mul", "square").kind is Kind.UNLISTED
    only_square = lists.edited({Kind.INFER: ["square"]}, {})
    assert only_square.get("mul", "square").kind is Kind.INFER
    assert only_square.get("mul", "mul").kind is Kind.INFER


def test_level_tensor_cores_only_keeps_the_allow_list() -> None:
    lists = LISTS.leveled("TENSOR_CORES_ONLY")
    assert set(_kinds(lists)) == {"dot", "conv"}


def test_level_treat_infer_as_deny_empties_the_infer_list() -> None:
    kinds = _kinds(LISTS.leveled("TREAT_INFER_AS_DENY"))
    assert Kind.INFER not in kinds.values()
    assert kinds["add"] is Kind.DENY
    assert kinds["relu"] is Kind.CLEAR


@pytest.mark.parametrize("level", [None, "UNSAFE_FORCE_ALL"])
def test_other_levels_leave_the_lists_alone(level: str | None) -> None:
    assert LISTS.leveled(level) is LISTS


def _net() -> tuple[Tiny, dict[str, int]]:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.loop():
        carry, after = t.carry(start)
        t.close(carry, t.op("tanh", t.dot(carry, w)))
    moved = t.op("reshape", after)
    shifted = t.op("add", moved, t.input(64))
    t.returns(t.dot(shifted, w))
    return t, {"carry": carry, "moved": moved, "shifted": shifted}


@pytest.mark.parametrize("painter", ["duotone", "tensorflow"])
def test_at_level_tensor_cores_only_everything_but_allow_is_full(painter: str) -> None:
    t, _ = _net()
    painted = t.paint(painter, edit=lambda lists: lists.leveled("TENSOR_CORES_ONLY"))
    for node in painted.graph.nodes:
        half = painted.painting.compute[node.index].name == "HALF"
        assert half is (node.op == "dot")


@pytest.mark.parametrize("painter", ["duotone", "tensorflow"])
def test_at_level_treat_infer_as_deny_taint_starts_at_infer(painter: str) -> None:
    t, at = _net()
    painted = t.paint(painter, edit=lambda lists: lists.leveled("TREAT_INFER_AS_DENY"))
    assert painted[at["shifted"]] == "full deny"
    assert painted[at["carry"]].startswith("full")
