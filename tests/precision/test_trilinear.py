"""Trilinear sums: which sums come from which dot, and which stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.painted import PaintedProgram
from duotone.jaxpr.pipeline import paint_jaxpr
from duotone.policy.policy import Policy
from duotone.precision.optimize.optimization import Optimization

ARRAYS = tuple(
    jax.random.normal(key, (2, 64, 3, 8)) for key in jax.random.split(jax.random.key(0), 3)
)
"""Queries, keys and values: 2 sequences of 64 tokens, 3 heads of 8 channels."""

Attention = Callable[[Any, Any, Any], Any]


def scores(q: Any, k: Any) -> Any:
    return jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5


def plain(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores(q, k)), v)


def by_exponentials(q: Any, k: Any, v: Any) -> Any:
    x = scores(q, k)
    e = jnp.exp(x - jax.lax.stop_gradient(x.max(-1, keepdims=True)))
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k[:, :, :1], v[:, :, :1], is_causal=True)


def mapped(q: Any, k: Any, v: Any) -> Any:
    def one(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T) @ v

    return jax.vmap(jax.vmap(one, 1, 1))(q, k, v)


def keys_first(q: Any, k: Any, v: Any) -> Any:
    """Scores the other way round: the softmax runs along an inner axis."""
    shares = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bkqh", q, k), axis=1)
    return jnp.einsum("bkhd,bkqh->hqbd", v, shares)


def recomputed(q: Any, k: Any, v: Any) -> Any:
    """A block that is recomputed: its own output is read inside of it."""
    return jax.checkpoint(lambda q, k, v: jnp.tanh(plain(q, k, v)))(q, k, v)


def looped(q: Any, k: Any, v: Any) -> Any:
    def body(carry: Any, _: Any) -> tuple[Any, None]:
        return recomputed(carry, k, v), None

    return jax.lax.scan(body, q, None, length=2)[0]


MATCHED: list[Attention] = [
    plain,
    by_exponentials,
    jax.nn.dot_product_attention,
    nn.dot_product_attention,
    grouped,
    mapped,
    keys_first,
    recomputed,
    looped,
]


def gradient(attention: Attention) -> Callable[..., Any]:
    return jax.grad(lambda *args: jnp.sum(jnp.tanh(attention(*args)) ** 2), argnums=(0, 1, 2))


def painted(
    function: Any,
    *args: Any,
    half: str = "bfloat16",
    device: str = "tpu",
    policy: Policy | None = None,
) -> PaintedProgram:
    """With the dots of a CPU without half arithmetic, so that it runs here."""
    jaxpr = jax.make_jaxpr(function)(*args)
    forms = dataclasses.replace(TABLE[device], dots="widened")
    return paint_jaxpr(jaxpr, policy or Policy(), HALF_TYPES[half], forms=forms)


def read_by(optimization: Optimization) -> list[int]:
    return [step.to[0] for step in optimization.steps if step.name == "read"]


@pytest.mark.parametrize("attention", MATCHED)
def test_the_gradient_of_an_attention(attention: Attention) -> None:
    found = painted(gradient(attention), *ARRAYS)
    graph, optimizations = found.built.graph, found.optimizations.named("trilinear")
    shares, total = (graph.nodes[node] for node in sorted(optimizations))
    assert (shares.op, total.op) == ("dot_general", "reduce_sum")
    (result,) = shares.outputs
    plain, operand, read = read_by(optimizations[total.index])[:3]
    assert (plain, read) == (total.inputs[0], result)
    assert graph.values[operand].shape == graph.values[result].shape
    for node in optimizations[total.index].full:
        assert found.painting.rules[node] == "unrounded"
        assert str(found.painting.store[node]) == "full"
        assert str(found.painting.compute[node]) == "half"
    left = graph.values[total.outputs[0]]
    assert graph.values[plain].size == 64 * left.size


def divided_later(q: Any, k: Any, v: Any) -> Any:
    e = jnp.exp(scores(q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", e, v) / e.sum(-1).swapaxes(1, 2)[..., None]


def gated(q: Any, k: Any, v: Any) -> Any:
    """Shares that do not add up to 1."""
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.sigmoid(scores(q, k)), v)


def over_queries(q: Any, k: Any, v: Any) -> Any:
    """The softmax runs along another axis than the dot after it."""
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores(q, k), axis=2), v)


def normed_by_another(q: Any, k: Any, v: Any) -> Any:
    """Divided by a sum, of other numbers."""
    x = scores(q, k)
    e, other = jnp.exp(x - 4), jnp.exp(x + 1)
    return jnp.einsum("bhqk,bkhd->bqhd", e / other.sum(-1, keepdims=True), v)


def cancelling(q: Any, k: Any, v: Any) -> Any:
    """Shares of a sum that may be anything."""
    x = scores(q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", x / x.sum(-1, keepdims=True), v)


def unbounded(q: Any, k: Any, v: Any) -> Any:
    """Exponentials that are nearly too large for float32 would be multiplied before they shrink."""
    e = jnp.exp(scores(q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


def divided_across(q: Any, k: Any, v: Any) -> Any:
    """Shares of another row's sum: a reshape that moves axes first."""
    x = jnp.einsum("bqhd,bkhd->bhqk", q, k)[0, 0]
    e = jnp.exp(x - jax.lax.stop_gradient(x.max(-1, keepdims=True)))
    shares = e / jax.lax.reshape(e.sum(0, keepdims=True), (64, 1), (1, 0))
    moved = e / jax.lax.reshape(e.reshape(8, 8, 64).sum(-1), (64, 1), (1, 0))
    return (shares + moved) @ v[0, :, 0]


