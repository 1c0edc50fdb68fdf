"""No value that a program makes lies outside of the interval that was proved of it.

Every value of random programs is looked at, on inputs drawn from the assumed ranges. Planted faults
show that the search would find one: a rule whose bound is too tight, and facts that take the
maximum or the sum of rows for that of columns.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duotone.jaxpr.reading.build import build
from duotone.precision.ranges import facts, find_ranges
from duotone.precision.ranges import intervals as rules
from tests import random_programs
from tests.catalogue.case import Case
from tests.catalogue.cases import CASES
from tests.catalogue.evaluate import as_arrays, trace
from tests.precision.range_programs import (
    STEPS,
    Program,
    built_with_ranges,
    intervals,
    outside,
    programs,
    sample,
)

WIDE, UNIT, FAR = (-1e4, 1e4), (-1.0, 1.0), (2.0, 300.0)


def counterexamples(names: list[str]) -> list[str]:
    """What lies outside in programs of one or two steps, on a few ranges of their inputs."""
    random = np.random.default_rng(3)
    found = []
    for name in names:
        for stated in ([WIDE, UNIT], [UNIT, FAR], [FAR, WIDE]):
            built, ranges = built_with_ranges(Program(((name, 1, 0),)), stated)
            for _ in range(3):
                arrays = [sample(interval, random) for interval in stated]
                found += [f"{name}: {words}" for words in outside(built, ranges, arrays)]
    return found


@pytest.mark.parametrize("name", STEPS)
def test_one_step(name: str) -> None:
    assert counterexamples([name]) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), intervals(), intervals(), st.integers(0, 2**16))
def test_random_programs(
    program: Program, x: tuple[float, float], y: tuple[float, float], seed: int
) -> None:
    random = np.random.default_rng(seed)
    built, ranges = built_with_ranges(program, [x, y])
    for _ in range(2):
        assert outside(built, ranges, [sample(x, random), sample(y, random)]) == []


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_programs.programs(4), st.integers(0, 2**16))
def test_random_training_steps(program: random_programs.Program, seed: int) -> None:
    """With derivatives, loops and branches: the programs of the invariants."""
    arrays = list(random_programs.arguments())
    random = np.random.default_rng(seed)
    built = build(jax.make_jaxpr(jax.value_and_grad(program.loss, (0, 1)))(*arrays))
    ranges = find_ranges(built.graph)
    hostile = [array * random.choice([1e-20, 1.0, 1e3]).astype(np.float32) for array in arrays]
    assert outside(built, ranges, hostile) == []


RUNNING = [case for case in CASES if "plain" not in case.limits]


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNNING, ids=lambda case: case.name)
def test_catalogue(case: Case) -> None:
    """Every primitive there is a case of, on the case's arguments."""
    with jax.enable_x64(case.x64):
        traced = trace(case.function, case.arguments())
        built = build(traced.jaxpr)
        ranges = find_ranges(built.graph)
        assert outside(built, ranges, as_arrays(traced.arrays)) == []


def test_a_loop_that_starts_from_what_another_loop_makes() -> None:
    """Found by the search: the second carry was not looked at again when the first one grew."""
    program = Program((("abs", 1, 0), ("nested loops", 0, 0), ("scan that alternates", 0, 0)))
    built, ranges = built_with_ranges(program, [(-3.0, -3.0), UNIT])
    assert outside(built, ranges, [np.full((4, 4), -3, np.float32)] * 2) == []


def test_a_planted_rule_that_is_too_tight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.INTERVAL_RULES, "exp", lambda node, known, values: (0.0, 1.0))
    assert counterexamples(["exp"])


def test_a_planted_fact_that_forgets_axes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maximum of rows, read along columns, is not a maximum."""

    def careless(state: facts.Findings, value: int, kind: str, source: int, shape: object) -> bool:
        found = state.relations.get(value)
        return found is not None and found.kind == kind and found.source == state.same(source)

    monkeypatch.setattr(facts.Findings, "related", careless)
    assert counterexamples(["turned maximum", "softmax over the wrong axis"])


def test_a_planted_sum_that_forgets_what_was_moved_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Axes of the exponentials or squares, taken for those of what they were moved to."""
    parted = facts._parted
    monkeypatch.setattr(facts, "_parted", lambda labels, axes: parted(range(len(labels)), axes))
    for kind, moves in (("sum", ("turned", "split", "repeated")), ("norm", ("turned",))):
        for move in moves:
            names = [name for name in STEPS if name.startswith(f"{kind} of {move} ")]
            assert counterexamples(names), (kind, move)


def test_a_planted_norm_without_its_guard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of squares that underflowed to zero bounds nothing."""
    monkeypatch.setattr(facts, "_GUARD", -1.0)
    monkeypatch.setitem(
        rules.INTERVAL_RULES, "rsqrt", lambda node, known, values: (0.0, float("inf"))
    )
    tiny = np.full((4, 4), 1e-25, np.float32)
    built, ranges = built_with_ranges(Program((("rms without epsilon", 0, 0),)), [UNIT, UNIT])
    assert outside(built, ranges, [tiny, tiny])
