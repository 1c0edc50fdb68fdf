"""The scale of exponentials recomputed: left out where it cancels, and the same numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.devices.table import TABLE
from duotone.graph.forms import WIDENED
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr import pipeline
from duotone.jaxpr.painted import PaintedProgram
from duotone.policy.policy import Policy
from duotone.precision.optimize import free_scales as scale
from duotone.precision.optimize import row_statistics as rows

KEYS = jax.random.split(jax.random.key(0), 3)
W = jax.random.normal(KEYS[0], (32, 32)) / 5
X = jax.random.normal(KEYS[1], (64, 32))
POLICY = Policy()
GPU = dataclasses.replace(TABLE["gpu"], dots=WIDENED)
"""What runs on the device at hand in place of a GPU, whose dots CPUs do not have."""
WITHOUT = Policy(optimizations_remove=("free_scales",))

Attention = Callable[[Any, Any], Any]


def logits(w: Any, x: Any) -> Any:
    return (x @ w) @ x.T / 4


def softmax(w: Any, x: Any) -> Any:
    return jax.nn.softmax(logits(w, x)) @ x


def parts(w: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """Exponentials, their sum, numbers after a dot of their quotient, and a later dot of it."""
    scores = logits(w, x)
    e = jnp.exp(scores - jax.lax.stop_gradient(scores.max(1, keepdims=True)))
    s = e.sum(1, keepdims=True)
    quotient = e / s
    y = quotient @ x
    return e, s, y @ x.T, jax.lax.dot_general(quotient, y, (((0,), (0,)), ((), ())))


def read_later(w: Any, x: Any) -> Any:
    """Exponentials over their sum, downstream of a dot: the factor cancels."""
    e, s, y, dot = parts(w, x)
    return y * e / s, dot


def squared(w: Any, x: Any) -> Any:
    e, s, y, dot = parts(w, x)
    return (y * e) * (y * e) / s**2, dot


def exponentials(w: Any, x: Any) -> Any:
    e, _, y, dot = parts(w, x)
    return y * e, dot


def sums(w: Any, x: Any) -> Any:
    e, s, y, dot = parts(w, x)
    return y * e / s + s, dot


def activation(w: Any, x: Any) -> Any:
    e, s, y, dot = parts(w, x)
    return y * e / s + jnp.tanh(y * s), dot


def added(w: Any, x: Any) -> Any:
    e, s, y, dot = parts(w, x)
    return (y + y * e) * e / s**2, dot


def twice(w: Any, x: Any) -> Any:
    """A softmax of a softmax."""
    return jax.nn.softmax(10 * jax.nn.softmax(logits(w, x))) @ x


def entropy(w: Any, x: Any) -> Any:
    scores = logits(w, x)
    shares = jax.nn.softmax(scores)
    return (shares @ x).sum(1) - (shares * jax.nn.log_softmax(scores)).sum(1)


def painted(
    function: Callable[..., Any], dtype: str = "bfloat16", policy: Policy = POLICY
) -> PaintedProgram:
    """As for a GPU."""
    jaxpr = jax.make_jaxpr(function)(W, X)
    return pipeline.paint_jaxpr(jaxpr, policy, HALF_TYPES[dtype], forms=GPU)


def run(function: Callable[..., Any], dtype: str = "bfloat16", policy: Policy = POLICY) -> Any:
    """The results of the program for a GPU, compiled for the device at hand."""
    return jax.jit(pipeline.rewriter_of(painted(function, dtype, policy)))(W, X)


def ones(function: Callable[..., Any], dtype: str = "bfloat16", **changes: Any) -> frozenset[int]:
    """The sums that count as 1 in a program in which one value is computed from its quotient."""
    policy = POLICY.replace(**changes)
    plan = painted(function, dtype, policy).optimizations.recompute
    (made,) = plan.products.values()
    assert not plan.ones or made.divisor in plan.ones
    return plan.ones


def step(attention: Attention) -> Callable[[Any, Any], Any]:
    return jax.value_and_grad(lambda w, x: (attention(w, x) ** 2).sum(), argnums=(0, 1))


def same(got: Any, wanted: Any) -> None:
    """Equal but for roundings to bfloat16."""
    eps = float(jnp.finfo("bfloat16").eps)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        np.testing.assert_allclose(g, w, rtol=0, atol=8 * eps * np.abs(w).max())


def error(got: Any, wanted: Any) -> float:
    parts = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    return max(float(np.linalg.norm(g - w) / np.linalg.norm(w)) for g, w in parts)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_sum_of_a_softmax_is_not_kept(dtype: str) -> None:
    assert ones(step(softmax), dtype)
    wanted = step(softmax)(W, X)
    kept = run(step(softmax), dtype, WITHOUT)
    assert error(run(step(softmax), dtype), wanted) <= 1.05 * error(kept, wanted)


def reshaped(w: Any, x: Any) -> Any:
    """The sum has no axis of size 1, as in a softmax by hand."""
    scores = logits(w, x)
    e = jnp.exp(scores - jax.lax.stop_gradient(scores.max(1, keepdims=True)))
    return (e / e.sum(1)[:, None]) @ x


@pytest.mark.parametrize("attention", [softmax, reshaped])
def test_the_sum_of_what_is_recomputed_counts_as_one(attention: Attention) -> None:
    """So the gradient has no more sums than where the first sum is kept."""

    def sums_in(policy: Policy) -> int:
        rewriter = pipeline.rewriter_of(painted(step(attention), policy=policy))
        return str(jax.make_jaxpr(rewriter)(W, X)).count("reduce_sum[")

    assert ones(step(attention))
    assert sums_in(POLICY) == sums_in(WITHOUT)
    wanted = step(attention)(W, X)
    kept = run(step(attention), policy=WITHOUT)
    assert error(run(step(attention)), wanted) <= 1.05 * error(kept, wanted)


def test_sums_that_count_as_one_inside_of_a_sharded_function() -> None:
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    by_rows = jax.P("rows")

    def gradient(w: Any, x: Any) -> Any:
        return step(softmax)(w, x)[1][1]

    sharded = jax.shard_map(gradient, mesh=mesh, in_specs=(jax.P(), by_rows), out_specs=by_rows)
    assert ones(sharded)
    same(run(sharded), sharded(W, X))


@pytest.mark.parametrize("attention", [read_later, squared])
def test_a_factor_that_cancels_is_left_out(attention: Attention) -> None:
    assert ones(attention)
    same(run(attention), attention(W, X))


@pytest.mark.parametrize("attention", [exponentials, sums, activation, added])
def test_a_factor_that_does_not_cancel_stays(attention: Attention) -> None:
    assert not ones(attention)
    same(run(attention), attention(W, X))


def test_a_factor_that_does_not_cancel_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "_power_of", lambda *_: 0)
    assert ones(exponentials)
    with pytest.raises(AssertionError):
        same(run(exponentials), exponentials(W, X))


def test_what_computes_in_half_keeps_the_scale() -> None:
    """Another scale might leave the range of float16."""

    def late(w: Any, x: Any) -> Any:
        e, s, y, dot = parts(w, x)
        with jax.named_scope("late"):
            return y * e / s, dot

    assert ones(late, "float16", keep_half=("*late*",)) == frozenset()


def test_a_quotient_that_is_made_later_is_no_source() -> None:
    """Exponentials are recomputed before it is there."""

    def late(w: Any, x: Any) -> Any:
        scores = logits(w, x)
        e = jnp.exp(scores - jax.lax.stop_gradient(scores.max(1, keepdims=True)))
        s = e.sum(1, keepdims=True)
        y = (e / s) @ x
        later = (y @ x.T * e) @ x
        return later, jax.lax.dot_general(e / s, y, (((0,), (0,)), ((), ())))

    same(run(late), late(W, X))


@pytest.mark.parametrize("attention", [twice, entropy])
def test_a_sum_of_what_is_computed_from_it_is_kept(attention: Attention) -> None:
    """Next to exponentials of another softmax, which are computed from scores."""
    same(run(step(attention)), step(attention)(W, X))


@pytest.mark.parametrize("length", [rows.LONGEST_ROW, rows.LONGEST_ROW + 1])
def test_only_rows_that_fit_into_a_kernel(length: int) -> None:
    def long(w: Any, x: Any) -> Any:
        return jax.nn.softmax(w @ x) @ x.T

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 32), (32, length))]
    jaxpr = jax.make_jaxpr(jax.grad(lambda *a: (long(*a) ** 2).sum(), (0, 1)))(*shapes)
    found = pipeline.paint_jaxpr(jaxpr, POLICY, HALF_TYPES["bfloat16"], forms=GPU)
    assert len(found.optimizations.recompute.products) == 1
    assert bool(found.optimizations.recompute.ones) == (length == rows.LONGEST_ROW)


@pytest.mark.parametrize("many", [1, 3])
def test_layers_and_transformations(many: int) -> None:
    """Scanned, checkpointed and mapped softmaxes give what they give with their sums kept."""

    def layers(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            return jnp.tanh(softmax(w, x)), None

        return jax.lax.scan(jax.checkpoint(layer), x, jnp.stack([w] * many))[0]

    train = step(lambda w, x: jax.vmap(layers, (None, 0))(w, jnp.stack([x, 2 * x])))
    same(run(train), run(train, "bfloat16", WITHOUT))
