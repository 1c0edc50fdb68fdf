"""TensorFlow's painter: what TensorFlow 2.21 itself answered, and a test for each pass."""

from __future__ import annotations

import pytest

from duotone.precision.classify.classes import Pins, classify
from duotone.precision.classify.lists import OpLists
from duotone.precision.painters import paint_tensorflow
from duotone.precision.painters.painting import check_painting
from tests.graph.tiny import FLOAT16, Painted, Tiny
from tests.precision.tensorflow_cases import ENTRIES, Case, read_cases

CASES = read_cases()


def _paint(t: Tiny) -> Painted:
    return t.paint("tensorflow")


# ----------------------------------------- the observed answers


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_answer_is_tensorflow_s(case: Case) -> None:
    lists = OpLists.for_half(ENTRIES, "float16")
    painting = paint_tensorflow(case.graph, classify(case.graph, lists, FLOAT16))
    check_painting(painting, case.graph)
    got = dict(zip(case.names, map(str, painting.compute), strict=True))
    assert got == dict(zip(case.names, case.expected, strict=True))


def test_the_observed_cases_are_there() -> None:
    assert len(CASES) == 16
    painted = [precision for case in CASES for precision in case.expected]
    assert painted.count("half") > 50
    assert painted.count("full") > 50


def test_the_observed_answers_are_no_constant() -> None:
    """A planted fault: without pass 4 at least one case would be painted otherwise."""
    lists = OpLists.for_half([e for e in ENTRIES if e.op != "BiasAdd"], "float16")
    wrong = 0
    for case in CASES:
        painting = paint_tensorflow(case.graph, classify(case.graph, lists, FLOAT16))
        wrong += tuple(map(str, painting.compute)) != case.expected
    assert wrong


# ----------------------------------------- pass 1


def test_without_an_allow_operation_nothing_is_painted() -> None:
    t = Tiny()
    t.returns(t.op("add", t.op("relu", t.input()), t.input()))
    assert not _paint(t).painting.changed


def test_pass_1_allow_is_half_and_its_result_is_rounded() -> None:
    t = Tiny()
    h = t.dot()
    t.returns(h)
    assert _paint(t)[h] == "half allow"


# ----------------------------------------- pass 2


def test_pass_2_deny_runs_forward_whatever_the_sizes() -> None:
    """Here the two painters differ: a statistic drags the activation into float32."""
    t = Tiny()
    h = t.dot()
    mean = t.op("sum", h, size=4)
    centred = t.op("add", h, mean)
    t.returns(t.dot(centred, t.input()))
    painted = _paint(t)
    assert painted[mean] == "full deny"
    assert painted[centred] == "full taint"


def test_pass_2_stops_at_allow_and_does_not_run_backward() -> None:
    t = Tiny()
    before = t.op("add", t.dot(), t.input())
    after = t.op("add", t.dot(t.op("exp", before), t.input()), t.input())
    t.returns(t.dot(after, t.dot(before, t.input())))
    painted = _paint(t)
    assert painted[before] == "half tensorflow"
    assert painted[after] == "half tensorflow"


def test_pass_2_enters_a_clear_operation_only_with_infer_or_deny_below_it() -> None:
    t = Tiny()
    e = t.op("exp", t.dot())
    to_allow = t.op("relu", e)
    to_infer = t.op("relu", e)
    added = t.op("add", to_infer, t.input())
    t.returns(t.dot(to_allow, added))
    painted = _paint(t)
    assert painted[to_allow] == "half tensorflow"
    assert painted[to_infer] == "full taint"
    assert painted[added] == "full taint"


# ----------------------------------------- pass 3


def test_pass_3_paints_what_lies_between_allow_operations() -> None:
    t = Tiny()
    a = t.op("add", t.dot(), t.input())
    b = t.op("relu", t.op("mul", a, t.input()))
    t.returns(t.dot(b, t.input()))
    painted = _paint(t)
    assert [painted[a], painted[b]] == ["half tensorflow"] * 2


def test_pass_3_leaves_what_has_no_allow_operation_above_or_below() -> None:
    t = Tiny()
    above = t.op("mul", t.input(), t.input())
    h = t.dot(above, t.input())
    below = t.op("mul", t.op("tanh", t.op("mul", h, t.input())), t.input())
    t.returns(t.op("exp", below))
    assert _paint(t)[above] == "full no_half_operand"


# ----------------------------------------- pass 4


def test_pass_4_extends_allow_to_infer_operations_one_after_the_other() -> None:
    """Nodes are walked in order and see earlier results."""
    t = Tiny()
    one = t.op("mul", t.dot(), t.input())
    two = t.op("tanh", one)
    t.returns(t.op("exp", two))
    painted = _paint(t)
    assert [painted[one], painted[two]] == ["half tensorflow"] * 2


def test_pass_4_does_not_see_through_clear_operations() -> None:
    """Clear operations are painted in pass 5, too late for an infer operation after them."""
    t = Tiny()
    moved = t.op("relu", t.dot())
    downstream = t.op("tanh", moved)
    t.returns(t.op("exp", downstream))
    painted = _paint(t)
    assert painted[moved] == "half tensorflow"
    assert painted[downstream] == "full no_half_operand"


def test_pass_4_wants_no_denied_operand() -> None:
    t = Tiny()
    h = t.dot()
    mixed = t.op("add", h, t.op("exp", t.input()))
    t.returns(mixed)
    assert _paint(t)[mixed] == "full taint"


# ----------------------------------------- pass 5


def test_pass_5_runs_both_ways_through_clear_operations() -> None:
    t = Tiny()
    before = t.op("reshape", t.op("relu", t.input()))
    h = t.dot(before, t.input())
    after = t.op("relu", t.op("reshape", h))
    t.returns(t.op("exp", after))
    painted = _paint(t)
    assert [painted[before], painted[after]] == ["half tensorflow"] * 2


def test_pass_5_runs_around_corners() -> None:
    """Down to a clear operation that joins two values, and up to the other one."""
    t = Tiny()
    other = t.op("relu", t.input())
    joined = t.op("concat", t.dot(), other, size=128)
    t.returns(t.op("exp", joined))
    painted = _paint(t)
    assert [painted[joined], painted[other]] == ["half tensorflow"] * 2


def test_pass_5_stops_at_infer_operations() -> None:
    t = Tiny()
    scaled = t.op("mul", t.input(), t.input())
    t.returns(t.op("exp", t.dot(t.op("relu", scaled), t.input())))
    assert _paint(t)[scaled] == "full no_half_operand"


# ----------------------------------------- what all painters have in common


def test_other_types_join_nothing() -> None:
    t = Tiny()
    where = t.op("round", t.op("exp", t.input()), dtype="int32")
    picked = t.op("select", where, t.dot(), t.dot())
    t.returns(t.dot(picked, t.input()))
    assert _paint(t)[picked] == "half tensorflow"


def test_constants_and_pins_hold_as_well() -> None:
    t = Tiny()
    h = t.dot()
    huge = t.op("mul", h, t.constant(1e6))
    with t.scope("loss"):
        kept = t.op("tanh", h)
    t.returns(t.dot(huge, kept))
    painted = t.paint("tensorflow", pins=Pins(full=("loss/*",)))
    assert painted[huge] == "full constant"
    assert painted[kept] == "full pinned"


def test_what_is_unlisted_is_left_alone() -> None:
    t = Tiny()
    odd = t.op("mystery", t.dot())
    t.returns(t.dot(odd, t.input()))
    assert _paint(t)[odd] == "full unlisted"
