"""duotone's painter, rule 8: constants that half cannot represent."""

from __future__ import annotations

import pytest

from tests.graph.tiny import BFLOAT16, Tiny

# ----------------------------------------- rule 8: constants


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


def test_an_addition_is_denied_from_half_of_the_range_on() -> None:
    """The other operand counts too: a mask of -65504 and a score of -20 are -inf together."""
    for op, number, expected in (
        ("add", 40000.0, "full constant"),
        ("mul", 40000.0, "half downstream"),
        ("add", 30000.0, "half downstream"),
    ):
        t = Tiny()
        result = t.op(op, t.dot(), t.constant(number))
        t.goes_on(result)
        assert t.paint()[result] == expected


@pytest.mark.parametrize(("epsilon", "reaches"), [(1e-8, True), (1e-12, True), (1e-6, False)])
def test_a_guard_that_half_rounds_to_zero_taints_what_it_guards(
    epsilon: float, reaches: bool
) -> None:
    """``h / max(norm, 1e-8)``: the small divisor must arrive full at the large division."""
    t = Tiny()
    h = t.dot()
    guard = t.op("select", t.op("sum", h, size=4), t.constant(epsilon))
    quotient = t.op("mul", h, guard, size=64)
    t.goes_on(quotient)
    painted = t.paint()
    assert painted[guard] == "full constant"
    assert painted[quotient] == ("full taint" if reaches else "full>half mixed")


def test_a_vector_as_large_as_its_own_guard_is_tainted_by_a_small_epsilon() -> None:
    t = Tiny()
    shifted = t.op("add", t.op("sum", t.dot(), size=64), t.constant(1e-6))
    root = t.op("tanh", shifted)
    t.goes_on(root)
    assert t.paint()[root] == "full taint"


def test_a_large_divisor_taints_only_what_is_as_large() -> None:
    """The count of a mean over a batch of images."""
    t = Tiny()
    h = t.dot()
    mean = t.op("div", t.op("sum", h, size=4), t.constant(8e5))
    centred = t.op("add", h, mean)
    t.goes_on(centred)
    painted = t.paint()
    assert painted[mean] == "full constant"
    assert painted[centred] == "full>half mixed"


def test_a_small_divisor_taints_everything() -> None:
    t = Tiny()
    h = t.dot()
    large = t.op("div", t.op("sum", h, size=4), t.constant(1e-5))
    shifted = t.op("add", h, large)
    t.goes_on(shifted)
    assert t.paint()[shifted] == "full taint"


@pytest.mark.parametrize(
    ("op", "number", "expected"),
    [
        ("branch.join", 1e9, "full constant"),
        ("concat", 1e9, "half downstream"),
        ("branch.join", 1.0, "half downstream"),
    ],
)
def test_what_a_branch_returns_is_data_and_one_number_elsewhere_is_a_mask(
    op: str, number: float, expected: str
) -> None:
    t = Tiny()
    joined = t.op(op, t.dot(), t.constant(number, size=64))
    t.returns(t.dot(joined, t.input(64)))
    assert t.paint()[joined] == expected


def test_a_concatenation_with_large_numbers_is_full() -> None:
    t = Tiny()
    joined = t.op("concat", t.dot(), t.constant(1.0, largest=1e9, size=64))
    t.returns(t.dot(joined, t.input(64)))
    assert t.paint()[joined] == "full constant"
