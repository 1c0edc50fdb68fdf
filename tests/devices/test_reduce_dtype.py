"""``Policy(reduce_dtype=...)``: gradients are added up over devices in the dtype that it names."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import duotone
from duotone.errors import EnvironmentVariableError, PolicyError
from tests.catalogue.evaluate import jaxprs_in
from tests.devices.programs import CASES

SUMS = ("psum", "psum_invariant", "reduce_scatter")


def policy(reduce_dtype: Any) -> duotone.Policy:
    return duotone.Policy(ignore_performance=True, reduce_dtype=reduce_dtype)


def forms(loss: Any, reduce_dtype: Any) -> dict[str, Any]:
    own = policy(reduce_dtype)
    return {
        "whole": duotone.value_and_grad(loss, dtype="float16", policy=own),
        "forward": jax.value_and_grad(duotone.autocast(loss, dtype="float16", policy=own)),
    }


def sums_of(function: Any, *args: Any) -> set[str]:
    """The dtypes in which arrays are added up over devices, of a program's own."""
    found = set()
    for jaxpr in jaxprs_in(jax.make_jaxpr(function)(*args)):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in SUMS:
                found |= {str(a.aval.dtype) for a in eqn.invars if a.aval.size > 16}
    return found


def placed(name: str) -> Any:
    case = CASES[name]
    return case.placed(case.mesh())


@pytest.mark.parametrize(
    ("asked", "whole", "forward"),
    [(None, "float32", "float32"), ("float32", "float32", "float32"), ("float16",) * 3],
)
def test_sums_by_hand(asked: Any, whole: str, forward: str) -> None:
    loss, weights, batch = placed("partly by hand")
    made = forms(loss, asked)
    assert sums_of(made["whole"], weights, batch) == {whole}
    assert sums_of(made["forward"], weights, batch) == {forward}
    if asked is None:
        return
    want = jax.jit(jax.grad(loss))(weights, batch)
    for function in [made["whole" if asked == "float16" else "forward"]]:
        (_, got) = jax.jit(function)(weights, batch)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert g.dtype == jnp.float32
            np.testing.assert_allclose(g, w, atol=2e-3)


def test_sums_that_the_compiler_puts_in() -> None:
    loss, weights, batch = placed("data parallel")
    sent = {}
    for asked in (None, "float32", "float16"):
        step = forms(loss, asked)["whole"]
        found = duotone.compile_for(step, weights, batch, target="cpu").collectives
        sent[asked] = sum(c.total_bytes for c in found if "f16" in c.dtype)
    assert sent[None] == sent["float32"] == 0
    assert sent["float16"] >= 3 * 16 * 16 * 2


def test_sums_of_activations_losses_and_statistics_stay() -> None:
    """Sums that dots follow, or of one number, are not gradients."""
    mesh = CASES["data parallel"].mesh()

    def local(w: Any, x: Any) -> Any:
        mean = lax.pmean(x.mean(0), "data")
        return lax.psum(jnp.sum(((x - mean) @ w) ** 2), "data")

    loss = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    step = duotone.autocast(jax.value_and_grad(loss), dtype="float16", policy=policy("float16"))
    w, x = jnp.ones((32, 32)) / 32, jnp.ones((64, 32))
    found = [
        (atom.aval.shape, str(atom.aval.dtype))
        for jaxpr in jaxprs_in(jax.make_jaxpr(step)(w, x))
        for eqn in jaxpr.eqns
        if eqn.primitive.name in SUMS
        for atom in eqn.invars
    ]
    assert ((32, 32), "float16") in found
    assert all(dtype == "float32" for shape, dtype in found if shape != (32, 32)), found


def test_explain_tells() -> None:
    loss, weights, batch = placed("partly by hand")
    seen = duotone.explain(
        jax.grad(loss), weights, batch, dtype="float16", policy=policy("float16")
    )
    said = {
        o.operation
        for o in seen.operations
        if ("reduce_dtype",) in {r[:1] for r in o.optimizations}
    }
    assert "psum_invariant" in said
    assert "reduce_dtype" in str(seen)
    assert "adds up gradients over devices in float16" in policy("float16").describe()


def test_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert policy(jnp.bfloat16) == policy("bf16") == policy("bfloat16")
    for wrong in ("int8", "float64", 16, object(), ["float32"], ""):
        with pytest.raises(PolicyError, match=r"reduce_dtype=.*takes 'float32', 'float16'"):
            policy(wrong)
    monkeypatch.setenv("DUOTONE_REDUCE_DTYPE", "float16")
    assert duotone.Policy().merged_with_environment().reduce_dtype == "float16"
    assert policy("float32").merged_with_environment().reduce_dtype == "float32"
    monkeypatch.setenv("DUOTONE_REDUCE_DTYPE", "int8")
    with pytest.raises(EnvironmentVariableError, match="DUOTONE_REDUCE_DTYPE is 'int8'"):
        duotone.Policy().merged_with_environment()


def test_the_other_half_type_is_refused() -> None:
    step = duotone.autocast(lambda w: w @ w, dtype="float16", policy=policy("bfloat16"))
    with pytest.raises(PolicyError, match="'bfloat16', and this program is painted in float16"):
        step(jnp.ones((8, 8)))
    as_advised = duotone.autocast(lambda w: w @ w, dtype="bfloat16", policy=policy("bfloat16"))
    as_advised(jnp.ones((8, 8)))


def test_a_file(tmp_path: Any) -> None:
    (tmp_path / "policy.toml").write_text('reduce_dtype = "bf16"\n')
    assert duotone.Policy.from_file(tmp_path / "policy.toml").reduce_dtype == "bfloat16"
