"""duotone's painter, rules 1 to 3: what allow and deny do, and how far a taint reaches."""

from __future__ import annotations

import pytest

from tests.graph.tiny import Tiny

# ----------------------------------------- rule 1: allow, and its accumulator


def test_allow_is_half_and_its_operands_are_cast() -> None:
    t = Tiny()
    x, w = t.input(64), t.input(16)
    h = t.dot(x, w)
    t.returns(t.op("exp", h))
    painted = t.paint()
    assert painted[h] == "half allow"
    assert painted.casts() == [(x, "half", 0, 1), (w, "half", 0, 1), (h, "full", 0, 1)]


def test_an_allow_operation_that_is_returned_hands_on_its_accumulator() -> None:
    t = Tiny()
    h = t.dot()
    t.returns(h)
    painted = t.paint()
    assert painted[h] == "half>full wide"
    assert all(to == "half" for _, to, _, _ in painted.casts())


def test_an_allow_operation_that_only_state_reads_hands_on_its_accumulator() -> None:
    t = Tiny()
    p, g = t.input(64), t.dot()
    t.returns(t.op("add", p, g))
    assert t.paint()[g] == "half>full wide"


def test_an_accumulator_that_something_half_reads_is_rounded_once() -> None:
    t = Tiny()
    h = t.dot()
    t.returns(h, t.dot(h, t.input(64)))
    assert t.paint()[h] == "half allow"


def test_an_allow_operation_without_wide_is_rounded() -> None:
    t = Tiny()
    h = t.op("conv", t.input(64), t.input(16))
    t.returns(h)
    painted = t.paint()
    assert painted[h] == "half allow"
    assert (h, "full", 0, 1) in painted.casts()


# ----------------------------------------- rule 2: deny and its taint


def test_deny_computes_full() -> None:
    t = Tiny()
    e = t.op("exp", t.dot())
    t.returns(t.dot(e, t.input(64)))
    painted = t.paint()
    assert painted[e] == "full deny"
    assert painted.detail(e) == "exp is on the deny list"


def test_taint_runs_through_infer_and_clear_and_stops_at_allow() -> None:
    t = Tiny()
    e = t.op("exp", t.dot())
    through_infer = t.op("tanh", e)
    through_clear = t.op("round", through_infer)
    h = t.dot(through_clear, t.input(64))
    after = t.op("tanh", h)
    t.goes_on(after)
    painted = t.paint()
    assert painted[through_infer] == "full taint"
    assert painted[through_clear] == "full taint"
    assert painted[h] == "half allow"
    assert painted[after] == "half downstream"


def test_taint_wins_over_half_where_both_operands_are_dominant() -> None:
    t = Tiny()
    h = t.dot()
    mixed = t.op("mul", h, t.op("exp", h))
    t.returns(t.dot(mixed, h))
    assert t.paint()[mixed] == "full taint"


# ----------------------------------------- rule 3: dominant operands


def test_a_statistic_broadcast_by_the_operation_itself_does_not_taint() -> None:
    t = Tiny()
    h = t.dot()
    variance = t.op("sum", h, size=4)
    normed = t.op("mul", h, variance, size=64)
    t.returns(t.dot(normed, t.input(64)))
    painted = t.paint()
    assert painted[variance] == "full deny"
    assert painted[normed] == "full>half mixed"


def test_a_statistic_broadcast_beforehand_does_not_taint() -> None:
    t = Tiny()
    h = t.dot()
    mean = t.op("sum", h, size=4)
    wide = t.op("broadcast", mean, size=64)
    centred = t.op("add", h, wide)
    t.returns(t.dot(centred, t.input(64)))
    painted = t.paint()
    assert painted[wide] == "full no_half_operand"
    assert painted[centred] == "full>half mixed"


def test_a_statistic_of_a_statistic_is_tainted() -> None:
    t = Tiny()
    h = t.dot()
    mean = t.op("sum", h, size=4)
    scaled = t.op("mul", mean, t.input(4))
    t.returns(t.dot(t.op("mul", h, scaled), t.input(64)))
    assert t.paint()[scaled] == "full taint"


@pytest.mark.parametrize("op", ["concat", "pad"])
def test_the_largest_part_dominates_a_whole_made_of_parts(op: str) -> None:
    for parts, expected in (((64, 8), "half downstream"), ((8, 64), "full taint")):
        t = Tiny()
        h, e = t.dot(size=parts[0]), t.op("exp", t.input(parts[1]))
        whole = t.op(op, h, e, size=72)
        t.goes_on(whole)
        assert t.paint()[whole] == expected


def test_a_part_as_large_as_the_others_taints_the_whole() -> None:
    t = Tiny()
    e = t.op("exp", t.dot())
    whole = t.op("concat", t.dot(), e, t.dot(), size=192)
    t.goes_on(whole)
    assert t.paint()[whole] == "full taint"


def test_the_stacked_results_of_a_loop_are_parts() -> None:
    for op, expected in (("tanh", "half downstream"), ("exp", "full taint")):
        t = Tiny()
        h = t.dot()
        with t.loop():
            stacked = t.stack(t.op(op, h))
        t.goes_on(stacked)
        assert t.paint()[stacked] == expected


def test_an_operand_larger_than_the_result_dominates() -> None:
    t = Tiny()
    e = t.op("exp", t.dot())
    row = t.op("gather", e, size=8)
    t.returns(t.dot(row, t.input(64)))
    assert t.paint()[row] == "full taint"


# ----------------------------------------- how far a taint reaches


def _log_sum_exp(t: Tiny, h: int) -> int:
    return t.op("log", t.op("sum", t.op("exp", h), size=4))


def test_a_logarithm_taints_additions_of_any_size() -> None:
    t = Tiny()
    h = t.dot()
    difference = t.op("add", h, _log_sum_exp(t, h))
    t.returns(t.dot(difference, t.input(64)))
    assert t.paint()[difference] == "full taint"


def test_a_logarithm_taints_additions_through_data_movement() -> None:
    t = Tiny()
    h = t.dot()
    wide = t.op("broadcast", t.op("reshape", _log_sum_exp(t, h)), size=64)
    difference = t.op("add", h, wide)
    t.returns(t.dot(difference, t.input(64)))
    painted = t.paint()
    assert painted[wide] == "full taint"
    assert painted[difference] == "full taint"


def test_a_logarithm_that_scales_taints_no_larger_value() -> None:
    t = Tiny()
    h = t.dot()
    product = t.op("mul", h, _log_sum_exp(t, h))
    t.returns(t.dot(product, t.input(64)))
    assert t.paint()[product] == "full>half mixed"


def test_a_product_of_a_logarithm_taints_as_any_other_value() -> None:
    t = Tiny()
    h = t.dot()
    scaled = t.op("mul", _log_sum_exp(t, h), t.input(4))
    far = t.op("add", h, scaled)
    t.returns(t.dot(far, t.input(64)))
    painted = t.paint()
    assert painted[scaled] == "full taint"
    assert painted[far] == "full>half mixed"


def test_what_may_not_fit_into_half_taints_everything_that_reads_it() -> None:
    t = Tiny()
    h = t.dot()
    huge = t.op("mul", t.input(4), t.constant(1e6))
    product = t.op("mul", h, huge, size=64)
    moved = t.op("concat", product, t.dot(size=640), size=704)
    t.goes_on(moved)
    painted = t.paint()
    assert painted[huge] == "full constant"
    assert painted[product] == "full taint"
    assert painted[moved] == "full taint"
