"""What holds for every program, tried on random ones (the same ones each time)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import duotone
from duotone import Policy, _jax
from duotone.devices.table import TABLE
from duotone.jaxpr import pipeline
from tests.random_programs import STEPS, Program, arguments, programs

HALF = st.sampled_from(["float16", "bfloat16"])
PAINTER = st.sampled_from(["duotone", "tensorflow"])
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
TRACED = settings(
    max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=_QUIET
)
RUN = settings(TRACED, max_examples=2)
EVERYTHING = Program(tuple((name, 1, 2) for name in sorted(STEPS)))
"""Each step once, so that no kind of step depends on luck."""

BARRIERS = {"attention", "clipped", "cond", "relu", "remat", "softplus", "switch"}
"""Steps with nested programs that keep rules of their own or may not run."""

EXACT = Program(tuple(step for step in EVERYTHING.steps if step[0] not in BARRIERS))


def _avals(jaxpr: Any) -> list[str]:
    return [str(aval) for aval in jaxpr.out_avals]


def _equations(jaxpr: Any) -> Iterator[tuple[Any, Any]]:
    """All equations, nested ones in place, each with the (open) jaxpr that contains it."""
    opened = _jax.open_jaxpr(jaxpr)
    for eqn in opened.eqns:
        yield eqn, opened
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                if hasattr(_jax.open_jaxpr(inner), "eqns"):
                    yield from _equations(inner)


def _conversions(jaxpr: Any, half: str) -> Counter[str]:
    """The casts of arrays (not of numbers) in a jaxpr between float32 and half, by target."""
    found: Counter[str] = Counter()
    for eqn, _ in _equations(jaxpr):
        if eqn.primitive.name == "convert_element_type":
            pair = {eqn.invars[0].aval.dtype.name, eqn.outvars[0].aval.dtype.name}
            if pair == {"float32", half} and eqn.outvars[0].aval.shape:
                found[eqn.outvars[0].aval.dtype.name] += 1
    return found


@TRACED
@given(programs(), HALF, PAINTER)
@example(EVERYTHING, "float16", "duotone")
@example(EVERYTHING, "bfloat16", "tensorflow")
def test_what_a_program_returns_keeps_its_type(program: Program, half: str, painter: Any) -> None:
    painted = duotone.autocast(program, dtype=half, policy=Policy(painter=painter))
    before = jax.make_jaxpr(program)(*arguments())
    after = jax.make_jaxpr(painted)(*arguments())
    assert _avals(after) == _avals(before)
    _jax.check_jaxpr(_jax.open_jaxpr(after))


@TRACED
@given(programs(), HALF)
@example(EVERYTHING, "float16")
def test_everything_denied_is_the_identity(program: Program, half: str) -> None:
    policy = Policy(keep_full=["*"])
    painted = duotone.autocast(program, dtype=half, policy=policy)
    (eqn,) = _jax.open_jaxpr(jax.make_jaxpr(painted)(*arguments())).eqns
    assert str(eqn.params["jaxpr"]) == str(jax.make_jaxpr(program)(*arguments()))
    assert duotone.explain(program, *arguments(), dtype=half, policy=policy).casts == ()


@TRACED
@given(programs(), HALF, PAINTER)
@example(EVERYTHING, "float16", "duotone")
def test_painting_twice_is_painting_once(program: Program, half: str, painter: Any) -> None:
    policy = Policy(painter=painter)
    once = duotone.autocast(program, dtype=half, policy=policy)
    twice = duotone.autocast(once, dtype=half, policy=policy)
    one, two = (jax.make_jaxpr(f)(*arguments()) for f in (once, twice))
    assert _conversions(one, half) == _conversions(two, half)
    primitives = [Counter(eqn.primitive.name for eqn, _ in _equations(j)) for j in (one, two)]
    assert set(primitives[0]) == set(primitives[1])
    for name in set(primitives[0]) - {"jit", "pjit"}:
        assert primitives[0][name] == primitives[1][name]


@TRACED
@given(programs(), PAINTER)
@example(EVERYTHING, "duotone")
@example(EVERYTHING, "tensorflow")
@example(EXACT, "duotone")
@example(EXACT, "tensorflow")
def test_the_casts_of_explain_are_those_of_the_program(program: Program, painter: Any) -> None:
    """Besides the planned casts only results that are computed full and stored half are rounded.

    In float16: for bfloat16 some versions of JAX need dots on CPUs written with further casts.
    Numbers do not count: a constant that is an operand of a nested program is cast in it. Where a
    nested program with rules of its own stays full, it shares casts with what is around it; the
    plan counts them apart. What is recomputed casts again, so it is switched off.
    """
    half = "float16"
    program = Program(tuple(step for step in program.steps if step[0] != "pick"))
    exact = not BARRIERS & {step[0] for step in program.steps}
    policy = Policy(painter=painter, optimizations_remove=["recompute"])
    record = duotone.explain(program, *arguments(), dtype=half, policy=policy)
    planned = Counter(cast.to for cast in record.casts if cast.shape)
    planned[half] += sum(
        o.paint == "full" and o.stored == "half" and o.shape != () for o in record.operations
    )
    painted = duotone.autocast(program, dtype=half, policy=policy)
    found = _conversions(jax.make_jaxpr(painted)(*arguments()), half)
    assert found == planned if exact else found <= planned
    assert found[half] == planned[half]


@TRACED
@given(programs(), HALF)
@example(EVERYTHING, "float16")
def test_no_loop_casts_what_it_does_not_change(program: Program, half: str) -> None:
    """In the form of a device that has dots of half: some CPUs widen the operands of each."""
    painted = duotone.autocast(dataclasses.replace(program, own_weights=True), dtype=half)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "current_forms", lambda *_, **__: TABLE["other"])
        traced = jax.make_jaxpr(painted)(*arguments())
    for eqn, _ in _equations(traced):
        if eqn.primitive.name != "scan":
            continue
        body = _jax.open_jaxpr(eqn.params["jaxpr"])
        constants = set(body.invars[: _jax.scan_layout(eqn)[0]])
        for inner in body.eqns:
            if inner.primitive.name == "convert_element_type":
                assert inner.invars[0] not in constants


# ----------------------------------------- commuting with transformations: these compile and run


def _close(one: Any, other: Any, half: str) -> None:
    """Equal within a few roundings of activations of order 1, each amplified a little."""
    tolerance = {"float16": 0.02, "bfloat16": 0.15}[half]
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.isfinite(a).all()
        assert np.linalg.norm(a - b) <= tolerance * (1 + np.linalg.norm(b))


@RUN
@given(programs(4))
@example(Program((("scan", 0, 1), ("layer norm", 0, 0), ("cond", 0, 2), ("remat", 0, 1))))
def test_jit_commutes(program: Program) -> None:
    inside = duotone.autocast(jax.jit(program), dtype="float16")(*arguments())
    outside = jax.jit(duotone.autocast(program, dtype="float16"))(*arguments())
    _close(inside, outside, "float16")
    _close(inside, program(*arguments()), "float16")


@RUN
@given(programs(4))
@example(Program((("cond", 0, 1), ("attention", 0, 1))))
@example(Program((("scan", 0, 1), ("gather", 0, 0))))
def test_vmap_commutes(program: Program) -> None:
    x, w = arguments()
    batch = np.stack([x, -x, 2 * x])
    function = jax.vmap(program, (0, None))
    inside = duotone.autocast(function, dtype="float16")(batch, w)
    outside = jax.vmap(duotone.autocast(program, dtype="float16"), (0, None))(batch, w)
    _close(inside, outside, "float16")


_SMOOTH = sorted(set(STEPS) - {"max", "relu", "guard", "cond", "clipped", "exp"})
"""Steps whose gradient has no jump that a rounding could step over."""


@RUN
@given(
    st.lists(
        st.tuples(st.sampled_from(_SMOOTH), st.integers(0, 1), st.integers(0, 3)),
        min_size=1,
        max_size=2,
    ).map(lambda steps: Program(tuple(steps)))
)
@example(Program((("remat", 0, 1), ("scan", 0, 1), ("attention", 0, 1))))
def test_grad_commutes(program: Program) -> None:
    function = jax.grad(program.loss, (0, 1))
    inside = duotone.autocast(function, dtype="float16")(*arguments())
    outside = jax.grad(duotone.autocast(program.loss, dtype="float16"), (0, 1))(*arguments())
    want = function(*arguments())
    _close(inside, want, "float16")
    _close(outside, want, "float16")


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_step_can_be_half(name: str) -> None:
    """The programs prove nothing if nothing in them is painted."""
    function: Callable[..., Any] = Program((("dot", 0, 0), (name, 0, 1), ("dot", 0, 0)))
    record = duotone.explain(function, *arguments(), dtype="float16")
    assert record.summary.allow_half == record.summary.allow_total > 0
    assert jnp.isfinite(function(*arguments())[1])
