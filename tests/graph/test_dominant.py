"""duotone's painter: one test for each clause of each rule, on tiny graphs."""

from __future__ import annotations

import pytest

from duotone.graph.classes import Pins
from duotone.graph.graph import Boundary, Paint
from duotone.graph.lists import Entry, Kind, Taint
from tests.graph.tiny import BFLOAT16, ENTRIES, Tiny

# ------------------------------------------------------------------ rule 1: allow, and its accumulator


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


# ------------------------------------------------------------------ rule 2: deny and its taint


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


# ------------------------------------------------------------------ rule 3: dominant operands


def test_a_statistic_broadcast_by_the_operation_itself_does_not_taint() -> None:
    t = Tiny()
    h = t.dot()
    variance = t.op("sum", h, size=4)
    normed = t.op("mul", h, variance, size=64)
    t.returns(t.dot(normed, t.input(64)))
    painted = t.paint()
    assert painted[variance] == "full deny"
    assert painted[normed] == "half downstream"


def test_a_statistic_broadcast_beforehand_does_not_taint_and_is_cast_while_small() -> None:
    t = Tiny()
    h = t.dot()
    mean = t.op("sum", h, size=4)
    wide = t.op("broadcast", mean, size=64)
    centred = t.op("add", h, wide)
    t.returns(t.dot(centred, t.input(64)))
    painted = t.paint()
    assert painted[centred] == "half downstream"
    assert painted[wide] == "half upstream"
    assert (mean, "half", 0, 1) in painted.casts()


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


# ------------------------------------------------------------------ how far a taint reaches


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
    assert t.paint()[product] == "half downstream"


def test_a_product_of_a_logarithm_taints_as_any_other_value() -> None:
    t = Tiny()
    h = t.dot()
    scaled = t.op("mul", _log_sum_exp(t, h), t.input(4))
    far = t.op("add", h, scaled)
    t.returns(t.dot(far, t.input(64)))
    painted = t.paint()
    assert painted[scaled] == "full taint"
    assert painted[far] == "half downstream"


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


# ------------------------------------------------------------------ rule 8: constants


@pytest.mark.parametrize("op", ["add", "mul", "tanh"])
@pytest.mark.parametrize(("number", "fits"), [(1e6, False), (1e-8, False), (2.0, True)])
def test_arithmetic_with_a_constant_outside_the_half_type_is_full(
    op: str, number: float, fits: bool
) -> None:
    t = Tiny()
    result = t.op(op, t.dot(), t.constant(number))
    t.returns(t.dot(result, t.input(64)))
    painted = t.paint()
    assert painted[result] == ("half downstream" if fits else "full constant")
    if not fits:
        assert painted.detail(result) == f"the constant {number:.4g} is out of the range of float16"


def test_bfloat16_holds_the_same_constants() -> None:
    for number, expected in ((1e6, "half"), (1e-8, "half"), (1e-39, "full"), (3.4e38, "full")):
        t = Tiny()
        result = t.op("mul", t.dot(), t.constant(number))
        t.returns(t.dot(result, t.input(64)))
        assert t.paint(half=BFLOAT16)[result].startswith(expected)


def test_one_element_out_of_range_is_enough() -> None:
    t = Tiny()
    result = t.op("mul", t.dot(), t.constant(1e-8, largest=1.0, size=64))
    t.returns(t.dot(result, t.input(64)))
    assert t.paint()[result] == "full constant"


def test_a_clear_operation_saturates_a_constant_that_is_too_large() -> None:
    t = Tiny()
    masked = t.op("select", t.dot(), t.constant(1e9))
    t.returns(t.dot(masked, t.input(64)))
    painted = t.paint()
    assert painted[masked] == "half downstream"
    assert any(cast.free for cast in painted.plan.casts)


def test_a_clear_operation_with_a_constant_that_would_vanish_is_full() -> None:
    t = Tiny()
    guarded = t.op("select", t.dot(), t.constant(1e-8))
    t.returns(t.dot(guarded, t.input(64)))
    assert t.paint()[guarded] == "full constant"


def test_a_constant_that_is_only_moved_denies_nothing() -> None:
    t = Tiny()
    wide = t.op("broadcast", t.constant(1e-8), size=64)
    t.returns(t.dot(wide, t.input(64)))
    assert t.paint()[wide] == "half upstream"


def test_a_constant_of_zeros_and_infinities_denies_nothing() -> None:
    t = Tiny()
    masked = t.op("select", t.dot(), t.constant(float("inf"), largest=0.0))
    t.returns(t.dot(masked, t.input(64)))
    graph = t.graph()
    assert graph.values[graph.nodes[1].inputs[1]].constant is not None
    assert t.paint()[masked] == "half downstream"


def test_a_constant_of_another_type_denies_nothing() -> None:
    t = Tiny()
    index = t.input(1, dtype="int32")
    row = t.op("gather", t.dot(), index, size=8)
    t.returns(t.dot(row, t.input(64)))
    assert t.paint()[row] == "half downstream"


