"""The traps of rewriting jaxprs: what a naive rewrite loses, gets stale or makes wrong.

Each test is one of them, with a program in which the trap would spring.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.compute_on import compute_on
from jax.sharding import AxisType

from duotone import _jax
from tests.catalogue.evaluate import jaxprs_in
from tests.traps import HALVES, W, X, close, dtypes_of, equations, mixed, rewritten

# What rebinding may lose


def test_name_scopes_survive_on_half_operations():
    def f(x: Any) -> Any:
        with jax.named_scope("block"):
            return jax.jit(lambda x: jnp.tanh(x @ W) @ W)(x) @ W

    (tanh,) = equations(rewritten(f, X), "tanh")
    assert set(dtypes_of(tanh)) == {"float16"}
    assert "block" in str(tanh.source_info.name_stack)


def test_the_source_line_of_half_operations_is_the_users():
    (first, _) = equations(rewritten(lambda x: (x @ W) @ W, X), "dot_general")
    assert "test_traps.py" in _jax.source_line(first)


def test_compute_on_survives():
    # A context manager, which marks equations, in JAX 0.10; a nested program of its own later.
    def part(x: Any) -> Any:
        return jnp.tanh(x @ W)

    def f(x: Any) -> Any:
        if "out_memory_spaces" not in inspect.signature(compute_on).parameters:
            with compute_on("device_host"):
                y = part(x)
        else:
            options = {"compute_type": "device_host", "out_memory_spaces": jax.memory.Space.Device}
            y = functools.partial(compute_on, **options)(part)(x)
        return y @ W

    def places(jaxpr: Any) -> list[str]:
        eqns = [e for inner in jaxprs_in(jaxpr) for e in _jax.open_jaxpr(inner).eqns]
        marks = [(e.params.get("compute_type") or e.ctx.compute_type, e) for e in eqns]
        names = ("tanh", "compute_on", "compute_on2")
        return [str(m) for m, e in marks if m and e.primitive.name in names]

    assert set(places(rewritten(f, X))) == {"device_host"}
    assert places(rewritten(f, X)) == places(jax.make_jaxpr(f)(X))


def test_xla_metadata_survives():
    from jax.experimental.xla_metadata import set_xla_metadata

    def f(x: Any) -> Any:
        with set_xla_metadata(part="attention"):
            y = jnp.tanh(x @ W)
        return y @ W

    (tanh,) = equations(rewritten(f, X), "tanh")
    (original,) = equations(jax.make_jaxpr(f)(X), "tanh")
    assert "float16" in dtypes_of(tanh)
    assert tanh.ctx.xla_metadata == original.ctx.xla_metadata


def test_weak_types_survive():
    def f(x: Any) -> Any:
        return x @ W, jnp.asarray(1.0) * 2, lax.scan(lambda c, _: (c * 2.0, None), 1.0, None, 3)[0]

    before, after = jax.make_jaxpr(f)(X), rewritten(f, X)
    assert [a.weak_type for a in after.out_avals] == [a.weak_type for a in before.out_avals]
    assert [a.weak_type for a in after.out_avals] == [False, True, True]


def test_ordered_effects_keep_their_order_and_number():
    seen: list[float] = []

    def f(x: Any) -> Any:
        y = x @ W
        jax.debug.callback(lambda v: seen.append(float(v)), y[0, 0], ordered=True)
        z = jnp.tanh(y) @ W
        jax.debug.callback(lambda v: seen.append(float(v)), z[0, 0] + 100, ordered=True)
        return lax.fori_loop(
            0, 2, lambda i, c: (jax.debug.callback(seen.append, i, ordered=True), c @ W)[1], z
        )

    f(X)
    jax.effects_barrier()
    wanted, seen[:] = list(seen), []
    mixed(f)(X)
    jax.effects_barrier()
    assert len(seen) == len(wanted) == 4
    assert np.allclose(np.asarray(seen, float), np.asarray(wanted, float), atol=0.1)


def test_a_donated_argument_is_donated():
    step = jax.jit(lambda w, x: (w - 0.1 * x.T @ (x @ w), 0), donate_argnums=0)
    w = jnp.asarray(W)
    mixed(step)(w, jnp.asarray(X))
    assert w.is_deleted()


def test_an_argument_that_is_not_donated_is_not():
    w = jnp.asarray(W)
    mixed(jax.jit(lambda w, x: x @ w))(w, jnp.asarray(X))
    assert not w.is_deleted()


@pytest.mark.parametrize("half", HALVES)
def test_rewritten_programs_pass_jax_enable_checks(half: str):
    def f(x: Any) -> Any:
        y = jax.nn.silu(x @ W)
        y = lax.cond(y[0, 0] > 0, lambda y: y @ W, lambda y: y, y)
        return lax.scan(lambda c, _: (jnp.tanh(c @ W), c), y, None, 2)

    with jax.enable_checks(True):
        close(mixed(f, half)(X), f(X), half, 16)
        jax.grad(lambda x: jnp.sum(mixed(f, half)(x)[0]))(X)


# Nested programs: none may be stale


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("jit", lambda x: jax.jit(lambda y: jnp.tanh(y @ W))(x @ W) @ W),
        ("cond", lambda x: lax.cond(x[0, 0] > 9, lambda y: y @ W, lambda y: y, x @ W) @ W),
        ("scan", lambda x: lax.scan(lambda c, _: (jnp.tanh(c @ W), None), x @ W, None, 3)[0] @ W),
        (
            "while",
            lambda x: (
                lax.while_loop(lambda c: c[0, 0] < 2, lambda c: jax.nn.relu(c @ W) + 1, x @ W) @ W
            ),
        ),
        ("remat", lambda x: jax.checkpoint(lambda y: jnp.tanh(y @ W))(x @ W) @ W),
    ],
)
def test_a_nested_program_is_rewritten_with_its_operands(name: str, function: Any, half: str):
    # Bound with new operand types, the old program would fail at lowering or at run time only.
    jaxpr = rewritten(function, X, half=half)
    assert any(half in dtypes_of(eqn) for eqn in equations(jaxpr, "dot_general")), name
    close(jax.jit(mixed(function, half))(X), function(X), half, 16)


def test_captured_constants_are_read_on_every_version():
    # From JAX 0.11 on an open jaxpr is a closed one too: constants must not be looked for by type.
    table = jnp.asarray(W)

    def f(x: Any) -> Any:
        return jax.jit(lambda y: (y @ table) @ jnp.asarray(W * 2))(x)

    close(mixed(f)(X), f(X))


def test_scan_layout_is_read_on_every_version():
    def f(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            a, b = carry
            return (a @ W + row, b + 1), (jnp.sum(a), row * b)

        return lax.scan(body, (x, jnp.float32(0)), x)

    close(mixed(f)(X), f(X), ulp=16)


@pytest.mark.parametrize("inline", [True, False])
def test_inline_of_jit_may_be_a_flag_or_an_enum(inline: bool):
    def f(x: Any) -> Any:
        return jax.jit(lambda y: y @ W, inline=inline)(x) @ W

    close(mixed(f)(X), f(X))


def test_a_recomputed_region_stays_one_when_differentiated():
    # jax.checkpoint around the rewritten region would lose ``differentiated=True``.
    def block(x: Any) -> Any:
        return jnp.sum(jnp.sin(jnp.tanh(x @ W) @ W))

    step = jax.grad(jax.checkpoint(block))
    before, after = jax.make_jaxpr(step)(X), rewritten(step, X)
    flags = [
        [(e.params["differentiated"], e.params["prevent_cse"]) for e in equations(j, "remat2")]
        or [
            (e.params["differentiated"], e.params["prevent_cse"])
            for e in equations(j, "checkpoint")
        ]
        for j in (before, after)
    ]
    assert flags[0] == flags[1]
    assert flags[0]
    close(mixed(step)(X), step(X), ulp=32)


def test_a_recomputed_region_that_is_full_takes_its_operand_in_half():
    # Cast outside of it, what is kept for the backward pass would be float32.
    step = jax.grad(jax.checkpoint(lambda h: jnp.sum(jnp.exp(jnp.sin(h)))))
    f = lambda x: jax.checkpoint(lambda h: jnp.sum(jnp.exp(jnp.sin(h))))(x @ W @ W)  # noqa: E731
    for program in (rewritten(f, X), rewritten(lambda x: step(x @ W @ W), X)):
        (region,) = [e for n in ("remat2", "checkpoint") for e in equations(program, n)]
        assert "float16" in {atom.aval.dtype.name for atom in region.invars}
    close(mixed(f)(X), f(X), ulp=32)


def test_the_policy_of_a_recomputed_region_is_kept():
    policy = jax.checkpoint_policies.save_only_these_names("kept")
    block = jax.checkpoint(lambda x: jnp.sin(x @ W) @ W, policy=policy)
    regions = [e for name in ("remat2", "checkpoint") for e in equations(rewritten(block, X), name)]
    assert [e.params["policy"] for e in regions] == [policy]


def test_shard_map_is_rebuilt_over_its_axes():
    mesh = jax.make_mesh(
        (1, 1), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:1]
    )
    spec = jax.sharding.PartitionSpec("a")

    def f(x: Any) -> Any:
        inner = jax.shard_map(
            lambda y: lax.psum(jnp.tanh(y @ W), "a") @ W,
            mesh=mesh,
            in_specs=spec,
            out_specs=jax.sharding.PartitionSpec(),
            axis_names={"a"},
        )
        return inner(x @ W)

    original, again = (
        equations(j, "shard_map")[0] for j in (jax.make_jaxpr(f)(X), rewritten(f, X))
    )
    for name in ("manual_axes", "newly_manual_axes", "check_vma"):
        assert original.params.get(name) == again.params.get(name)
    close(jax.jit(mixed(f))(X), jax.jit(f)(X))


@pytest.mark.parametrize("half", HALVES)
def test_a_custom_jvp_is_not_inlined(half: str):
    # The naive derivative of this norm is nan at 0; the rule's is 0.
    @jax.custom_jvp
    def norm(x: Any) -> Any:
        return jnp.sqrt(jnp.sum(x * x, -1, keepdims=True))

    @norm.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        y = norm(x)
        return y, jnp.sum(jnp.where(y > 0, x / jnp.where(y > 0, y, 1), 0) * t, -1, keepdims=True)

    def f(x: Any) -> Any:
        return jnp.sum((norm(x @ W) * x) @ W)

    zeros = np.zeros((12, 8), np.float32)
    assert np.isfinite(jax.grad(mixed(f, half))(zeros)).all()
    assert np.isfinite(mixed(jax.grad(f), half)(zeros)).all()


@pytest.mark.parametrize("half", HALVES)
def test_a_custom_vjp_keeps_its_rule(half: str):
    @jax.custom_vjp
    def dense(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    dense.defvjp(lambda x, w: (dense(x, w), (x, w)), lambda r, g: (7 * g @ r[1].T, r[0].T @ g))

    def f(x: Any, w: Any) -> Any:
        return jnp.sum(dense(x @ w, w) @ w)

    for gradient in (jax.grad(mixed(f, half), (0, 1)), mixed(jax.grad(f, (0, 1)), half)):
        close(gradient(X, W), jax.grad(f, (0, 1))(X, W), half, 16)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("rule", ["custom_vjp", "custom_jvp"])
def test_a_rule_on_the_identity_is_kept(rule: str, half: str):
    # Its result *is* its operand: reading the operand instead drops the rule without a trace.
    if rule == "custom_vjp":
        marked: Any = jax.custom_vjp(lambda x: x)
        marked.defvjp(lambda x: (x, None), lambda _, g: (-g,))
    else:
        marked = jax.custom_jvp(lambda x: x)
        marked.defjvp(lambda p, t: (p[0], -t[0]))

    def f(x: Any) -> Any:
        y = x @ W
        return jnp.sum((marked(y) @ W) * 2 + y @ W)

    for gradient in (jax.grad(mixed(f, half)), mixed(jax.grad(f), half)):
        close(gradient(X), jax.grad(f)(X), half)


@pytest.mark.parametrize("half", HALVES)
def test_a_custom_vjp_may_capture_arrays(half: str):
    # JAX hands what it captured over as leading operands that have no derivative.
    captured = jnp.asarray(W)

    @jax.custom_vjp
    def dense(x: Any) -> Any:
        return x @ captured

    dense.defvjp(lambda x: (x @ captured, None), lambda _, g: (g @ captured.T,))

    def f(x: Any) -> Any:
        return jnp.sum(dense(jnp.tanh(x @ W)) @ W)

    close(jax.grad(mixed(f, half))(X), jax.grad(f)(X), half, 16)
    close(mixed(jax.grad(f), half)(X), jax.grad(f)(X), half, 16)


def test_a_composite_is_a_float32_boundary():
    @jax.jit
    def f(x: Any) -> Any:
        return lax.composite(lambda y: jnp.sin(y @ W), name="my.block")(x @ W) @ W

    (eqn,) = equations(rewritten(f, X), "composite")
    assert set(dtypes_of(eqn)) == {"float32"}
    close(jax.jit(mixed(f))(X), f(X))


def test_a_custom_vmap_keeps_its_rule():
    @jax.custom_batching.custom_vmap
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    @sine.def_vmap
    def rule(size: int, batched: Any, x: Any) -> Any:
        del size
        return jnp.cos(x), batched[0]

    def f(x: Any) -> Any:
        return jax.vmap(mixed(lambda r: sine(r @ W) @ W))(x)

    close(f(X), jnp.cos(X @ W) @ W)
