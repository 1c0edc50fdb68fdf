"""duotone's painter: where half runs, where state stays full, where casts move."""

from __future__ import annotations

import pytest

from duotone.graph.graph import Boundary, Paint
from duotone.ops.entries import Entry, Kind
from duotone.ops.traits import Trait
from duotone.precision.casts.cast_plan import MATERIALIZE_WIDENED, plan_casts
from tests.graph.tiny import ENTRIES, SUMS, Tiny

# ----------------------------------------- half runs forward


def test_what_is_before_the_first_allow_operation_stays_full() -> None:
    t = Tiny()
    scaled = t.op("mul", t.input(64), t.input(64))
    t.returns(t.dot(scaled, t.input(64)))
    assert t.paint()[scaled] == "full no_half_operand"


def test_everything_after_allow_is_half_until_something_is_denied() -> None:
    t = Tiny()
    h = t.dot()
    a = t.op("tanh", h)
    b = t.op("round", a)
    e = t.op("exp", b)
    t.returns(t.dot(e, t.input(64)))
    t.returns(t.dot(b, t.input(64)))
    painted = t.paint()
    assert [painted[v] for v in (a, b, e)] == ["half downstream", "half downstream", "full deny"]


def test_a_small_half_value_does_not_make_a_large_full_one_half() -> None:
    t = Tiny()
    gate = t.dot(size=4)
    gated = t.op("mul", t.input(64), gate)
    t.returns(t.op("exp", gated))
    assert t.paint()[gated] == "full no_half_operand"


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


# ----------------------------------------- rule 7: state


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
    assert rules <= {"state", "no_half_operand"}
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
    h = t.op("round", before)
    t.returns(t.op("tanh", h), t.op("exp", t.dot(h, t.input(64))))
    painted = t.paint()
    assert painted[before] == "half downstream"
    assert painted[h] == "half downstream"


def test_a_bias_gradient_does_not_drag_its_activation() -> None:
    t = Tiny()
    gradient = t.op("mul", t.dot(), t.input(64))
    t.returns(t.op("sum", gradient, size=4), t.dot(gradient, t.input(64)))
    assert t.paint()[gradient] == "full>half mixed"


def test_a_loss_does_not_drag_the_activations_it_sums() -> None:
    t = Tiny()
    h = t.op("round", t.dot())
    t.returns(t.op("sum", h, size=1))
    assert t.paint()[h] == "half downstream"


def test_a_returned_hidden_state_is_full_and_what_it_feeds_is_half() -> None:
    t = Tiny()
    hidden = t.op("tanh", t.dot())
    after = t.op("tanh", t.dot(hidden, t.input(64)))
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


# ----------------------------------------- rule 6: compute full, store half


@pytest.mark.parametrize("size", [1, 4, 64])
def test_arithmetic_with_a_full_operand_computes_full_and_stores_half(size: int) -> None:
    """A bias, a scale: rounding it to half would save nothing."""
    t = Tiny()
    h, bias = t.dot(), t.input(size)
    shifted = t.op("add", h, bias)
    t.goes_on(shifted)
    painted = t.paint()
    assert painted[shifted] == "full>half mixed"
    assert bias not in [value for value, *_ in painted.casts()]
    assert (h, "full", 0, 1) in painted.casts()


def test_a_constant_operand_is_rounded_for_nothing() -> None:
    t = Tiny()
    doubled = t.op("mul", t.dot(), t.constant(2.0))
    t.goes_on(doubled)
    assert t.paint()[doubled] == "half downstream"


def test_data_movement_with_a_full_operand_is_half() -> None:
    t = Tiny()
    picked = t.op("select", t.dot(), t.input(64))
    t.goes_on(picked)
    assert t.paint()[picked] == "half downstream"


def test_arithmetic_that_only_one_full_operation_reads_is_never_stored() -> None:
    t = Tiny()
    shifted = t.op("tanh", t.dot())
    t.returns(t.dot(t.op("exp", shifted), t.input(64)))
    assert t.paint()[shifted] == "full full_readers"