def dropped(q: Any, k: Any, v: Any) -> Any:
    """With dropout: the sum is over other shares than the dot reads."""
    keep = jax.random.bernoulli(jax.random.key(3), 0.9, (2, 3, 64, 64)) / 0.9
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores(q, k)) * keep, v)


def few_keys(q: Any, k: Any, v: Any) -> Any:
    """Not eight times as many as channels."""
    return plain(q, k[:, :48], v[:, :48])


@pytest.mark.parametrize(
    "attention",
    [divided_later, gated, over_queries, normed_by_another, cancelling, dropped, few_keys],
)
def test_what_is_another_sum_stays(attention: Attention) -> None:
    found = painted(gradient(attention), *ARRAYS)
    assert not found.optimizations.named("trilinear")
    assert "unrounded" not in found.painting.rules


def test_another_operand_is_another_form() -> None:
    """A gradient written by hand, of other values than those of the attention."""

    def function(q: Any, k: Any, v: Any) -> Any:
        shares = jax.nn.softmax(scores(q, k))
        out = jnp.einsum("bhqk,bkhd->bqhd", shares, v)
        product = jnp.einsum("bqhd,bkhd->bhqk", q, k + v)
        return out.sum(), (shares * product).sum(-1)

    assert not painted(function, *ARRAYS).optimizations.named("trilinear")


def test_only_where_the_kernel_of_a_dot_calculates_on() -> None:
    function = gradient(plain)
    assert not painted(function, *ARRAYS, device="gpu").optimizations.named("trilinear")
    assert not painted(function, *ARRAYS, device="cpu").optimizations.named("trilinear")
    assert painted(function, *ARRAYS, half="float16").optimizations.named("trilinear")
    assert not painted(function, *ARRAYS, policy=Policy(painter="tensorflow")).optimizations.named(
        "trilinear"
    )


@pytest.mark.parametrize("pinned", ["keep_full", "keep_half"])
def test_what_the_user_decided_stays(pinned: str) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        with jax.named_scope("attend"):
            return plain(q, k, v)

    assert painted(gradient(attention), *ARRAYS).optimizations.named("trilinear")
    found = painted(
        gradient(attention), *ARRAYS, policy=Policy().replace(**{pinned: ("*attend*",)})
    )
    assert not found.optimizations.named("trilinear")


def test_sharded_types_stay() -> None:
    """Whoever moves arrays whose type has a sharding must name it; the form is left as it is."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        arrays = [jax.device_put(x, jax.P("x")) for x in ARRAYS]
        found = painted(gradient(mapped), *arrays)
    assert not found.optimizations.named("trilinear")


def test_symbolic_shapes_stay() -> None:
    (size,) = jax.export.symbolic_shape("n")
    for shape in ((size, 64, 3, 8), (2, size, 3, 8)):
        args = [jax.ShapeDtypeStruct(shape, jnp.float32)] * 3
        traced = jax.jit(gradient(plain)).trace(*args).jaxpr
        found = paint_jaxpr(traced, Policy(), HALF_TYPES["bfloat16"], forms=TABLE["tpu"])
        assert not found.optimizations.named("trilinear")


def test_whole_numbers_stay() -> None:
    """A dot that reads them as they are."""

    def function(q: Any, k: Any, v: Any, g: Any) -> Any:
        shares = jax.nn.softmax(q @ k.T)
        out = jax.lax.dot_general(shares, v, (((1,), (0,)), ((), ())), preferred_element_type="f4")
        product = jax.lax.dot_general(g, v, (((1,), (1,)), ((), ())), preferred_element_type="f4")
        return out, (shares * product).sum(-1)

    q, k, v = (x[0, :, 0] for x in ARRAYS)
    assert painted(function, q, k, v, v).optimizations.named("trilinear")
    assert not painted(function, q, k, v.astype(jnp.int32), v).optimizations.named("trilinear")
