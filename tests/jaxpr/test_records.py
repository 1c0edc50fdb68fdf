"""``explain`` of functions that hold programs which duotone has rewritten already."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import duotone
import duotone.nnx
from duotone import Explanation, explain
from duotone.precision.rules import Rule

W = {"a": jnp.ones((8, 16)), "b": jnp.ones((16, 8))}
X = jnp.ones((8, 8))


def loss(w: Any, x: Any) -> Any:
    with jax.named_scope("model"):
        return jnp.sum(jax.nn.gelu(x @ w["a"]) @ w["b"])


def inside(seen: Explanation) -> list[Any]:
    return [operation for operation in seen.operations if operation.rewritten]


def as_alone(operations: Any) -> list[Any]:
    """Operations without what depends on the program around."""
    return [
        dataclasses.replace(o, index=0, reads=(), rewritten=False, given=(), leaves=())
        for o in operations
    ]


@pytest.fixture(params=["float16", "bfloat16"])
def half(request: pytest.FixtureRequest) -> str:
    return request.param


def check_whole(seen: Explanation) -> None:
    """Every record must fit together, whatever it was put together of."""
    assert [o.index for o in seen.operations] == list(range(len(seen.operations)))
    for operation in seen.operations:
        assert all(0 <= read < len(seen.operations) for read in operation.reads)
        assert operation.reason.startswith(Rule(operation.rule).words)
    for cast in seen.casts:
        assert all(0 <= o < len(seen.operations) for o in (*cast.sources, *cast.targets))
    assert seen.summary.rewritten == len(inside(seen))
    assert Explanation.from_json(seen.to_json()) == seen


@pytest.mark.parametrize(
    "around",
    [
        lambda f: lambda w, x: f(w, x),
        lambda f: jax.jit(lambda w, x: f(w, x)),
        lambda f: jax.jit(lambda w, x: jax.jit(lambda x: f(w, x))(x)),
        lambda f: lambda w, x: jax.jit(f)(w, x),
        lambda f: jax.checkpoint(lambda w, x: f(w, x)),
    ],
    ids=["called", "jit", "jit in jit", "jit of it", "checkpoint"],
)
def test_it_shows_what_is_inside_as_it_was_painted(around: Any, half: str) -> None:
    f = duotone.autocast(jax.value_and_grad(loss), dtype=half)
    alone = explain(f, W, X)
    seen = explain(around(f), W, X)
    check_whole(seen)
    assert as_alone(inside(seen)) == as_alone(alone.operations)
    assert seen.summary.operations_half == alone.summary.operations_half > 0
    assert len(seen.casts) == len(alone.casts)
    assert seen.summary.half_dtype == half


def test_a_program_that_ran_before_is_seen_as_well(half: str) -> None:
    """Catches: a trace read from a cache, of which nothing is collected."""
    f = duotone.autocast(loss, dtype=half)
    step = jax.jit(lambda w, x: f(w, x) + f(w, x))
    step(W, X)
    once = explain(f, W, X)
    for _ in range(2):
        seen = explain(step, W, X)
        check_whole(seen)
        assert as_alone(inside(seen)) == 2 * as_alone(once.operations)
    text = str(jax.make_jaxpr(step)(W, X))
    assert "name=duotone_autocast\n" in text.replace(" ", "\n"), "names are for explain alone"


def test_a_scan_runs_it_many_times(half: str) -> None:
    f = duotone.autocast(loss, dtype=half)
    alone = explain(f, W, X)

    def steps(w: Any, xs: Any) -> Any:
        return jax.lax.scan(lambda total, x: (total + f(w, x), None), 0.0, xs)[0]

    seen = explain(steps, W, jnp.ones((5, 8, 8)))
    check_whole(seen)
    assert [o.runs for o in inside(seen)] == [5] * len(alone.operations)
    for mine, theirs in zip(inside(seen), alone.operations, strict=True):
        assert (mine.operation, mine.paint, mine.rule) == (
            theirs.operation,
            theirs.paint,
            theirs.rule,
        )
        assert mine.flops == 5 * theirs.flops
    assert [cast.runs for cast in seen.casts] == [5] * len(alone.casts)


def dots(seen: Explanation) -> list[Any]:
    return [o for o in seen.operations if o.operation == "dot_general"]


def in_program(function: Callable[..., Any], *args: Any, half: str) -> tuple[int, int]:
    """Dots of half operands in the program that runs, and all dots."""

    def count(jaxpr: Any) -> tuple[int, int]:
        found, every = 0, 0
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in ("dot_general", "duotone_dot"):
                every += 1
                of_half = eqn.primitive.name == "duotone_dot"
                of_half |= all(v.aval.dtype == half for v in eqn.invars)
                found += of_half
            for param in eqn.params.values():
                inner = getattr(param, "jaxpr", param)
                if hasattr(inner, "eqns"):
                    one, two = count(inner)
                    found, every = found + one, every + two
        return found, every

    return count(jax.make_jaxpr(function)(*args).jaxpr)


@pytest.mark.parametrize(
    ("around", "batched"),
    [
        (lambda f: jax.grad(lambda w, x: f(w, x)), False),
        (lambda f: jax.jit(jax.value_and_grad(f)), False),
        (lambda f: jax.vmap(f, (None, 0)), True),
        (lambda f: jax.grad(lambda w, x: jnp.sum(jax.vmap(f, (None, 0))(w, x))), True),
        (
            lambda f: jax.grad(
                lambda w, x: jax.lax.scan(lambda c, y: (c + f(w, y), None), 0.0, x)[0]
            ),
            True,
        ),
    ],
    ids=["grad", "jit of value_and_grad", "vmap", "grad of vmap", "grad of scan"],
)
def test_what_a_transformation_made_is_read_from_its_types(
    around: Any, batched: bool, half: str
) -> None:
    f = duotone.autocast(loss, dtype=half)
    function, x = around(f), X[None] if batched else X
    seen = explain(function, W, x)
    check_whole(seen)
    of_half = [o for o in dots(seen) if o.paint == "half"]
    assert (len(of_half), len(dots(seen))) == in_program(function, W, x, half=half)
    assert len(of_half) == len(dots(seen)) >= 2
    assert {o.rule for o in of_half} <= {"allow", "wide", "rewritten"}
    assert all(o.scope == "model" and "test_records.py" in o.source for o in dots(seen))
    assert all(o.flops == 2 * 8 * 8 * 16 for o in dots(seen))
    assert not any(o.operation.startswith("duotone") for o in seen.operations)
    assert any(cast.to == half for cast in seen.casts)


def test_a_derivative_is_not_taken_for_the_function() -> None:
    """Catches: ``jax.grad`` takes over the attributes of what it wraps."""
    f = duotone.autocast(loss, dtype="float16")
    assert len(dots(explain(f, W, X))) == len(dots(explain(jax.jit(f), W, X))) == 2
    assert len(dots(explain(jax.grad(f), W, X))) == 5
    measured = duotone.calibrate(jax.jit(f), [(W, X)])
    assert measured == duotone.calibrate(f, [(W, X)])


def test_nested_ones_are_seen_where_they_stand(half: str) -> None:
    inner = duotone.autocast(lambda w, x: jnp.exp(x @ w["a"]), dtype="float16")
    outer = duotone.autocast(lambda w, x: inner(w, x) @ w["b"], dtype=half)

    def layers(w: Any, x: Any) -> Any:
        with jax.named_scope("layers"):
            return outer(w, outer(w, x))

    seen = explain(layers, W, X)
    check_whole(seen)
    names = ["dot_general", "exp", "dot_general"]
    assert [o.operation for o in inside(seen)] == 2 * names
    assert [o.paint for o in inside(seen)] == 2 * ["half", "full", "half"]
    assert {o.scope for o in inside(seen)} == {"layers"}
    first, exp, last, again = seen.operations[:4]
    assert (exp.reads, last.reads) == ((first.index,), (exp.index,))
    assert again.reads == (last.index,)


def test_the_dtype_inside_is_the_one_of_the_record() -> None:
    f = duotone.autocast(loss, dtype="float16")
    assert explain(lambda w, x: 2 * f(w, x), W, X).summary.half_dtype == "float16"
    given = explain(lambda w, x: 2 * f(w, x), W, X, dtype="bfloat16")
    assert given.summary.half_dtype == "bfloat16"
    assert {cast.to for cast in given.casts} == {"float16", "float32"}


def test_it_says_which_operations_run_as_shown() -> None:
    f = duotone.autocast(loss, dtype="float16")
    assert "in functions that duotone had already rewritten" in str(explain(lambda w: f(w, X), W))
    assert "already rewritten" not in str(explain(f, W, X))


def test_weights_that_never_change_are_seen_too() -> None:
    f = duotone.autocast(loss, dtype="float16", weights=W)
    seen = explain(lambda x: 2 * f(x), X)
    assert as_alone(inside(seen)) == as_alone(explain(f, X).operations)


def test_optax(half: str) -> None:
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    opt = duotone.enable_mixed_precision_graph_rewrite(tx, dtype=half)
    state = opt.init(W)

    @jax.jit
    def step(w: Any, state: Any, x: Any) -> Any:
        done = opt.minimize(loss, w, state, x)
        return done.params, done.state, done.loss

    step(W, state, X)
    seen = explain(step, W, state, X)
    check_whole(seen)
    assert seen.summary.allow_half == seen.summary.allow_total == 5
    assert {o.paint for o in dots(seen)} == {"half"}


def test_equinox(half: str) -> None:
    model = eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    opt = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3), dtype=half)

    def mean(params: Any, x: Any) -> Any:
        return jnp.mean(jax.vmap(eqx.combine(params, static))(x) ** 2)

    @eqx.filter_jit
    def step(params: Any, state: Any, x: Any) -> Any:
        done = opt.minimize(mean, params, state, x)
        return done.params, done.state, done.loss

    seen = explain(step, params, opt.init(params), X)
    check_whole(seen)
    assert seen.summary.allow_half == seen.summary.allow_total == 8


def test_nnx(half: str) -> None:
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(8, 16, rngs=rngs), nnx.gelu, nnx.Linear(16, 8, rngs=rngs))
    optimizer = duotone.nnx.Optimizer(model, optax.adam(1e-3), dtype=half)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        return optimizer.minimize(lambda model, x: jnp.mean(model(x) ** 2), model, x)

    seen = duotone.nnx.explain(step, model, optimizer, X)
    check_whole(seen)
    assert seen.summary.allow_half == seen.summary.allow_total == 5
