"""``explained.difference``: which operations differ between two records of a program, and why."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import optax
import pytest

import duotone
from duotone import Policy, explain
from duotone.errors import ArgumentError

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