# ------------------------------------------------------------------ half runs forward


def test_what_is_before_the_first_allow_operation_stays_full() -> None:
    t = Tiny()
    scaled = t.op("mul", t.input(64), t.input(64))
    t.returns(t.dot(scaled, t.input(64)))
    assert t.paint()[scaled] == "full outside"


def test_everything_after_allow_is_half_until_something_is_denied() -> None:
    t = Tiny()
    h = t.dot()
    a = t.op("add", h, t.input(4))
    b = t.op("round", a)
    e = t.op("exp", b)
    t.returns(t.dot(e, t.input(64)))
    painted = t.paint()
    assert [painted[v] for v in (a, b, e)] == ["half downstream", "half downstream", "full deny"]


def test_a_small_half_value_does_not_make_a_large_full_one_half() -> None:
    t = Tiny()
    gate = t.dot(size=4)
    gated = t.op("mul", t.input(64), gate)
    t.returns(t.op("exp", gated))
    assert t.paint()[gated] == "full outside"


def test_what_has_only_half_operands_is_half_however_small_they_are() -> None:
    t = Tiny()
    outer = t.op("mul", t.dot(size=8), t.dot(size=8), size=64)
    wide = t.op("broadcast", t.dot(size=8), size=64)
    shifted = t.op("add", t.constant(1.0, size=64), t.dot(size=8), size=64)
    for value in (outer, wide, shifted):
        t.returns(t.dot(value, t.input(64)))
    painted = t.paint()
    assert [painted[v] for v in (outer, wide, shifted)] == ["half downstream"] * 3


def test_a_half_argument_starts_half_too() -> None:
    t = Tiny()
    residual = t.input(64, given=Paint.HALF)
    scaled = t.op("tanh", residual)
    t.returns(t.dot(scaled, t.input(64)))
    painted = t.paint()
    assert painted[scaled] == "half downstream"
    assert residual not in [value for value, *_ in painted.casts()]


# ------------------------------------------------------------------ rule 7: state


def test_a_weight_update_between_two_dots_stays_full() -> None:
    """The new weights feed the next dot (a GAN's two networks) and are returned."""
    t = Tiny()
    p, rate = t.input(64), t.input(1)
    gradient = t.dot()
    step = t.op("mul", rate, gradient)
    new = t.op("add", p, step)
    again = t.dot(new, t.input(64))
    t.returns(new, t.op("exp", again))
    painted = t.paint()
    assert painted[gradient] == "half>full wide"
    assert painted[step] == "full state"
    assert painted[new] == "full state"
    assert painted[again] == "half allow"


def test_the_chain_of_an_optimizer_stays_full() -> None:
    t = Tiny()
    p, m = t.input(64), t.input(64)
    gradient = t.dot()
    moment = t.op("add", t.op("mul", m, t.constant(0.9)), t.op("mul", gradient, t.constant(0.1)))
    new = t.op("add", p, t.op("mul", moment, t.constant(0.5)))
    t.returns(new, moment)
    painted = t.paint()
    nodes = painted.graph.nodes
    rules = {painted.painting.rules[n.index] for n in nodes if n.op != "dot"}
    assert rules <= {"state", "outside"}
    assert painted[gradient] == "half>full wide"


def test_an_activation_with_half_readers_is_no_state() -> None:
    t = Tiny()
    h = t.op("tanh", t.dot())
    logits = t.dot(h, t.input(64))
    t.returns(t.op("tanh", h), logits)
    assert t.paint()[h] == "half downstream"


def test_what_only_an_activation_reads_is_no_state_either() -> None:
    t = Tiny()
    before = t.op("tanh", t.dot())
    h = t.op("add", before, t.input(4))
    t.returns(t.op("tanh", h), t.op("exp", t.dot(h, t.input(64))))
    painted = t.paint()
    assert painted[before] == "half downstream"
    assert painted[h] == "half downstream"


def test_a_bias_gradient_does_not_drag_its_activation() -> None:
    t = Tiny()
    gradient = t.op("mul", t.dot(), t.input(64))
    t.returns(t.op("sum", gradient, size=4), t.dot(gradient, t.input(64)))
    painted = t.paint()
    assert painted[gradient] == "half downstream"


def test_a_loss_does_not_drag_the_activations_it_sums() -> None:
    t = Tiny()
    h = t.op("tanh", t.dot())
    t.returns(t.op("sum", h, size=1))
    assert t.paint()[h] == "half downstream"


def test_a_returned_hidden_state_is_full_and_what_it_feeds_is_half() -> None:
    t = Tiny()
    hidden = t.op("tanh", t.dot())
    after = t.op("add", t.dot(hidden, t.input(64)), t.input(4))
    t.returns(hidden)
    t.goes_on(after)
    painted = t.paint()
    assert painted[hidden] == "full state"
    assert painted[after] == "half downstream"
    assert (hidden, "half", 0, 1) in painted.casts()


