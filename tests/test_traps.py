"""The traps of rewriting jaxprs: what a naive rewrite loses, gets stale or makes wrong.

Each test is one of them, with a program in which the trap would spring.
"""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.compute_on import compute_on

import duotone
from duotone import _jax
from tests.catalogue.evaluate import jaxprs_in, primitives_in

FORCED = duotone.Policy(ignore_performance=True)
HALVES = ["float16", "bfloat16"]
W = (np.eye(4) + np.arange(16).reshape(4, 4) / 64).astype(np.float32)
X = (np.arange(12).reshape(3, 4) / 8 - 0.5).astype(np.float32)


def mixed(function: Any, half: str = "float16", **edits: Any) -> Any:
    return duotone.autocast(function, dtype=half, policy=FORCED.replace(**edits))


def rewritten(function: Any, *args: Any, half: str = "float16", **edits: Any) -> Any:
    """The rewritten jaxpr, checked."""
    jaxpr = jax.make_jaxpr(mixed(function, half, **edits))(*args)
    _jax.check_jaxpr(_jax.open_jaxpr(jaxpr))
    return jaxpr


def equations(jaxpr: Any, name: str) -> list[Any]:
    return [
        eqn
        for inner in jaxprs_in(jaxpr)
        for eqn in _jax.open_jaxpr(inner).eqns
        if eqn.primitive.name == name
    ]


def dtypes_of(eqn: Any) -> list[str]:
    return [str(a.aval.dtype) for a in (*eqn.invars, *eqn.outvars)]


def close(got: Any, wanted: Any, half: str = "float16", ulp: float = 8.0) -> None:
    epsilon = float(jnp.finfo(half).eps)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        limit = ulp * epsilon * max(float(jnp.max(jnp.abs(w))), 2.0**-10)
        np.testing.assert_allclose(g, w, rtol=0, atol=limit)


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
    def f(x: Any) -> Any:
        with compute_on("device_host"):
            y = jnp.tanh(x @ W)
        return y @ W

    def contexts(jaxpr: Any) -> list[str]:
        return [str(e.ctx.compute_type) for e in equations(jaxpr, "tanh")]

    assert contexts(rewritten(f, X)) == contexts(jax.make_jaxpr(f)(X)) == ["device_host"]


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
        return lax.fori_loop(0, 2, lambda i, c: (jax.debug.callback(seen.append, i, ordered=True), c @ W)[1], z)

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
        ("scan", lambda x: lax.scan(lambda c, _: (c @ W, None), x @ W, None, 3)[0] @ W),
        ("while", lambda x: lax.while_loop(lambda c: c[0, 0] < 2, lambda c: c @ W + 1, x @ W) @ W),
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
        or [(e.params["differentiated"], e.params["prevent_cse"]) for e in equations(j, "checkpoint")]
        for j in (before, after)
    ]
    assert flags[0] == flags[1]
    assert flags[0]
    close(mixed(step)(X), step(X), ulp=32)


def test_the_policy_of_a_recomputed_region_is_kept():
    policy = jax.checkpoint_policies.save_only_these_names("kept")
    block = jax.checkpoint(lambda x: jnp.sin(x @ W) @ W, policy=policy)
    regions = [
        e for name in ("remat2", "checkpoint") for e in equations(rewritten(block, X), name)
    ]
    assert [e.params["policy"] for e in regions] == [policy]


def test_shard_map_is_made_again_over_its_axes():
    mesh = jax.make_mesh((1, 1), ("a", "b"), devices=jax.devices()[:1])
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

    zeros = np.zeros((3, 4), np.float32)
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


# Programs that some primitives carry for one dtype


@pytest.mark.parametrize("half", HALVES)
def test_scatter_is_made_again_for_half(half: str):
    for name in ("set", "add", "multiply", "min", "max", "subtract"):

        def f(x: Any, name: str = name) -> Any:
            y = x @ W
            update = getattr(y.at[np.array([0, 2])], name)
            return update(y[1:]) @ W

        everything = {"allow_add": primitives_in(jax.make_jaxpr(f)(X)) & _SCATTERS}
        close(jax.jit(mixed(f, half, **everything))(X), jax.jit(f)(X), half)


