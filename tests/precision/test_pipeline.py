"""The pipeline asks what a front end's programs can do, and takes a resolved policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from duotone.errors import PolicyError
from duotone.graph.graph import Paint
from duotone.policy.policy import Policy
from duotone.policy.resolve import edited_lists, resolve
from duotone.precision.painters import PAINTERS
from duotone.precision.pipeline import Capabilities, Decisions, decide, leave_full
from duotone.precision.ranges.find import Assumptions
from duotone.precision.ranges.intervals import INTERVAL_RULES
from duotone.precision.resolved import Resolved
from duotone.precision.rules import Rule
from duotone.precision.safety.safety_rules import OF_ANY_PAINTER, SAFETY_RULES
from tests.graph.tiny import ENTRIES, FLOAT16, Tiny

FUSES = Capabilities(
    painters=frozenset({"duotone", "tensorflow"}),
    two_precisions=True,
    fuses_casts=True,
    takes_optimizations=True,
    trained_constants=False,
    ranges_for_all_painters=False,
    interval_rules=INTERVAL_RULES,
)
PLAIN = dataclasses.replace(
    FUSES,
    painters=frozenset(PAINTERS),
    two_precisions=False,
    fuses_casts=False,
    takes_optimizations=False,
)


def resolved(policy: Policy, **more: Any) -> Resolved:
    return resolve(policy, FLOAT16, edited_lists(policy, FLOAT16, ENTRIES), **more)


def decided(t: Tiny, can: Capabilities, policy: Policy | None = None, **more: Any) -> Decisions:
    return decide(t.graph(), resolved(policy or Policy()), can, **more)


def biased() -> Tiny:
    """A dot, and a float32 bias that is added to it."""
    t = Tiny()
    value = t.op("add", t.op("dot", t.input(64), t.input(64), size=64), t.input(8), size=64)
    t.goes_on(value)
    return t


def sliced() -> Tiny:
    """Four slices of one input that are put together again, for a dot."""
    t = Tiny()
    x = t.input(64)
    slices = [t.op("reshape", x, size=16) for _ in range(4)]
    t.returns(t.op("dot", t.op("concat", *slices, size=64), t.input(64), size=32))
    return t


def test_a_node_stores_what_it_computes_if_it_cannot_do_otherwise() -> None:
    painting = decided(biased(), FUSES).painting
    assert painting.store != painting.compute
    assert Rule.MIXED in painting.rules
    painting = decided(biased(), PLAIN).painting
    assert painting.store == painting.compute
    assert Rule.MIXED not in painting.rules


def test_casts_are_saved_only_if_each_is_an_operation() -> None:
    assert Rule.CUT not in decided(sliced(), FUSES).painting.rules
    assert Rule.CUT in decided(sliced(), PLAIN).painting.rules
    kept = decided(sliced(), PLAIN, Policy(rules_remove={"cut"}))
    assert Rule.CUT not in kept.painting.rules


def test_casts_are_planned_for_who_applies_a_plan() -> None:
    assert decided(biased(), FUSES).plan.casts
    assert not decided(biased(), PLAIN).plan.casts


def test_a_painter_is_for_the_programs_that_say_so() -> None:
    policy = Policy(painter="mincut")
    assert decided(biased(), PLAIN, policy).painting.changed
    with pytest.raises(PolicyError, match=r"the painter is 'mincut'.*DUOTONE_PAINTER"):
        decided(biased(), FUSES, policy)


def test_weights_are_given_in_half() -> None:
    t = Tiny()
    x, w = t.input(64), t.input(64)
    t.returns(t.op("dot", x, w, size=64))
    graph = decided(t, FUSES, weights=[w]).graph
    assert (graph.values[x].given, graph.values[w].given) == (Paint.FULL, Paint.HALF)


def test_patterns_match_the_names_that_the_front_end_gives() -> None:
    t = Tiny()
    t.returns(t.op("dot", t.input(64), t.input(64), size=64))
    policy = Policy(keep_full=["first layer"])
    assert decided(t, FUSES, policy).painting.changed
    found = decided(t, FUSES, policy, names=lambda node: ("dot", "first layer"))
    assert found.painting.rules == (Rule.PINNED,)


@pytest.mark.parametrize(("always", "denied"), [(False, False), (True, True)])
def test_proven_ranges_hold_for_every_painter_where_a_front_end_says_so(
    always: bool, denied: bool
) -> None:
    t = Tiny()
    x = t.input(64)
    t.returns(t.op("dot", t.op("mul", x, x, size=64), t.input(64), size=64))
    can = dataclasses.replace(FUSES, ranges_for_all_painters=always)
    known = Assumptions({x: (1e4, 1e5)}, {}, {x: "x"})
    found = decided(t, can, Policy(painter="tensorflow"), assumptions=known)
    assert (Rule.OVERFLOW in found.painting.rules) is denied


def test_nothing_is_half_where_mixed_precision_is_off() -> None:
    found = leave_full(biased().graph(), resolved(Policy()))
    assert not found.painting.changed
    assert set(found.painting.rules) == {Rule.OFF}
    assert not found.plan.casts


def test_a_policy_is_resolved_into_the_rules_in_effect() -> None:
    assert resolved(Policy()).safety_rules == tuple(SAFETY_RULES)
    without = resolved(Policy(rules_remove={"solve"}))
    assert without.safety_rules == tuple(r for r in SAFETY_RULES if r is not Rule.SOLVE)
    for policy in (Policy(painter="tensorflow"), Policy(level="TENSOR_CORES_ONLY")):
        assert set(resolved(policy).safety_rules) == OF_ANY_PAINTER
    on = frozenset({"picks", "factors"})
    found = resolved(Policy(optimizations_remove={"picks"}), optimizations=on)
    assert found.optimizations == {"factors"}
    with pytest.raises(PolicyError, match="reduce_dtype is 'bfloat16'"):
        resolved(Policy(reduce_dtype="bfloat16"))