def test_a_chain_of_arithmetic_before_a_full_operation_is_full_as_a_whole() -> None:
    t = Tiny()
    scaled = t.op("mul", t.dot(), t.input(4))
    shifted = t.op("add", scaled, t.input(4))
    t.returns(t.dot(t.op("exp", shifted), t.input(64)))
    painted = t.paint()
    assert [painted[scaled], painted[shifted]] == ["full full_readers"] * 2


def test_arithmetic_before_a_full_operation_elsewhere_is_stored_half() -> None:
    """In a loop, or in a kernel that nobody knows, it is not a part of the reader."""
    t = Tiny()
    shifted = t.op("tanh", t.dot())
    with t.loop():
        stacked = t.stack(t.op("exp", shifted))
    t.goes_on(stacked)
    assert t.paint()[shifted] == "half downstream"

    t = Tiny()
    shifted = t.op("tanh", t.dot())
    t.goes_on(t.op("mystery", shifted))
    assert t.paint()[shifted] == "half downstream"


def test_arithmetic_that_two_operations_read_is_stored_half() -> None:
    t = Tiny()
    shifted = t.op("tanh", t.dot())
    t.returns(t.dot(t.op("exp", shifted), t.op("exp", shifted)))
    assert t.paint()[shifted] == "half downstream"


@pytest.mark.parametrize(
    ("op", "paint"), [("mul", "full full_readers"), ("add", "half downstream")]
)
def test_a_product_that_two_full_operations_read_is_full_and_a_sum_is_not(
    op: str, paint: str
) -> None:
    """A sum may be a residual stream, which is in memory; a product is computed by each."""
    t = Tiny()
    made = t.op(op, t.dot(), t.dot())
    t.returns(t.dot(t.op("exp", made), t.op("exp", made)))
    assert t.paint()[made] == paint


def log_softmax(t: Tiny, size: int) -> tuple[int, ...]:
    """Logits of a dot, their maximum of some size, and their difference from it."""
    logits = t.dot()
    largest = t.op("rowmax", logits, size=size)
    moved = t.op("reshape", largest)
    shifted = t.op("add", logits, moved)
    normed = t.op("add", shifted, t.op("log", t.op("sum", t.op("exp", shifted), size=4)))
    t.returns(t.op("sum", normed, size=1))
    return largest, moved, shifted


def test_a_log_softmax_takes_its_maximum_from_what_it_subtracts_it_from() -> None:
    """Both in full: a compiler may drop the rounding of logits that everything widens."""
    t = Tiny()
    nodes = log_softmax(t, size=4)
    painted = t.paint()
    assert [painted[node] for node in nodes] == ["full full_readers"] * 3


def test_a_maximum_that_is_not_small_is_half() -> None:
    t = Tiny()
    largest, moved, _ = log_softmax(t, size=32)
    painted = t.paint()
    assert [painted[node] for node in (largest, moved)] == ["half downstream"] * 2


def test_a_maximum_that_a_half_operation_reads_is_half() -> None:
    t = Tiny()
    largest = t.op("rowmax", t.dot(), size=4)
    t.goes_on(largest)
    t.returns(t.op("exp", largest))
    assert t.paint()[largest] == "half downstream"


# ----------------------------------------- casts move up


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
    assert t.paint()[rounded] == "full no_half_operand"


def test_a_cast_does_not_move_up_where_something_full_reads_too() -> None:
    t = Tiny()
    moved = t.op("reshape", t.input(64))
    t.returns(t.op("exp", t.dot(moved, t.input(64))), t.op("exp", moved))
    assert t.paint()[moved] == "full no_half_operand"


def test_a_cast_does_not_move_up_where_more_would_be_cast() -> None:
    t = Tiny()
    table = t.input(6400)
    rows = t.op("gather", table, t.input(4, dtype="int32"), size=64)
    t.returns(t.op("exp", t.dot(rows, t.input(64))))
    painted = t.paint()
    assert painted[rows] == "full no_half_operand"
    assert (rows, "half", 0, 1) in painted.casts()


