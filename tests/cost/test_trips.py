"""How often loops of compiled programs run, where the compiler does not write it next to them."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duotone.cost.hlo import parse
from duotone.cost.trips import Trips

DIRECTIONS = {"LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge}


def counting(
    first: int, step: int, direction: str, limit: int, *, plus: int = 0, mirrored: bool = False
) -> str:
    """A loop over a counter: the limit on either side, something added to the counter."""
    sides = "%n, %j" if mirrored else "%j, %n"
    return f"""HloModule m
%condition (s: (s32[], f32[8])) -> pred[] {{
  %s = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %p = s32[] constant({plus})
  %j = s32[] add(%p, %i)
  %n = s32[] constant({limit})
  ROOT %go = pred[] compare({sides}), direction={direction}
}}

%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %b = (s32[], f32[8]{{0}}) parameter(0)
  %x = f32[8]{{0}} get-tuple-element(%b), index=1
  %k = s32[] get-tuple-element(%b), index=0
  %d = s32[] constant({abs(step)})
  %next = s32[] {"add" if step >= 0 else "subtract"}(%k, %d)
  ROOT %t = (s32[], f32[8]{{0}}) tuple(%next, %x)
}}

ENTRY %main (a: f32[8]) -> (s32[], f32[8]) {{
  %a = f32[8]{{0}} parameter(0)
  %zero = s32[] constant({first})
  %start = (s32[], f32[8]{{0}}) tuple(%zero, %a)
  ROOT %loop = (s32[], f32[8]{{0}}) while(%start), condition=%condition, body=%body
}}
"""


def trips(text: str, name: str = "loop") -> int | None:
    """Of the loop called ``name``."""
    program = parse(text)
    for computation in program.computations.values():
        if name in computation.instructions:
            return Trips(program).of(computation.instructions[name], computation)
    raise AssertionError(name)


SMALL = st.integers(-9, 9)


@settings(deadline=None, derandomize=True, database=None)
@given(SMALL, SMALL.filter(bool), st.sampled_from(sorted(DIRECTIONS)), SMALL, SMALL, st.booleans())
def test_a_counter_is_followed_to_its_limit(first, step, direction, limit, plus, mirrored):
    compare = DIRECTIONS[direction]
    runs, counter = 0, first
    while compare(limit, counter + plus) if mirrored else compare(counter + plus, limit):
        runs, counter = runs + 1, counter + step
        if runs > 50:
            break
    found = trips(counting(first, step, direction, limit, plus=plus, mirrored=mirrored))
    assert found == (None if runs > 50 else runs)


@pytest.mark.parametrize(
    ("first", "step", "limit", "runs"),
    [(0, 2, 10, 5), (10, -2, 0, 5), (0, 3, 10, None), (0, 1, -1, None), (4, 0, 4, None)],
)
def test_a_counter_that_must_meet_its_limit(first, step, limit, runs):
    assert trips(counting(first, step, "NE", limit)) == runs


def test_a_condition_that_is_no_counter_is_not_taken_for_one():
    """A loop until a sum is large: the 0 that the sum begins with is not a limit."""
    text = counting(0, 1, "LT", 10).replace(
        "  ROOT %go = pred[] compare(%j, %n), direction=LT",
        "  %y = f32[8]{0} get-tuple-element(%s), index=1\n"
        "  %none = f32[] constant(0)\n"
        "  %most = f32[] constant(1e+06)\n"
        "  %sum = f32[] reduce(%y, %none), dimensions={0}, to_apply=%added\n"
        "  ROOT %go = pred[] compare(%sum, %most), direction=LT",
    )
    assert trips(text) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%zero = s32[] constant(0)", "%zero = s32[] negate(%zero)"),
        ("%d = s32[] constant(1)", "%d = s32[] negate(%k)"),
        ("add(%k, %d)", "add(%k, %k)"),
        ("add(%k, %d)", "multiply(%k, %d)"),
        ("direction=LT", "direction=EQ"),
        ("%n = s32[] constant(10)", "%n = s32[] negate(%i)"),
    ],
)
def test_what_cannot_be_followed_is_not_guessed_at(old, new):
    text = counting(0, 1, "LT", 10)
    assert old in text
    assert trips(text) == 10
    assert trips(text.replace(old, new)) is None


NESTED = """HloModule m
%compared (q: s32[], r: s32[]) -> pred[] {
  %q = s32[] parameter(0)
  %r = s32[] parameter(1)
  ROOT %c = pred[] compare(%q, %r), direction=LT
}

%advanced (u: s32[]) -> s32[] {
  %u = s32[] parameter(0)
  %one = s32[] constant(1)
  ROOT %v = s32[] add(%one, %u)
}

%until (s: (s32[], s32[])) -> pred[] {
  %s = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  ROOT %go = pred[] fusion(%i, %n), kind=kLoop, calls=%compared
}

%inside (b: (s32[], s32[])) -> (s32[], s32[]) {
  %b = (s32[], s32[]) parameter(0)
  %k = s32[] get-tuple-element(%b), index=0
  %copy = s32[] copy(%k)
  %next = s32[] fusion(%copy), kind=kLoop, calls=%advanced
  %same = s32[] get-tuple-element(%b), index=1
  ROOT %t = (s32[], s32[]) tuple(%next, %same)
}

%outer_until (w: (s32[], s32[], s32[])) -> pred[] {
  %w = (s32[], s32[], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%w), index=0
  %five = s32[] constant(5)
  ROOT %on = pred[] compare(%five, %j), direction=GT
}

%around (o: (s32[], s32[], s32[])) -> (s32[], s32[], s32[]) {
  %o = (s32[], s32[], s32[]) parameter(0)
  %m = s32[] get-tuple-element(%o), index=0
  %unit = s32[] constant(1)
  %more = s32[] add(%m, %unit)
  %from = s32[] get-tuple-element(%o), index=1
  %to = s32[] get-tuple-element(%o), index=2
  %begin = (s32[], s32[]) tuple(%from, %to)
  %inner = (s32[], s32[]) while(%begin), condition=%until, body=%inside
  %kept = s32[] get-tuple-element(%inner), index=1
  ROOT %z = (s32[], s32[], s32[]) tuple(%more, %from, KEPT)
}

ENTRY %main () -> (s32[], s32[], s32[]) {
  %zero = s32[] constant(0)
  %two = s32[] constant(2)
  %nine = s32[] constant(9)
  %start-copy = (s32[], s32[], u32[]) copy-start(%nine)
  %moved = s32[] copy-done(%start-copy)
  %start = (s32[], s32[], s32[]) tuple(%zero, %two, %moved)
  ROOT %outer = (s32[], s32[], s32[]) while(%start), condition=%outer_until, body=%around
}
"""


@pytest.mark.parametrize("kept", ["%to", "%kept"])
def test_constants_are_followed_through_loops_fusions_and_copies(kept):
    text = NESTED.replace("KEPT", kept)
    assert trips(text, "outer") == 5
    assert trips(text, "inner") == 7


def test_what_a_loop_around_changes_is_no_constant():
    text = NESTED.replace("KEPT", "%more")
    assert trips(text, "outer") == 5
    assert trips(text, "inner") is None
