"""Checks every case of the catalogue.

By default each case is checked between two dots in one of the half types, and cases of control
flow, custom rules and transformations also with derivatives and ``vmap``; values are compared for
one case in four, since compiling its operations is nearly all of the time. The slow tests check
the values of every variation in both half types.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import pytest

import duotone
from duotone import _jax
from duotone.jaxpr.reading.scopes import MARKER
from duotone.ops.jax import ENTRIES
from duotone.precision.optimize.optimizations import IN_FLOAT32
from tests.catalogue.case import VARIATIONS, Case
from tests.catalogue.cases import CALLS, CASES, FAMILIES
from tests.catalogue.evaluate import Traced, jaxprs_in, primitives_in, trace
from tests.catalogue.variations import (
    FORCED,
    HALF_TYPES,
    error_in_ulp,
    policy_of,
    sandwich,
    variation,
)

DENIED = FORCED.replace(
    allow_remove={e.op for e in ENTRIES if e.kind.value == "allow"},
    optimizations_remove=IN_FLOAT32,
)
_IDS = [case.name for case in CASES]
_BY_NAME = dict(zip(_IDS, CASES, strict=True))
_OF_TRANSFORMATIONS = [case for case in CASES if case.transformations]
_WITH_RULES = [
    case.name
    for family in ("custom rules", "control flow", "transformations")
    for case in FAMILIES[family]
]
_HOWS: dict[str, list[str]] = {}
for _case, _how in CALLS:
    _HOWS.setdefault(_case.name, []).append(_how)

of_every_case = pytest.mark.parametrize("case", CASES, ids=_IDS)
in_both_half_types = pytest.mark.parametrize("half", HALF_TYPES)


@of_every_case
def test_between_two_dots(case: Case):
    # Rewriting is the same for both half types but for the lists; the slow tests have the other.
    if "sandwich" in _HOWS.get(case.name, ()):
        check(case, "sandwich", _quick_half(case), values=_is_valued(case))


@of_every_case
def test_alone_and_denied_and_twice(case: Case):
    with _types_of(case):
        alone = _original(case.name, "plain")[0]
        assert primitives_in(alone.jaxpr) >= set(case.primitives)
        original = _original(case.name, "sandwich")[0]
        args = variation(case, "sandwich", lambda f: f)[1]

        denied = duotone.autocast(sandwich(case), dtype="bfloat16", policy=DENIED)
        again = jax.make_jaxpr(_jax.jaxpr_as_fun(original.jaxpr))(*original.arrays)
        assert str(_inside(trace(denied, args).jaxpr)) == str(_jax.open_jaxpr(again))

        once = duotone.autocast(sandwich(case), dtype="bfloat16", policy=FORCED)
        twice = duotone.autocast(once, dtype="float16", policy=FORCED)
        one, two = (trace(f, args).jaxpr for f in (once, twice))
        assert str(_inside(_inside(two))) == str(_inside(one))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case.name in _WITH_RULES else pytest.mark.slow, id=case.name)
        for case in _OF_TRANSFORMATIONS
    ],
)
def test_transformations(case: Case):
    half, hows = _quick_half(case), _HOWS.get(case.name, ())
    # Every other case is differentiated from outside, the rest from inside.
    how = "grad outside" if half == "float16" else "grad inside"
    if how in hows:
        check(case, how, half, values=case.name in _WITH_RULES and _is_valued(case))
    if "vmap" in hows:
        check(case, "vmap", half, values=False)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.forced != "half" and "forced" in _HOWS.get(c.name, ())],
    ids=lambda case: case.name,
)
def test_forced_on_what_has_no_half_form(case: Case):
    check(case, "forced", _quick_half(case), values=False)


@pytest.mark.slow
@in_both_half_types
@of_every_case
def test_every_variation(case: Case, half: str):
    for how in _HOWS.get(case.name, ()):
        check(case, how, half)


@pytest.mark.slow
@in_both_half_types
@pytest.mark.parametrize(
    "case",
    [case for case in _OF_TRANSFORMATIONS if "sandwich" in _HOWS.get(case.name, ())],
    ids=lambda case: case.name,
)
def test_compiled_outside_and_inside_jit(case: Case, half: str):
    with _types_of(case):
        wanted = _original(case.name, "sandwich")[1]()
        function, args = variation(
            case, "sandwich", lambda f: duotone.autocast(f, dtype=half, policy=FORCED)
        )
        traced = trace(function, args)
        outside = [y for y in jax.tree.leaves(function(*args)) if isinstance(y, jax.Array)]
        inside = jax.jit(_jax.jaxpr_as_fun(traced.jaxpr))(*traced.arrays)
        assert error_in_ulp(outside, wanted, half) <= case.tolerance("sandwich")
        assert error_in_ulp(inside, wanted, half) <= case.tolerance("sandwich")


def test_names_of_cases_are_unique():
    assert len(set(_IDS)) == len(_IDS)


def test_a_limit_is_of_a_known_variation_and_has_a_reason():
    for case in CASES:
        assert set(case.limits) <= set(VARIATIONS), case.name
        assert all(case.limits.values()), case.name


def check(case: Case, how: str, half: str, *, values: bool = True) -> None:
    """Types, structure, effects and, if asked for, values of one case in one variation."""
    with _types_of(case):
        original, run_original = _original(case.name, "sandwich" if how == "forced" else how)
        policy = policy_of(case, how)
        function, args = variation(
            case, how, lambda f: duotone.autocast(f, dtype=half, policy=policy)
        )
        if how == "forced" and case.forced == "refused":
            with pytest.raises(duotone.DuotoneError, match=r"keep_full\(\)|remove it from"):
                trace(function, args)
            return
        painted = trace(function, args)
        assert painted.tree == original.tree, how
        assert [place for place, _ in painted.statics] == [place for place, _ in original.statics]
        assert painted.types == original.types, how
        assert painted.effects == original.effects, how
        _jax.check_jaxpr(_jax.open_jaxpr(painted.jaxpr))
        if how in ("sandwich", "forced"):
            taken = how == "forced" and case.forced == "half"  # the policy asked for it
            for name in case.opaque:
                uses = _uses(original.jaxpr, name)
                same = _uses(painted.jaxpr, name) == uses
                assert same != (taken and "float32" in str(uses)), name
        if values:
            error = error_in_ulp(painted.run(), run_original(), half)
            assert error <= case.tolerance(how), f"{how}: {error} ULP"


def _quick_half(case: Case) -> str:
    """Half of the cases have their values checked in float16, half in bfloat16."""
    return HALF_TYPES[_IDS.index(case.name) % 2]


def _is_valued(case: Case) -> bool:
    """Whether the quick tests compare its values: two of every eight, one in each half type.

    Two versions of Python take different ones.
    """
    return _IDS.index(case.name) % 8 in ((0, 3) if sys.version_info < (3, 12) else (4, 7))


def _types_of(case: Case) -> contextlib.AbstractContextManager[Any]:
    return jax.enable_x64(True) if case.x64 else contextlib.nullcontext()


@functools.lru_cache(maxsize=8)
def _original(name: str, how: str) -> tuple[Traced, Callable[[], list[Any]]]:
    """The case in float32: traced, and a function that runs it once."""
    function, args = variation(_BY_NAME[name], how, lambda f: f)
    traced = trace(function, args)
    return traced, functools.cache(traced.run)


def _inside(jaxpr: Any) -> Any:
    """The contents of the one ``jit`` that ``autocast`` makes."""
    (eqn,) = _jax.open_jaxpr(jaxpr).eqns
    assert eqn.params["name"] == MARKER
    return _jax.open_jaxpr(eqn.params["jaxpr"])


def _uses(jaxpr: Any, name: str) -> list[tuple[list[str], list[str]]]:
    """Operand and result types of each use of a primitive."""
    return [
        ([str(a.aval) for a in eqn.invars], [str(a.aval) for a in eqn.outvars])
        for inner in jaxprs_in(jaxpr)
        for eqn in _jax.open_jaxpr(inner).eqns
        if eqn.primitive.name == name
    ]
