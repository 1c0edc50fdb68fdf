"""Results lie where the float32 program puts them, and nothing more travels, in every form."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import duotone
from duotone.devices import AssumedDevice, assuming
from tests.devices.programs import CASES, Case
from tests.jaxpr.programs import named

HALF = "float16"
POLICY = duotone.Policy(ignore_performance=True)
FORMS = ("autocast(step)", "value_and_grad(autocast(f))", "duotone.value_and_grad", "optax")
QUICK = ("pipeline", "experts", "explicit, automatic inside", "explicit, attention")


def steps(loss: Any) -> dict[str, Any]:
    """A step of gradient descent as it is written, and in each form."""

    def by(value_and_grad: Any) -> Any:
        def step(weights: Any, batch: Any) -> Any:
            value, gradient = value_and_grad(weights, batch)
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), value

        return step

    def optimized(weights: Any, batch: Any) -> Any:
        tx: Any = duotone.enable_mixed_precision_graph_rewrite(optax.sgd(0.1), dtype=HALF)
        done = tx.minimize(loss, weights, tx.init(weights), batch)
        return done.params, done.loss

    plain = by(jax.value_and_grad(loss))
    inner = duotone.autocast(loss, dtype=HALF, policy=POLICY)
    return {
        "float32": plain,
        FORMS[0]: duotone.autocast(plain, dtype=HALF, policy=POLICY),
        FORMS[1]: by(jax.value_and_grad(inner)),
        FORMS[2]: by(duotone.value_and_grad(loss, dtype=HALF, policy=POLICY)),
        FORMS[3]: optimized,
    }


def within(case: Case, mesh: Any) -> Any:
    return jax.set_mesh(mesh) if case.explicit else contextlib.nullcontext()


def travelling(step: Any, *args: Any) -> Counter[str]:
    """Bytes that a device sends, by kind."""
    found: Counter[str] = Counter()
    for collective in duotone.compile_for(step, *args, target="cpu").collectives:
        found[collective.kind] += collective.total_bytes
    return found


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_as_in_float32(name: str) -> None:
    case = CASES[name]
    mesh = case.mesh()
    with within(case, mesh):
        loss, weights, batch = case.placed(mesh)
        plain, *rewritten = steps(loss).items()
        want = jax.jit(plain[1])(weights, batch)
        sent = travelling(plain[1], weights, batch)
        for form, step in rewritten:
            got = jax.jit(step)(weights, batch)
            for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                assert g.sharding.is_equivalent_to(w.sharding, g.ndim), (form, g.sharding)
                assert jax.typeof(g) == jax.typeof(w), form
                np.testing.assert_allclose(g, w, atol=5e-3, err_msg=form)
            for kind, size in travelling(step, weights, batch).items():
                # A few bytes more: the optimizer's one decision.
                assert size <= sent[kind] + 16, (form, kind, size, sent[kind])


def test_explicit_axes_keep_the_optimizations() -> None:
    """The forward and the backward pass are rewritten together, in forms of the GPU."""
    case = CASES["explicit, attention"]
    mesh = case.mesh()
    with jax.set_mesh(mesh), assuming(AssumedDevice("h200", "cuda", "9.0")):
        loss, weights, batch = case.placed(mesh)
        want = jax.jit(jax.grad(loss))(weights, batch)
        got = jax.jit(jax.grad(duotone.autocast(loss, dtype=HALF)))(weights, batch)
        seen = duotone.explain(jax.grad(loss), weights, batch, dtype=HALF)
        found = {name for o in seen.operations for name, *_ in o.optimizations}
        assert {"one_hot", "recompute"} <= found
        program = jax.make_jaxpr(jax.grad(duotone.autocast(loss, dtype=HALF)))(weights, batch)
    assert "forward" in {eqn.params["name"] for eqn in named(program, "jit")}
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jax.typeof(g) == jax.typeof(w)
        np.testing.assert_allclose(g, w, atol=5e-3)


@pytest.mark.parametrize("check", [True, False])
def test_gradients_are_summed_in_float32_inside_shard_map(check: bool) -> None:
    mesh = CASES["data parallel"].mesh()
    weights, x = jnp.full((16, 16), 0.1), jnp.linspace(-1.0, 1.0, 512).reshape(32, 16)

    def gradients(loss: Any) -> Any:
        def local(w: Any, x: Any) -> Any:
            gradient = jax.grad(loss)(w, x)
            return gradient if check else jax.lax.psum(gradient, "data")

        return jax.shard_map(
            local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=check
        )

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w) @ w - 0.5) ** 2)

    half = gradients(duotone.autocast(loss, dtype=HALF, policy=POLICY))
    program = jax.make_jaxpr(half)(weights, x)
    sums = [*named(program, "psum_invariant"), *named(program, "psum")]
    assert {str(eqn.invars[0].aval.dtype) for eqn in sums} == {"float32"}
    np.testing.assert_allclose(half(weights, x), gradients(loss)(weights, x), atol=5e-3)


def test_mapped_tangents_over_explicit_axes() -> None:
    """``vmap`` adds an axis before those that are sharded."""
    mesh = CASES["explicit, data parallel"].mesh()
    with jax.set_mesh(mesh):
        x = jax.device_put(
            jnp.linspace(-1.0, 1.0, 512).reshape(32, 16), NamedSharding(mesh, P("data"))
        )
        w, tangents = jnp.full((16, 16), 0.1), jnp.linspace(0.0, 1.0, 1024).reshape(4, 16, 16)

        def mapped(f: Any) -> Any:
            along = lambda t: jax.jvp(lambda w: f(w, x), (w,), (t,))[1]  # noqa: E731
            return jax.jit(jax.vmap(along))(tangents)

        def f(w: Any, x: Any) -> Any:
            return jnp.tanh(x @ w) @ w

        got, want = mapped(duotone.autocast(f, dtype=HALF, policy=POLICY)), mapped(f)
        assert jax.typeof(got) == jax.typeof(want)
        np.testing.assert_allclose(got, want, rtol=5e-3, atol=5e-3)


def test_what_moves_by_hand_moves_in_half() -> None:
    for name, kind in (("experts", "all-to-all"), ("pipeline", "collective-permute")):
        case = CASES[name]
        mesh = case.mesh()
        loss, weights, batch = case.placed(mesh)
        forms = steps(loss)
        full = travelling(forms["float32"], weights, batch)[kind]
        for form in FORMS[:2]:
            assert 0 < travelling(forms[form], weights, batch)[kind] <= 0.55 * full, (name, form)


def test_a_result_that_moved_would_be_seen() -> None:
    """The comparison of the tests above can fail."""
    mesh = CASES["data parallel"].mesh()
    there = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data")))
    everywhere = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P()))
    assert not there.sharding.is_equivalent_to(everywhere.sharding, 2)


def test_a_flax_model_keeps_its_shardings() -> None:
    """The one line around NNX's optimizer."""
    nnx = pytest.importorskip("flax.nnx")
    mesh = CASES["data parallel"].mesh()
    place = NamedSharding(mesh, P("data"))

    def trained(wrap: Any) -> Any:
        model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
        model.kernel.set_value(jax.device_put(model.kernel.get_value(), place))
        optimizer = wrap(model)
        x = jax.device_put(jnp.ones((32, 16)), place)

        @nnx.jit
        def step(model: Any, optimizer: Any, x: Any) -> Any:
            loss_fn = lambda model: jnp.mean((model(x) - 0.5) ** 2)  # noqa: E731
            if hasattr(optimizer, "minimize"):
                return optimizer.minimize(loss_fn, model)
            loss, gradient = nnx.value_and_grad(loss_fn)(model)
            optimizer.update(model, gradient)
            return loss

        step(model, optimizer, x)
        return model.kernel.get_value()

    want = trained(lambda model: nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param))
    tx: Any = duotone.enable_mixed_precision_graph_rewrite(optax.sgd(0.1), dtype=HALF)
    got = trained(lambda model: duotone.nnx.Optimizer(model, tx, wrt=nnx.Param))
    assert got.sharding.is_equivalent_to(want.sharding, 2)
    np.testing.assert_allclose(got, want, atol=2e-3)