_SCATTERS = {"scatter", *(f"scatter-{n}" for n in ("add", "mul", "min", "max", "sub"))} | {
    f"scatter_{n}" for n in ("add", "mul", "min", "max", "sub")
}


@pytest.mark.parametrize("half", HALVES)
def test_a_scatter_with_a_region_of_its_own_keeps_it(half: str):
    def f(x: Any) -> Any:
        return (x @ W).at[0].apply(jnp.tanh) @ W

    close(jax.jit(mixed(f, half))(X), jax.jit(f)(X), half)


def test_a_reduction_with_a_region_of_its_own_stays_float32():
    def f(x: Any) -> Any:
        return lax.reduce(x @ W, np.float32(0), lambda a, b: a * 0.5 + b * 0.5, (0,)) @ W

    (eqn,) = equations(rewritten(f, X), "reduce")
    assert set(dtypes_of(eqn)) == {"float32"}
    close(mixed(f)(X), f(X))


# Operations that are left alone


def test_custom_root_shows_up_as_custom_jvp_and_keeps_its_derivative():
    def root(x: Any) -> Any:
        def solve(g: Any, start: Any) -> Any:
            return lax.fori_loop(0, 20, lambda _, y: 0.5 * (y + x / y), start)

        return lax.custom_root(
            lambda y: y * y - x, jnp.ones_like(x), solve, lambda g, y: y / g(jnp.ones_like(y))
        )

    def f(x: Any) -> Any:
        return jnp.sum(root(jnp.abs(x @ W) + 1) @ W)

    assert "custom_jvp_call" in primitives_in(jax.make_jaxpr(f)(X))
    close(jax.grad(mixed(f))(X), jax.grad(f)(X), ulp=16)
    close(mixed(jax.grad(f))(X), jax.grad(f)(X), ulp=16)


def test_an_unknown_primitive_is_left_alone_and_reported():
    def f(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((3, 4), np.float32)
        return jax.pure_callback(np.sin, shape, x @ W, vmap_method="sequential") @ W

    (eqn,) = equations(rewritten(f, X), "pure_callback")
    assert set(dtypes_of(eqn)) == {"float32"}
    assert duotone.explain(f, X).summary.unlisted == {"pure_callback": 1}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("cholesky", lambda y: lax.linalg.cholesky(y @ y.T + 9 * jnp.eye(3))),
        ("complex", lambda y: lax.real(lax.complex(y, y)) @ W),
        ("bitcast_convert_type", lambda y: lax.bitcast_convert_type(y, np.int32)),
    ],
)
def test_what_has_no_half_form_stays_float32_even_if_listed(name: str, function: Any):
    jaxpr = rewritten(lambda x: function(x @ W), X, allow_add={name})
    for eqn in equations(jaxpr, name):
        assert not {"float16", "bfloat16"} & set(dtypes_of(eqn))


# Parameters that bear dtypes


@pytest.mark.parametrize("half", HALVES)
def test_preferred_element_type_follows(half: str):
    def f(x: Any) -> Any:
        return jnp.dot(x, W, preferred_element_type=np.float32) @ W

    dots = equations(rewritten(f, X, half=half), "dot_general")
    (first,) = [eqn for eqn in dots if dtypes_of(eqn) == [half] * 3]
    assert str(first.params["preferred_element_type"]) == half


@pytest.mark.parametrize("half", HALVES)
def test_new_dtype_follows(half: str):
    def f(x: Any, i: Any) -> Any:
        return ((x @ W) * i.astype(np.float32)) @ W

    ids = np.ones((3, 4), np.int8)
    conversions = equations(rewritten(f, X, ids, half=half), "convert_element_type")
    from_integer = [e for e in conversions if str(e.invars[0].aval.dtype) == "int8"]
    assert [str(e.params["new_dtype"]) for e in from_integer] == [half]