def test_a_cast_moves_before_what_repeats_only_if_as_much_is_cast() -> None:
    """The transpose of a repetition is a sum; before it a cast would make that a sum in half."""
    repeat = Entry(
        "repeat", Kind.CLEAR, "repeats", "tests", traits=frozenset({Trait.COMMUTES, Trait.REPEATS})
    )
    for size, expected in ((4, "full no_half_operand"), (64, "half upstream")):
        t = Tiny()
        repeated = t.op("repeat", t.input(size), size=64)
        t.returns(t.op("exp", t.dot(repeated, t.input(64))))
        assert t.paint(entries=(*ENTRIES, repeat))[repeated] == expected


def test_a_cast_does_not_move_before_what_is_returned() -> None:
    t = Tiny()
    moved = t.op("reshape", t.input(64))
    t.returns(moved, t.op("exp", t.dot(moved, t.input(64))))
    assert t.paint()[moved] == "full no_half_operand"


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
    assert painted[x] == "full no_half_operand"
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


def test_what_dots_and_sums_read_is_stored_half() -> None:
    """A gradient after something denied: read by the weight's dots and by the bias's sum."""
    t = Tiny()
    h = t.dot()
    gradient = t.op("mul", h, t.op("exp", h))
    t.returns(t.dot(gradient, t.input(64)), t.op("sum", gradient, size=4))
    painted = t.paint(entries=SUMS)
    assert painted[gradient] == "full>half operand"
    assert t.paint()[gradient] == "full taint"  # a sum that rounding does not even out


def test_what_is_computed_with_as_well_is_stored_full() -> None:
    t = Tiny()
    h = t.dot()
    gradient = t.op("mul", h, t.op("exp", h))
    only_summed = t.op("mul", gradient, t.op("exp", h))
    t.returns(t.dot(gradient, t.input(64)), t.op("sum", gradient, size=4))
    t.returns(t.op("sum", only_summed, size=4))
    painted = t.paint(entries=SUMS)
    assert (painted[gradient], painted[only_summed]) == ("full taint", "full taint")


def test_an_operand_of_dots_is_materialized_for_its_sums() -> None:
    t = Tiny()
    h = t.dot()
    gradient = t.op("mul", h, t.op("exp", h))
    t.returns(t.dot(gradient, t.input(64)), t.op("sum", gradient, size=4))
    painted = t.paint(entries=SUMS)
    plan = plan_casts(
        painted.graph, painted.classes, painted.painting, frozenset({MATERIALIZE_WIDENED})
    )
    assert [cast.materialized for cast in plan.casts if cast.value == gradient] == [
        MATERIALIZE_WIDENED
    ]
    assert not any(cast.materialized for cast in painted.plan.casts)


def _scaled(t: Tiny, value: int) -> int:
    """Arithmetic with a small full operand."""
    return t.op("mul", value, t.input(4))


def test_a_sum_of_mixed_arithmetic_for_dots_rounds_once() -> None:
    """The gradient after a batch norm."""
    t = Tiny()
    one, other = _scaled(t, t.dot()), _scaled(t, t.dot())
    total = t.op("add", one, other)
    t.returns(t.dot(total, t.input(64)), t.dot(total, t.input(64)))
    painted = t.paint()
    assert painted[total] == "full>half mixed"
    assert (painted[one], painted[other]) == ("full full_readers", "full full_readers")


@pytest.mark.parametrize("why", ["read elsewhere", "a half part", "a longer sum", "an activation"])
def test_other_sums_of_mixed_arithmetic_add_up_what_was_rounded(why: str) -> None:
    t = Tiny()
    one, other = _scaled(t, t.dot()), _scaled(t, t.dot())
    if why == "a half part":
        other = t.op("mul", t.dot(), t.dot())
    total = t.op("add", one, other)
    if why == "a longer sum":
        t.goes_on(t.op("add", total, t.dot()))
    elif why == "an activation":
        t.goes_on(t.op("relu", total))
    else:
        t.returns(t.dot(total, t.input(64)))
    if why == "read elsewhere":
        t.returns(t.dot(one, t.input(64)))
    painted = t.paint()
    assert painted[total] == "half downstream"
    assert painted[one] == "full>half mixed"
