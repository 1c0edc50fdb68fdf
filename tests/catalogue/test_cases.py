"""Checks every case of the catalogue in every variation, in both half types."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest

import duotone
from duotone import _jax
from duotone.jaxpr.lists import ENTRIES
from duotone.jaxpr.scopes import MARKER
from tests.catalogue.case import VARIATIONS, Case
from tests.catalogue.cases import CALLS, CASES
from tests.catalogue.evaluate import Traced, jaxprs_in, primitives_in, trace
from tests.catalogue.variations import (
    FORCED,
    HALF_TYPES,
    error_in_ulp,
    policy_of,
    sandwich,
    variation,
)

DENIED = FORCED.replace(allow_remove={e.op for e in ENTRIES if e.kind.value == "allow"})
_IDS = [case.name for case in CASES]
_BY_NAME = dict(zip(_IDS, CASES, strict=True))


def _types_of(case: Case) -> contextlib.AbstractContextManager[Any]:
    return jax.enable_x64(True) if case.x64 else contextlib.nullcontext()


@functools.lru_cache(maxsize=2)
def _reference(name: str, how: str) -> tuple[Traced, Callable[[], list[Any]]]:
    """The case in float32: traced, and a function that runs it once."""
    function, args = variation(_BY_NAME[name], how, lambda f: f)
    traced = trace(function, args)
    return traced, functools.cache(traced.run)


def _painted(case: Case, how: str, half: str) -> Traced:
    policy = policy_of(case, how)
    function, args = variation(case, how, lambda f: duotone.autocast(f, dtype=half, policy=policy))
    return trace(function, args)


def _quick(position: int, case: Case, how: str, half: str) -> bool:
    """Whether a check runs by default; the others run with the slow tests.

    Rewriting is the same for both half types but for the lists, so the sandwich is run in both, and
    each other variation in one of them, which alternates from case to case. Batching rules are
    JAX's: only cases of transformations are mapped by default.
    """
    if how == "sandwich":
        return True
    other = position % 2
    if how == "vmap" and not case.transformations:
        return False
    if how.startswith("grad") and not case.transformations:
        return (how == "grad outside") == (other == 0) and half == HALF_TYPES[other]
    return half == HALF_TYPES[1 - other]


def _parameters() -> list[Any]:
    return [
        pytest.param(
            case,
            how,
            half,
            id=f"{case.name}-{how}-{half}",
            marks=[] if _quick(_IDS.index(case.name), case, how, half) else [pytest.mark.slow],
        )
        for case, how in CALLS
        for half in HALF_TYPES
    ]


@pytest.mark.parametrize(("case", "how", "half"), _parameters())
def test_types_and_values(case: Case, how: str, half: str):
    with _types_of(case):
        original, run_original = _reference(case.name, "sandwich" if how == "forced" else how)
        if how == "forced" and case.forced == "refused":
            with pytest.raises(duotone.DuotoneError, match=r"keep_full\(\)|take it off"):
                _painted(case, how, half)
            return
        painted = _painted(case, how, half)
        assert painted.tree == original.tree
        assert [p for p, _ in painted.statics] == [p for p, _ in original.statics]
        assert painted.types == original.types
        assert painted.effects == original.effects
        _jax.check_jaxpr(_jax.open_jaxpr(painted.jaxpr))
        if how == "plain" and str(_inside(painted.jaxpr)) == str(_jax.open_jaxpr(original.jaxpr)):
            return  # nothing was painted, so there is nothing to measure
        assert error_in_ulp(painted.run(), run_original(), half) <= case.tolerance(how)


@pytest.mark.parametrize("case", CASES, ids=_IDS)
def test_a_case_covers_what_it_says(case: Case):
    with _types_of(case):
        found = primitives_in(trace(case.function, case.arguments()).jaxpr)
    assert found >= set(case.primitives)


@pytest.mark.parametrize("case", CASES, ids=_IDS)
def test_everything_denied_is_the_same_program(case: Case):
    with _types_of(case):
        original = trace(sandwich(case), _with_identity(case))
        denied = duotone.autocast(sandwich(case), dtype="bfloat16", policy=DENIED)
        rewritten = trace(denied, _with_identity(case))
    assert str(_inside(rewritten.jaxpr)) == str(_jax.open_jaxpr(original.jaxpr))


@pytest.mark.parametrize("case", CASES, ids=_IDS)
def test_autocast_of_autocast_is_autocast(case: Case):
    with _types_of(case):
        once = duotone.autocast(sandwich(case), dtype="bfloat16", policy=FORCED)
        twice = duotone.autocast(once, dtype="float16", policy=FORCED)
        one, two = (trace(f, _with_identity(case)).jaxpr for f in (once, twice))
    assert str(_inside(_inside(two))) == str(_inside(one))


@pytest.mark.parametrize("case", [c for c in CASES if c.opaque], ids=lambda case: case.name)
def test_opaque_operations_keep_their_types(case: Case):
    with _types_of(case):
        original = trace(sandwich(case), _with_identity(case))
        painted = _painted(case, "sandwich", "float16")
    for name in case.opaque:
        assert _uses(painted.jaxpr, name) == _uses(original.jaxpr, name)


@pytest.mark.parametrize("half", HALF_TYPES)
@pytest.mark.parametrize("case", [c for c in CASES if c.transformations], ids=lambda c: c.name)
@pytest.mark.slow
def test_outside_and_inside_jit(case: Case, half: str):
    with _types_of(case):
        args = _with_identity(case)
        mixed = duotone.autocast(sandwich(case), dtype=half, policy=FORCED)
        original, traced = trace(sandwich(case), args), trace(mixed, args)
        outside = [y for y in jax.tree.leaves(mixed(*args)) if isinstance(y, jax.Array)]
        inside = jax.jit(_jax.jaxpr_as_fun(traced.jaxpr))(*traced.arrays)
        assert error_in_ulp(outside, original.run(), half) <= case.tolerance("sandwich")
        assert error_in_ulp(inside, original.run(), half) <= case.tolerance("sandwich")


def test_names_of_cases_are_unique():
    assert len(set(_IDS)) == len(_IDS)


def test_a_limit_is_of_a_known_variation_and_has_a_reason():
    for case in CASES:
        assert set(case.limits) <= set(VARIATIONS), case.name
        assert all(case.limits.values()), case.name


def _with_identity(case: Case) -> tuple[Any, ...]:
    return variation(case, "sandwich", lambda f: f)[1]


def _inside(jaxpr: Any) -> Any:
    """What stands in the one ``jit`` that ``autocast`` makes."""
    opened = _jax.open_jaxpr(jaxpr)
    (eqn,) = opened.eqns
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