def test_a_dot_algorithm_is_kept():
    preset = lax.DotAlgorithmPreset.F32_F32_F32

    def f(x: Any) -> Any:
        return jnp.dot(x @ W, W, precision=preset)

    _, second = equations(rewritten(f, X), "dot_general")
    assert second.params["precision"] == preset
    assert set(dtypes_of(second)) == {"float32"}


def test_out_dtype_of_mul_follows():
    (eqn,) = equations(rewritten(lambda x: ((x @ W) * (x @ W)) @ W, X, half="bfloat16"), "mul")
    assert set(dtypes_of(eqn)) == {"bfloat16"}
    assert eqn.params.get("out_dtype") in (None, jnp.bfloat16)


# Constants


@pytest.mark.parametrize("mask", [-1e9, float(np.finfo(np.float32).min), -np.inf])
@pytest.mark.parametrize("half", HALVES)
def test_masks_stay_finite_or_infinite_as_they_were(mask: float, half: str):
    def attention(x: Any) -> Any:
        scores = jnp.where(jnp.tri(3, dtype=bool), (x @ W) @ x.T, mask)
        return jax.nn.softmax(scores) @ x

    def added(x: Any) -> Any:
        bias = jnp.where(jnp.tri(3, dtype=bool), 0.0, max(mask, -1e30))
        return jax.nn.softmax((x @ W) @ x.T + bias) @ x

    for f in (attention, added):
        close(mixed(f, half)(X), f(X), half, 16)
        gradient = jax.grad(lambda x, f=f: jnp.sum(mixed(f, half)(x)))(X)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("half", HALVES)
def test_an_epsilon_that_half_cannot_hold_does_not_become_zero(half: str):
    def f(x: Any) -> Any:
        y = x @ W
        return (y / (jnp.sqrt(jnp.sum(y * y, -1, keepdims=True)) + 1e-8)) @ W

    zeros = np.zeros((3, 4), np.float32)
    assert np.isfinite(mixed(f, half)(zeros)).all()
    close(mixed(f, half)(X), f(X), half)


# State


@pytest.mark.parametrize("half", HALVES)
def test_an_update_between_two_dots_is_computed_in_float32(half: str):
    # A GAN: the new discriminator feeds the generator's loss in the same step.
    def step(w: Any, g: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        new = w - 2.0**-13 * gradient
        return new, jax.grad(lambda g: jnp.mean((x @ g) @ new))(g)

    wanted, _ = step(W, W, X)
    got, _ = mixed(step, half)(W, W, X)
    moved = np.abs(np.asarray(wanted) - W).max()
    assert np.abs(np.asarray(got) - np.asarray(wanted)).max() <= 0.02 * moved


# Leaves


def test_leaves_that_are_no_arrays_are_static_and_returned_as_they_are():
    marker = object()

    def f(tree: Any, x: Any) -> Any:
        assert tree["n"] == 3
        assert tree["flag"] is True
        y = tree["activation"](x @ W) if tree["name"] == "tanh" else x
        return {"y": y, "n": tree["n"], "name": tree["name"], "f": tree["activation"], "m": marker}

    tree = {"n": 3, "flag": True, "name": "tanh", "activation": jnp.tanh, "none": None}
    out = mixed(f)(tree, X)
    assert out["n"] == 3
    assert type(out["n"]) is int
    assert out["name"] == "tanh"
    assert out["f"] is jnp.tanh
    assert out["m"] is marker


def test_a_python_scalar_stays_concrete_and_weakly_typed():
    def f(x: Any, count: int, scale: float) -> Any:
        for _ in range(count):
            x = (x @ W) * scale
        return x, scale

    out, scale = mixed(f)(X, 2, 0.5)
    assert type(scale) is float
    close(out, f(X, 2, 0.5)[0])


def test_many_values_of_a_python_number_are_reported_once(caplog: pytest.LogCaptureFixture):
    f = mixed(lambda x, scale: (x @ W) * scale)
    with caplog.at_level(logging.WARNING, "duotone"):
        for i in range(20):
            jax.eval_shape(lambda x, i=i: f(x, i / 7), X)
    assert sum("pass it as an array" in r.message for r in caplog.records) == 1