def test_what_leaves_as_painted_is_no_state() -> None:
    t = Tiny()
    residual = t.op("tanh", t.dot())
    t.returns(residual, boundary=Boundary.ANY)
    painted = t.paint()
    assert painted[residual] == "half downstream"
    assert all(-1 not in cast.readers for cast in painted.plan.casts)


def test_what_must_leave_half_is_no_state() -> None:
    t = Tiny()
    x = t.input(64)
    h, e = t.op("tanh", t.dot()), t.op("exp", x)
    t.returns(h, e, boundary=Boundary.HALF)
    painted = t.paint()
    assert painted[h] == "half downstream"
    assert (e, "half", 0, 1) in painted.casts()


def test_state_stops_at_allow() -> None:
    t = Tiny()
    h = t.op("tanh", t.dot())
    t.returns(t.op("tanh", t.dot(h, t.input(64))))
    assert t.paint()[h] == "half downstream"


# ------------------------------------------------------------------ casts move up


def test_a_cast_moves_before_data_movement() -> None:
    t = Tiny()
    w = t.input(64)
    turned = t.op("reshape", t.op("reshape", w))
    h = t.dot(t.input(64), turned)
    t.returns(t.op("exp", h))
    painted = t.paint()
    assert painted[turned] == "half upstream"
    assert (w, "half", 0, 1) in painted.casts()


def test_a_cast_does_not_move_before_what_does_not_commute() -> None:
    t = Tiny()
    rounded = t.op("round", t.input(64))
    t.returns(t.op("exp", t.dot(rounded, t.input(64))))
    assert t.paint()[rounded] == "full outside"


def test_a_cast_does_not_move_up_where_something_full_reads_too() -> None:
    t = Tiny()
    moved = t.op("reshape", t.input(64))
    t.returns(t.op("exp", t.dot(moved, t.input(64))), t.op("exp", moved))
    assert t.paint()[moved] == "full outside"


def test_a_cast_does_not_move_up_where_more_would_be_cast() -> None:
    t = Tiny()
    table = t.input(6400)
    rows = t.op("gather", table, t.input(4, dtype="int32"), size=64)
    t.returns(t.op("exp", t.dot(rows, t.input(64))))
    painted = t.paint()
    assert painted[rows] == "full outside"
    assert (rows, "half", 0, 1) in painted.casts()


def test_a_cast_does_not_move_before_what_is_returned() -> None:
    t = Tiny()
    moved = t.op("reshape", t.input(64))
    t.returns(moved, t.op("exp", t.dot(moved, t.input(64))))
    assert t.paint()[moved] == "full outside"


def test_a_cast_moves_before_a_clear_operation_that_a_taint_has_reached() -> None:
    """It gives the same bits: the reader would cast them anyway."""
    t = Tiny()
    e = t.op("exp", t.dot())
    moved = t.op("reshape", e)
    t.returns(t.op("exp", t.dot(moved, t.input(64))))
    painted = t.paint()
    assert painted[moved] == "half upstream"
    assert (e, "half", 0, 1) in painted.casts()


def test_casts_move_into_branches() -> None:
    t = Tiny()
    x, y = t.input(64), t.input(64)
    with t.barrier():
        one = t.op("reshape", x)
    with t.barrier():
        other = t.op("reshape", y)
    joined = t.join(one, other)
    t.returns(t.op("exp", t.dot(joined, t.input(64))))
    painted = t.paint()
    assert [painted[v] for v in (joined, one, other)] == ["half upstream"] * 3


def test_slices_of_an_argument_are_cast_one_by_one_and_those_of_a_stack_are_stored_half() -> None:
    t = Tiny()
    xs, w = t.input(640), t.input(64)
    with t.loop():
        x = t.slice(xs)
        t.returns(t.stack(t.op("exp", t.dot(x, w))))
    painted = t.paint()
    assert painted[x] == "full outside"
    assert (x, "half", 1, 1) in painted.casts()

    t = Tiny()
    a, w = t.input(64), t.input(64)
    with t.loop():
        kept = t.stack(t.op("reshape", a))
    with t.loop():
        x = t.slice(kept)
        t.returns(t.stack(t.op("exp", t.dot(x, w))))
    painted = t.paint()
    assert painted[x] == "half upstream"
    assert painted[kept] == "half upstream"


# ------------------------------------------------------------------ loops


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


# ------------------------------------------------------------------ what no rule decides


def test_an_unlisted_operation_is_full_and_passes_nothing_on() -> None:
    t = Tiny()
    h = t.dot()
    odd = t.op("mystery", h)
    after = t.op("add", odd, h)
    t.returns(t.dot(after, t.input(64)))
    painted = t.paint()
    assert painted[odd] == "full unlisted"
    assert painted[after] == "half downstream"


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
    assert painted[after] == "half downstream"


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
