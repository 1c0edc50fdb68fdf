"""``explained.difference``: which operations differ between two records of a program, and why."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import optax
import pytest

import duotone
from duotone import Policy, explain
from duotone.errors import ArgumentError, ArgumentTypeError

X = jnp.ones((16, 16))


def exponential(x):
    return jnp.exp(x @ x)


def test_only_what_differs_is_reported_with_both_reasons() -> None:
    here = explain(exponential, X, dtype="float16")
    there = explain(exponential, X, dtype="float16", policy=Policy(keep_full=["*dot_general"]))
    found = here.difference(there, ("default", "pinned"))
    (pair,) = found.operations
    assert (pair.here.operation, pair.here.rule, pair.there.rule) == (
        "dot_general",
        "allow",
        "pinned",
    )
    text = str(found)
    assert text.startswith("1 operation differs of 2 between default and pinned")
    assert "default: half, allow" in text
    assert "pinned: full, pinned" in text
    assert json.loads(found.to_json())["operations"][0]["there"]["paint"] == "full"


def test_devices_differ_where_duotone_chose_the_type() -> None:
    gpu, cpu = (explain(exponential, X, target=name) for name in ("h200", "cpu"))
    dot, exp = gpu.difference(cpu).operations
    assert (dot.here.paint, dot.there.paint) == ("half", "full")
    assert {dot.there.rule, exp.there.rule} <= {"small", "device"}


def test_two_half_types_are_named() -> None:
    found = explain(exponential, X, dtype="float16").difference(
        explain(exponential, X, dtype="bfloat16")
    )
    assert not found.operations
    assert str(found) == "All 2 operations are the same on here and there (float16 and bfloat16)."


def test_records_of_two_programs_are_refused() -> None:
    here = explain(exponential, X, dtype="float16")
    there = explain(lambda x: jnp.sin(x @ x), X, dtype="float16")
    with pytest.raises(ArgumentError, match="2 and 2 operations of which 1 are in both"):
        here.difference(there)
    with pytest.raises(ArgumentError, match="2 and 1 operations"):
        here.difference(explain(lambda x: x @ x, X, dtype="float16"))


@pytest.mark.parametrize("other", [3, "cpu", None, exponential, {}])
def test_what_is_no_record_is_refused_by_its_type(other) -> None:
    here = explain(exponential, X, dtype="float16")
    with pytest.raises(ArgumentTypeError, match=r"other is .*pass what duotone\.explain returned"):
        here.difference(other)


@pytest.mark.parametrize("names", [3, "ab", ("h200",), ("h200", 3)])
def test_names_are_a_pair(names) -> None:
    here = explain(exponential, X, dtype="float16")
    with pytest.raises(ArgumentTypeError, match=r"names is .*\('h200', 'cpu'\)"):
        here.difference(here, names)


def test_a_long_program_is_aligned_around_what_one_side_has_alone() -> None:
    """Catches: a time that grows with the square of the operations."""
    here = explain(exponential, X, dtype="float16")
    dot, exp = here.operations
    long = [dot, exp, exp, dot, dot] * 8000
    more = [o for index, o in enumerate(long) for o in ([o, exp] if index % 100 == 0 else [o])]
    one, other = (dataclasses.replace(here, operations=tuple(o)) for o in (long, more))
    found = one.difference(other)
    assert found.total == len(long)
    assert tuple(map(len, found.only)) == (0, 400)


def test_rewritten_functions_inside_may_differ_between_devices() -> None:
    optimizer = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3))
    params = {"a": jnp.ones((64, 128)), "b": jnp.ones((128, 64))}
    state = optimizer.init(params)

    def step(params, state, x):
        def loss(params):
            return jnp.mean((jax.nn.gelu(x @ params["a"]) @ params["b"] - x) ** 2)

        return optimizer.minimize(loss, params, state)

    x = jnp.ones((32, 64))
    gpu, tpu = (explain(step, params, state, x, target=name) for name in ("h200", "v5e"))
    found = gpu.difference(tpu, ("h200", "v5e"))
    counts = [found.total + len(side) for side in found.only]
    assert counts == [len(gpu.operations), len(tpu.operations)]
    assert "tanh" in {o.operation for o in found.only[0]}  # recomputed on a GPU
    text = str(found)
    assert f"only in the rewritten program of h200: {len(found.only[0])}" in text
    assert json.loads(found.to_json())["only"][0]


def test_a_target_that_nobody_knows() -> None:
    with pytest.raises(duotone.DuotoneError, match="h200"):
        explain(exponential, X, target="h2000")


def test_reasons_with_different_details_are_one_group() -> None:
    """Catches: a group for each operation, since details of a reason name the operation."""

    def step(x):
        return jnp.sin(jnp.exp(x @ x))

    pinned = Policy(keep_full=["*exp", "*sin"])
    here, there = (explain(step, X, dtype="float16", policy=p) for p in (None, pinned))
    heading, other, exp, sine = str(here.difference(there)).splitlines()[-4:]
    assert (heading, other) == ("here: full, deny", "there: full, pinned")
    assert "overflows" in exp
    assert "pole" in sine
